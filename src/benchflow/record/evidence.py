"""What is known about the soundness of a package: cases and their rewards, flakes, exploit families, suitability.

`prove` and `audit` write these records; the viewer and leaderboards read them. A run that was not scored has no reward:
it is None, never 0. `proof-report.json` in the evidence of a package holds the whole, bound to the content it is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from benchflow.errors import Issue
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record.codec import plain, read
from benchflow.record.result import Isolation, SandboxPart

CaseType = Literal["oracle", "verifier", "no-op", "known-bad", "partial", "reference", "perturbation"]
CaseSource = Literal["declared", "calibration-report", "found"]
FamilyVerdict = Literal["held", "broken", "voided", "not-applicable"]
AuditVerdict = Literal["sound", "unsound", "undecided"]
SuitabilityStatus = Literal["suitable", "insufficient"]
TOLERANCE: Final = 1e-9
PROOF_REPORT: Final = "proof-report.json"
PROOF_REPORT_SCHEMA: Final = "benchcube.evidence.v1"
AUDIT_UNDECIDED: Final = "audit-undecided"
"""The code of what says that families, or the whole audit, could not be tried here."""
_MAX_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Expected:
    """The rewards that a case may have; None where there is no bound."""

    reward_min: float | None = None
    reward_max: float | None = None
    reward_range: tuple[float, float] | None = None
    reward_equals: float | None = None
    flake_rate_max: float | None = None

    def missed(self, reward: float) -> list[str]:
        """What a reward violates, in words."""
        low, high = self.reward_range or (None, None)
        least = [bound for bound in (self.reward_min, low) if bound is not None and reward < bound - TOLERANCE]
        most = [bound for bound in (self.reward_max, high) if bound is not None and reward > bound + TOLERANCE]
        found = [f"the reward {reward:g} is below {bound:g}" for bound in least]
        for bound in most:
            # A bound just below 1 reads as 1.
            above = "above" if f"{reward:g}" != f"{bound:g}" else "not below"
            found.append(f"the reward {reward:g} is {above} {bound:g}")
        if self.reward_equals is not None and abs(reward - self.reward_equals) > TOLERANCE:
            found.append(f"the reward {reward:g} is not {self.reward_equals:g}")
        return found


@dataclass(frozen=True, slots=True)
class CaseReport:
    """One case of a package: what was run, how often, and the rewards."""

    name: str
    type: CaseType
    runs: int
    rewards: tuple[float | None, ...]
    expect: Expected
    passed: bool
    source: CaseSource = "found"
    reasons: tuple[str, ...] = ()
    """Why it did not pass."""
    command: str | None = None
    """The shell command that plays it, on one line; None where an agent of the package or of the tool does."""
    undecided: bool = False
    """Whether a failure of the machine, a judge or the network prevented a score: nothing is known then."""


@dataclass(frozen=True, slots=True)
class Flake:
    """How often the verifier gave another verdict on one state."""

    runs: int
    failures: int
    upper_95: float
    """The exact one-sided upper bound of the rate of failures, at 95 %."""


@dataclass(frozen=True, slots=True)
class MeasuredAgreement:
    """How far a judge agrees with itself: all pairs of its verdicts on one state, over some states."""

    sample_count: int
    """The verdicts that were compared."""
    states: int
    pairwise_agreement: float
    """On average over all pairs, 1 minus the difference of the two rewards."""


@dataclass(frozen=True, slots=True)
class FamilyReport:
    """What one family of exploits achieved."""

    family: str
    verdict: FamilyVerdict
    attempts: int
    best_reward: float | None
    """The highest reward of an attempt; None if none was scored."""
    evidence: str
    """What was done and what it earned, or why the family does not apply."""
    baseline: float | None = None
    """The reward of the same state without the trick."""
    remedy: str | None = None
    """What the author can do; of a broken or voided family."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The families that were tried on a package, and what is visible without running anything."""

    sound: bool
    isolation: Isolation | None
    families: tuple[FamilyReport, ...] = ()
    findings: tuple[Issue, ...] = ()

    @property
    def verdict(self) -> AuditVerdict:
        """Undecided if all that keeps it from being sound is that it could not be tried: nobody has found a hole."""
        hole = any(family.verdict in ("broken", "voided") for family in self.families)
        errors = {issue.code for issue in self.findings if issue.severity == "error"}
        if self.sound:
            return "sound"
        return "undecided" if not hole and errors == {AUDIT_UNDECIDED} else "unsound"


@dataclass(frozen=True, slots=True)
class Suitability:
    """Whether the evidence of a package is enough for a leaderboard, and what nobody has looked at."""

    status: SuitabilityStatus
    checks: Mapping[str, bool] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    issues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """A solution by a human or another reference whose reward the author recorded; it is not run again."""

    name: str
    expected_reward: float | None
    artifact: str | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """What evidence is about: it says nothing about any other content, rules or base."""

    content_digest: str
    planes: Mapping[str, str]
    """The digests of `task`, `environment`, `verifier` and `oracle`."""
    sandbox: SandboxPart
    rules: str
    """The version of the rules of isolation."""
    benchcube: str
    """The version of the tool."""
    proven_at: str
    """ISO 8601, UTC."""


@dataclass(frozen=True, slots=True)
class ProofReport:
    """Everything that proving a package showed."""

    proven: bool
    isolation: Isolation | None
    cases: tuple[CaseReport, ...]
    flake: Flake | None
    audit: AuditReport | None
    leaderboard: Suitability | None
    issues: tuple[Issue, ...]
    references: tuple[Reference, ...] = ()
    judges: tuple[str, ...] = ()
    """The models that judged, and where they were asked, if not at their provider."""
    judge_agreement: MeasuredAgreement | None = None
    """None where there is no judge, or no state was judged twice."""
    not_perturbed: Mapping[str, str] = field(default_factory=dict)
    """Why perturbations were not applied, by name."""
    bound: Binding | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of the evidence files that were written with it, by name."""

    @property
    def decided(self) -> bool:
        """Whether every case has a result: evidence with gaps is not written."""
        undecided = any(issue.code == AUDIT_UNDECIDED for issue in self.issues)
        return self.bound is not None and not undecided and not any(case.undecided for case in self.cases)

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        return {"schema": PROOF_REPORT_SCHEMA, **plain(self)}


def read_proof_report(folder: Path) -> ProofReport | None:
    """The report in the folder `evidence/acceptance` of a package; None if there is none, or it is damaged."""
    try:
        document = parse_json(read_regular(folder / PROOF_REPORT, max_bytes=_MAX_BYTES))
        if not isinstance(document, dict) or document.pop("schema", None) != PROOF_REPORT_SCHEMA:
            return None
        return read(ProofReport, document)
    except (OSError, RefusedFileError, StrictJSONError, ValueError):
        return None
