"""What earlier evidence still shows: bound to the digest of each plane, so that only what changed is run again; pure.

Light to import: an unchanged package is reported without loading anything that runs one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from typing import Final

from benchflow.errors import Issue
from benchflow.evidence.agreement import agreement_issues, measured_agreement
from benchflow.evidence.cases import DECLARED, Case, Cases, cases_of, not_perturbed
from benchflow.evidence.standard_files import GOLD_RESULT, review_of
from benchflow.evidence.suitability import examined_by, suitability
from benchflow.record.evidence import (
    AUDIT_UNDECIDED,
    AuditReport,
    CaseReport,
    Expected,
    Flake,
    MeasuredAgreement,
    ProofReport,
)
from benchflow.record.proof import rules
from benchflow.task.config.evidence_config import PERTURBATIONS, Evidence
from benchflow.task.config.interaction import ARENA
from benchflow.task.package import TaskPackage, package_parts

ALL_PLANES: Final = frozenset({"task", "environment", "verifier", "oracle"})
SHIPPED_CHEATS: Final = "shipped-cheats"


@cache
def tool_version() -> str:
    """The version of benchcube."""
    return version("benchcube")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller asks for."""

    sandbox: str = "auto"
    base_image: str | None = None
    isolation: str | None = None
    reruns: int | None = None
    """None: as many as the default."""
    families: frozenset[str] | None = frozenset()
    """The names of the families to try; None: no audit."""
    perturbations: frozenset[str] = frozenset(PERTURBATIONS)


@dataclass(frozen=True, slots=True)
class Perturbed:
    """The perturbations that were applied, and why others were not, by name."""

    cases: Mapping[str, CaseReport] = field(default_factory=dict)
    not_applied: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: Perturbed) -> Perturbed:
        return Perturbed({**self.cases, **other.cases}, {**self.not_applied, **other.not_applied})

    def in_order(self) -> tuple[CaseReport, ...]:
        """The cases, as the perturbations are listed everywhere."""
        return tuple(self.cases[name] for name in PERTURBATIONS if name in self.cases)

    @property
    def names(self) -> frozenset[str]:
        return frozenset((*self.cases, *self.not_applied))


@dataclass(frozen=True, slots=True)
class Known:
    """The parts of an earlier report that hold for a package as it is now."""

    report: ProofReport
    unchanged: frozenset[str]
    """The planes that did not change."""

    def case(self, case: Case) -> CaseReport | None:
        """The result of the same case, judged by what is expected now."""
        found = next((item for item in self.report.cases if _is_same(item, case)), None)
        if found is None or not case.planes <= self.unchanged or found.runs < case.reruns or None in found.rewards:
            return None
        return judged(case, found.rewards, ())

    def oracle(self, case: Case, wanted: Wanted) -> tuple[CaseReport, Flake] | None:
        """The result of the oracle with its reruns, if they are as many as wanted."""
        flake, found = self.report.flake, self.case(replace(case, reruns=wanted.reruns or case.reruns))
        return (found, flake) if found is not None and flake is not None else None

    def perturbed(self, wanted: Collection[str]) -> Perturbed:
        """What is known of these perturbations. What was left out by a declaration that is gone was never tried."""
        if not self.unchanged >= ALL_PLANES:
            return Perturbed()
        return Perturbed(
            {case.name: case for case in self.report.cases if case.type == "perturbation" and case.name in wanted},
            {name: why for name, why in self.report.not_perturbed.items() if name in wanted and why != DECLARED},
        )

    def audit(self, wanted: Wanted) -> AuditReport | None:
        """The audit, if it tried the same families and could decide."""
        audit = self.report.audit
        if audit is not None and any(issue.code == AUDIT_UNDECIDED for issue in audit.findings):
            return None
        if audit is None or not self.unchanged >= ALL_PLANES or wanted.families is None:
            return None
        return audit if wanted.families <= {family.family for family in audit.families} else None


def known(report: ProofReport | None, package: TaskPackage, wanted: Wanted) -> Known | None:
    """What of a report holds: nothing that other rules, another version, sandbox or base showed."""
    bound = report.bound if report is not None else None
    if report is None or bound is None or report.isolation is None:
        return None
    same = (
        bound.rules == rules()
        and bound.benchcube == tool_version()
        and wanted.sandbox in ("auto", bound.sandbox.name)
        and wanted.base_image in (None, bound.sandbox.base)
        and wanted.isolation in (None, "auto", report.isolation.rung)
    )
    if not same:
        return None
    planes = package_parts(package)
    return Known(report, frozenset(name for name, digest in planes.items() if bound.planes.get(name) == digest))


