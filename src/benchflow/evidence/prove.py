"""`prove_package`: run the cases of a package on one stage, and say what that shows.

oracle, verified many times ──> other cases, perturbations ──> audit ──> report, bound to the content it is about

A failure of the machine, the network or a judge is tried again and never counts against the package: such a case stays
undecided. A verifier that gives no valid reward does count.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import anyio

from benchflow.agents.script_agent import ScriptAgent
from benchflow.errors import BenchflowError, Issue
from benchflow.evidence.audit.auditing import audit_stage, not_run
from benchflow.evidence.audit.exploit_family import Family
from benchflow.evidence.case_agents import CommandAgent, OracleSteps
from benchflow.evidence.cases import GOLD, Case, Cases, cases_of
from benchflow.evidence.flakes import flake
from benchflow.evidence.perturbations import PERTURBATIONS, perturb
from benchflow.evidence.reuse import (
    Known,
    Perturbed,
    Wanted,
    full,
    judged,
    no_oracle,
    to_perturb,
    tool_version,
    usual_rewards,
    with_verdicts,
)
from benchflow.evidence.trial_stage import NOT_THE_PACKAGE, MakeAgent, Stage, StageOptions, Trial, open_stage
from benchflow.files.redaction import make_redactor
from benchflow.record import SandboxPart
from benchflow.record.codec import cleaned
from benchflow.record.evidence import AuditReport, Binding, CaseReport, Flake, ProofReport
from benchflow.record.outcome import ErrorRecord
from benchflow.record.proof import rules
from benchflow.record.trajectory import timestamp
from benchflow.rewards import Scored, Unscored, Verdict
from benchflow.rollout.course import Course
from benchflow.rollout.policies import gather_secrets, judges, require_judges
from benchflow.task.package import TaskPackage, package_parts
from benchflow.task.runtime_view import TaskRuntimeView
from benchflow.verifier.perturbation import Perturbation

if TYPE_CHECKING:
    from benchflow.rollout.policies import Judge

RERUNS: Final = 60
"""Enough to show a flake rate of at most 5 %."""
FEWER_RERUNS: Final = 10
"""Where each costs a whole rollout, or calls of a judge."""
JUDGED_TIMES: Final = 3
"""How often a judge is asked about the state of each other case, to see whether it agrees with itself."""
TRIES: Final = 3
_Agent = str | MakeAgent


@dataclass(frozen=True, slots=True)
class ProveOptions:
    """What is run, and how."""

    stage: StageOptions = field(default_factory=StageOptions)
    reruns: int | None = None
    """How often the oracle's result is verified; None: as often as the kind of verification allows."""
    families: Mapping[str, Family] | None = None
    """The families of the audit; None: no audit."""
    perturbations: Mapping[str, Perturbation] = field(default_factory=lambda: PERTURBATIONS)

    def wanted(self) -> Wanted:
        sandbox = self.stage.sandbox if isinstance(self.stage.sandbox, str) else self.stage.sandbox.name
        families = None if self.families is None else frozenset(self.families)
        perturbations = frozenset(self.perturbations)
        return Wanted(sandbox, self.stage.base_image, self.stage.isolation, self.reruns, families, perturbations)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The rewards of several verifications, and why some have none."""

    rewards: tuple[float | None, ...] = ()
    errors: tuple[str, ...] = ()
    undecided: bool = False
    of_the_box: bool = False
    """Whether the sandbox failed after the case had begun to play in it."""

    def __add__(self, other: _Runs) -> _Runs:
        return _Runs(
            self.rewards + other.rewards,
            self.errors + other.errors,
            self.undecided or other.undecided,
            self.of_the_box or other.of_the_box,
        )


async def prove_package(package: TaskPackage, options: ProveOptions, earlier: Known | None = None) -> ProofReport:
    """Run what `earlier` does not show yet; raises what refuses a package before anything starts.

    So does a judge that cannot be called, and a variable that a verifier takes and that is not set.
    """
    cases = cases_of(package)
    models = _judging_models(package.view)
    if models:
        await anyio.to_thread.run_sync(require_judges, models)
    async with open_stage(package, options.stage) as stage:
        report = await _Proving(stage, package, cases, options, earlier, _named(models)).run()
    hidden = make_redactor(gather_secrets(package.view, os.environ, ()).redacted)
    return cleaned(report, hidden.text)


class _Proving:
    def __init__(
        self,
        stage: Stage,
        package: TaskPackage,
        cases: Cases,
        options: ProveOptions,
        earlier: Known | None,
        judges: tuple[str, ...],
    ) -> None:
        self._stage: Final = stage
        self._package: Final = package
        self._cases: Final = cases
        self._options: Final = options
        self._earlier: Final = earlier
        self._judges: Final = judges
        self._sandbox: SandboxPart | None = earlier.report.bound.sandbox if earlier and earlier.report.bound else None

    async def run(self) -> ProofReport:
        oracle = next((case for case in self._cases.cases if case.type == "oracle" and case.source == "found"), None)
        solved, flakes = await self._oracle(oracle) if oracle is not None else (None, None)
        found: dict[str, CaseReport] = {} if solved is None else {solved.name: solved}

        async def one(case: Case) -> None:
            found[case.name] = await self._case(case, solved)

        async with anyio.create_task_group() as group:
            for case in self._cases.cases:
                if case is not oracle:
                    group.start_soon(one, case)
        reports = tuple(found[case.name] for case in self._cases.cases)
        perturbed = await self._perturbed(reports)
        audit, problems = await self._audit(reports)
        return self._report((*reports, *perturbed.in_order()), flakes, perturbed.not_applied, audit, problems)

    def _report(
        self,
        reports: tuple[CaseReport, ...],
        flakes: Flake | None,
        not_perturbed: Mapping[str, str],
        audit: AuditReport | None,
        problems: Sequence[Issue],
    ) -> ProofReport:
        issues = [*self._cases.issues, *problems]
        if not any(report.type == "oracle" for report in reports):
            issues.append(no_oracle(self._package))
        issues += [_undecided(report) for report in reports if report.undecided]
        report = ProofReport(
            proven=False,
            isolation=self._stage.isolation,
            cases=reports,
            flake=flakes,
            audit=audit,
            leaderboard=None,
            issues=tuple(issues),
            references=self._cases.references,
            judges=self._judges,
            not_perturbed=not_perturbed,
            bound=self._binding(),
        )
        return with_verdicts(report, self._package, self._cases)

    def _binding(self) -> Binding | None:
        """What the report is about; None if no environment was ever started."""
        if self._sandbox is None:
            return None
        package = self._package
        return Binding(
            package.content_digest, package_parts(package), self._sandbox, rules(), tool_version(), timestamp()
        )

    async def _oracle(self, case: Case) -> tuple[CaseReport, Flake | None]:
        """The oracle, verified as often as wanted."""
        known = self._earlier.oracle(case, self._options.wanted()) if self._earlier is not None else None
        if known is not None:
            return known
        cheap = self._stage.is_pure and not self._judges
        wanted = self._options.reruns or max(case.reruns, RERUNS if cheap else FEWER_RERUNS)
        runs = await (self._verified_again(case, wanted) if self._stage.is_pure else self._rerun(case, wanted))
        reached = [full(case.expect, reward) for reward in runs.rewards]
        if not any(reached):  # an oracle that never reaches its reward is not flaky as long as it is always the same
            reached = [reward is not None and reward == runs.rewards[0] for reward in runs.rewards]
        return judged(case, runs.rewards, runs.errors, undecided=runs.undecided), _measured(reached, runs)

    async def _verified_again(self, case: Case, wanted: int) -> _Runs:
        """One run of a case, and further verifications of the state that it left."""
        runs, failed = _Runs(), _Runs()
        for _ in range(TRIES):
            missing = wanted - len(runs.rewards)
            agent, name = _player(case)
            trial = await self._stage.run(agent, name=name, again=[{}] * (missing - 1))
            first = self._first(trial)
            if first.undecided:
                failed = first
                continue
            runs += first
            for verdict in _verdicts(self._package.view, trial, missing - 1):
                if not isinstance(verdict, Unscored) or verdict.category not in NOT_THE_PACKAGE:
                    runs += _of_verdict(verdict)
            if len(runs.rewards) >= wanted or not trial.again:
                break
        return runs if runs.rewards else await self._blamed(failed)

    async def _rerun(self, case: Case, wanted: int) -> _Runs:
        """So many rollouts of a case."""
        found: dict[int, _Runs] = {}

        async def one(number: int) -> None:
            for _ in range(TRIES):
                agent, name = _player(case)
                found[number] = self._first(await self._stage.run(agent, name=name))
                if not found[number].undecided:
                    break

        async with anyio.create_task_group() as group:
            for number in range(wanted):
                group.start_soon(one, number)
        return await self._blamed(sum((found[number] for number in range(wanted)), _Runs()))

    async def _blamed(self, runs: _Runs) -> _Runs:
        """A sandbox that fails in every try, and does not fail if nobody plays, was broken by who played."""
        if not runs.of_the_box:
            return runs
        untouched = await self._stage.run("nop")
        return replace(runs, undecided=False) if untouched.reward is not None else runs

    def _first(self, trial: Trial) -> _Runs:
        """The result of the rollout itself."""
        if trial.result.sandbox.base is not None:
            self._sandbox = trial.result.sandbox
        return _runs(trial.reward, trial.result.error)

    async def _case(self, case: Case, solved: CaseReport | None) -> CaseReport:
        known = self._earlier.case(case) if self._earlier is not None else None
        if known is not None:
            return known
        if case.name == GOLD and case.source == "found" and solved is not None:
            return judged(case, solved.rewards[:1], solved.reasons, undecided=solved.undecided)
        if self._judges and self._stage.is_pure and case.reruns == 1:
            runs = await self._verified_again(case, JUDGED_TIMES)
        else:
            runs = await self._rerun(case, case.reruns)
        return judged(case, runs.rewards, runs.errors, undecided=runs.undecided)

    async def _perturbed(self, reports: Sequence[CaseReport]) -> Perturbed:
        """The oracle's result under each perturbation that says something about the package."""
        names, left_out = to_perturb(self._package, reports, self._options.wanted())
        known = self._earlier.perturbed(names) if self._earlier is not None else Perturbed()
        missing = {name: item for name, item in self._options.perturbations.items() if name in names - known.names}
        found = await perturb(self._stage, usual_rewards(reports), missing) if missing else Perturbed()
        return known | found | Perturbed(not_applied=left_out)

    async def _audit(self, reports: Sequence[CaseReport]) -> tuple[AuditReport | None, tuple[Issue, ...]]:
        """The audit, or why there is none: then the package is not proven, but its cases are reported."""
        families = self._options.families
        if families is None:
            return None, ()
        known = self._earlier.audit(self._options.wanted()) if self._earlier is not None else None
        if known is not None:
            return known, ()
        if not any(reward is not None for report in reports for reward in report.rewards):
            message = "The audit was left out: no case of the package gets a score, so there is nothing to compare."
            return None, (Issue("audit-left-out", "warning", "", message),)
        try:
            return await audit_stage(self._stage, families), ()
        except BenchflowError as error:
            return None, (not_run(error),)