def still_proven(earlier: Known, package: TaskPackage, wanted: Wanted) -> ProofReport | None:
    """The report of a package of which nothing has to be run; None if something has to."""
    cases = cases_of(package)
    found: list[CaseReport] = []
    flake: Flake | None = None
    for case in cases.cases:
        if case.type == "oracle" and case.source == "found":
            reused = earlier.oracle(case, wanted)
            result, flake = reused if reused is not None else (None, None)
        else:
            result = earlier.case(case)
        if result is None:
            return None
        found.append(result)
    names, left_out = to_perturb(package, found, wanted)
    perturbed = earlier.perturbed(names)
    audit = earlier.audit(wanted)
    missing = perturbed.names != names or (audit is None and wanted.families is not None)
    if missing or earlier.report.bound is None:
        return None
    bound = replace(earlier.report.bound, content_digest=package.content_digest)
    report = replace(
        earlier.report,
        cases=(*found, *perturbed.in_order()),
        flake=flake,
        audit=audit,
        references=cases.references,
        issues=cases.issues,
        not_perturbed={**perturbed.not_applied, **left_out},
        bound=bound,
    )
    return with_verdicts(report, package, cases)


def to_perturb(
    package: TaskPackage, cases: Iterable[CaseReport], wanted: Wanted
) -> tuple[frozenset[str], Mapping[str, str]]:
    """The perturbations to apply, and why others are not; none if the oracle got no reward to compare with."""
    if not usual_rewards(cases):
        return frozenset(), {}
    if package.view.mode == ARENA:
        return frozenset(), dict.fromkeys(sorted(wanted.perturbations), "a game is played again, not verified again")
    left_out = {name: why for name, why in not_perturbed(package).items() if name in wanted.perturbations}
    return wanted.perturbations - left_out.keys(), left_out


def usual_rewards(cases: Iterable[CaseReport]) -> frozenset[float]:
    """What the oracle's result gets, as often as it was verified."""
    oracle = next((case for case in cases if case.type == "oracle" and case.source == "found"), None)
    return frozenset(reward for reward in oracle.rewards if reward is not None) if oracle is not None else frozenset()


def judged(
    case: Case, rewards: Iterable[float | None], errors: Iterable[str], *, undecided: bool = False
) -> CaseReport:
    """The report on the runs of a case; `errors` say why runs have no reward."""
    given = tuple(rewards)
    missed = [case.expect.missed(reward) for reward in given if reward is not None]
    reasons = list(dict.fromkeys([*(text for texts in missed for text in texts), *errors]))
    failures = sum(map(bool, missed)) + given.count(None)
    allowed = case.expect.flake_rate_max or 0.0
    passed = bool(given) and not undecided and failures <= allowed * len(given)
    return CaseReport(
        case.name,
        case.type,
        len(given),
        given,
        case.expect,
        passed,
        case.source,
        () if passed else tuple(reasons),
        case.command,
        undecided,
    )


def with_verdicts(report: ProofReport, package: TaskPackage, cases: Cases) -> ProofReport:
    """The report with what follows from it: whether the package is proven, and whether a leaderboard may use it."""
    evidence = package.view.namespace.evidence or Evidence()
    live = evidence.acceptance_live
    board = live.leaderboard if live is not None else None
    agreement = _agreement(report, cases)
    declared = evidence.calibration.judge_agreement if evidence.calibration is not None else None
    report = replace(report, judge_agreement=agreement, issues=(*report.issues, *agreement_issues(agreement, declared)))
    by_the_author = {
        "human-baseline": any(item.artifact not in (None, GOLD_RESULT) for item in report.references),
        "instruction-review": "instruction_alignment" in (review_of(package) or {}),
    }
    suitable = suitability(
        report.cases,
        max_flake_rate=board.max_flake_rate if board is not None else 0.0,
        flake=report.flake,
        examined=examined_by(report) | {name for name, done in by_the_author.items() if done},
        not_applicable=() if report.judges else ("judge-agreement",),
    )
    return replace(report, proven=_is_proven(report), leaderboard=suitable)


def _agreement(report: ProofReport, cases: Cases) -> MeasuredAgreement | None:
    """How far the judges agree, by the cases whose state was verified more than once without a new run."""
    if not report.judges or report.isolation is None or report.isolation.keeps_processes:
        return None
    one_state = {case.name for case in cases.cases if case.reruns == 1 or case.type == "oracle"}
    return measured_agreement(
        case.rewards for case in report.cases if case.type != "perturbation" and case.name in one_state
    )


def _is_proven(report: ProofReport) -> bool:
    """Every case passed, the oracle was run, and no family of exploits broke the package."""
    broken = report.audit is not None and any(family.verdict == "broken" for family in report.audit.families)
    errors = any(issue.severity == "error" for issue in report.issues)
    solved = any(case.type == "oracle" for case in report.cases)
    return solved and all(case.passed for case in report.cases) and not broken and not errors


def full(expect: Expected, reward: float | None) -> bool:
    """Whether a reward is as expected."""
    return reward is not None and not expect.missed(reward)


def no_oracle(package: TaskPackage) -> Issue:
    """What is said of a package that nobody can be shown to solve."""
    file = "task.md" if package.document is not None else "task.toml"
    return Issue(
        "oracle-missing", "error", "oracle", "The package has no oracle, so nothing shows that it can be solved.", file
    )


def _is_same(report: CaseReport, case: Case) -> bool:
    return (report.name, report.type, report.command) == (case.name, case.type, case.command)