def _measured(reached: Sequence[bool], runs: _Runs) -> Flake | None:
    """The flake rate of a package; none if verifications failed for a reason outside of it."""
    return None if runs.undecided else flake(reached)


def _player(case: Case) -> tuple[_Agent, str | None]:
    """Who plays a case, made anew for each run."""
    if case.script is not None:
        script = case.script
        return (lambda: ScriptAgent("case", script)), "case"
    if case.command is not None:
        command = case.command
        return (lambda: CommandAgent("case", command)), "case"
    if case.steps is not None:
        return OracleSteps(case.steps), "oracle"
    return ("oracle" if case.by_oracle else "nop"), None


def _verdicts(view: TaskRuntimeView, trial: Trial, times: int) -> list[Verdict]:
    """The verdicts on the whole of further verifications, which were made for each step that was reached."""
    found: list[Verdict] = []
    starts: Sequence[int] = range(0, len(trial.again), times) if times else ()
    for number in range(times if trial.again else 0):
        course = Course.of(view)
        for start in starts:
            if not course.over:
                course = course.after(trial.again[start + number].verdict)
        found.append(course.total())
    return found


def _of_verdict(verdict: Verdict) -> _Runs:
    if isinstance(verdict, Scored):
        return _Runs((verdict.reward,))
    return _runs(None, ErrorRecord(verdict.category, verdict.code, verdict.phase, verdict.reason))


def _runs(reward: float | None, error: ErrorRecord | None) -> _Runs:
    if error is None:
        return _Runs((reward,))
    of_the_box = error.category == "sandbox" and error.phase in ("agent", "verify")
    return _Runs((None,), (f"not scored: {error.message}",), error.category in NOT_THE_PACKAGE, of_the_box)


def _undecided(report: CaseReport) -> Issue:
    why = report.reasons[0] if report.reasons else "not scored"
    message = f"The case '{report.name}' has no result, for a reason outside the package ({why}); run it again."
    return Issue("case-undecided", "warning", "", message)


def _judging_models(view: TaskRuntimeView) -> Sequence[Judge]:
    steps: list[str | None] = [step.config.name for step in view.steps]
    return judges(view, os.environ, steps or [None])


def _named(models: Sequence[Judge]) -> tuple[str, ...]:
    """The judges, and whether a server on this machine answers for them."""
    address = os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or ""
    host = urlsplit(address).hostname
    place = " (a model server on this machine)" if host in ("localhost", "127.0.0.1", "::1") else ""
    return tuple(dict.fromkeys(f"{model.name}{place}" for model in models))
