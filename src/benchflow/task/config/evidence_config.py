"""`benchflow.evidence`: what a package claims to have proven, and where the proof is.

Only shapes and ranges are checked here; the level `acceptance` compares the files with the claims.
"""

from __future__ import annotations

from typing import Any, Final

from benchflow.task.config import kinds
from benchflow.task.config.kinds import flag, integer, line, listing, number, relative_path, sha256, some_text, text
from benchflow.task.config.parsed_record import InvalidValueError, IssueLog, Kind, Record, field, join

ARTIFACT_KINDS: Final = (
    "screenshot",
    "video",
    "har",
    "browser_trace",
    "trajectory",
    "critique",
    "viewer_metadata",
    "verifier_artifact",
    "acp",
    "oracle_run",
    "verifier_stability",
    "acceptance_review",
    "calibration_report",
    "reference_result",
)
CASE_TYPES: Final = ("verifier", "oracle", "no-op", "known-bad", "partial", "reference")
PERTURBATIONS: Final = ("time-zone", "locale", "clock", "seed", "processors", "network", "user")
"""What a verdict must not depend on, unless the package declares it."""
MAX_RERUNS: Final = 20
EVIDENCE_VISIBILITIES: Final = ("agent", "hidden_verifier", "hidden_oracle", "evidence_only")

unit: Final = number(least=0, most=1)
reruns: Final = integer(least=1, most=MAX_RERUNS)


def _unit_range(value: Any, path: str, problems: IssueLog) -> tuple[float, float]:
    bounds = listing(unit).parse(value, path, problems)
    if len(bounds) != 2 or bounds[0] > bounds[1]:  # a pair
        raise InvalidValueError("must be [low, high] between 0 and 1")
    return bounds[0], bounds[1]


unit_range: Final = Kind(_unit_range)


class OracleRuns(Record):
    """Proof that the task can be solved."""

    required_reward: float | None = field(number(), default=None)
    last_job: str | None = field(some_text, default=None)
    artifact: str | None = field(relative_path, default=None)


class VerifierStability(Record):
    """Proof that the verifier is stable."""

    reruns: int | None = field(integer(least=0), default=None)
    flake_rate: float | None = field(number(), default=None)
    report: str | None = field(relative_path, default=None)
    depends_on: tuple[str, ...] = field(listing(kinds.choice(*PERTURBATIONS)), default=())
    """The perturbations under which the verdict may change."""


class Review(Record):
    """Outcome of the review."""

    anti_cheat: str | None = field(some_text, default=None)
    instruction_alignment: str | None = field(some_text, default=None)
    reviewer: str | None = field(text, default=None)
    artifact: str | None = field(relative_path, default=None)


class Example(Record):
    """A solution whose reward is known."""

    name: str | None = field(some_text, default=None)
    expected_reward: float | None = field(number(), default=None)
    artifact: str | None = field(relative_path, default=None)


class JudgeAgreement(Record):
    """How far the verdicts of a judge on one state must agree; a plain number is `min_pairwise_agreement`."""

    required: bool = field(flag, default=False)
    sample_count: int | None = field(integer(least=0), default=None)
    min_pairwise_agreement: float | None = field(unit, default=None)

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> JudgeAgreement | None:
        number_alone = isinstance(value, (int, float, str)) and not isinstance(value, bool)
        return super().parse({"min_pairwise_agreement": value} if number_alone else value, path, problems)


class Calibration(Record):
    """Scores that solutions of known quality must reach."""

    no_op_reward_max: float | None = field(number(), default=None)
    known_bad_reward_max: float | None = field(number(), default=None)
    partial_solution_range: tuple[float, float] | None = field(unit_range, default=None)
    report: str | None = field(relative_path, default=None)
    human_or_reference_examples: tuple[Example, ...] = field(listing(kinds.record(Example)), default=())
    judge_agreement: JudgeAgreement | None = field(kinds.record(JudgeAgreement), default=None)


class Pin(Record):
    """A file and the SHA-256 it had when the evidence was taken."""

    path: str = field(relative_path)
    sha256: str | None = field(sha256, default=None)
    kind: str | None = field(kinds.choice(*ARTIFACT_KINDS), default=None)
    visibility: str | None = field(kinds.choice(*EVIDENCE_VISIBILITIES), default=None)
    mime_type: str | None = field(some_text, default=None)
    produced_by: str | None = field(some_text, default=None)
    description: str | None = field(text, default=None)


class Expectation(Record):
    """The score that a live case must reach."""

    reward_min: float | None = field(unit, default=None)
    reward_max: float | None = field(unit, default=None)
    reward_range: tuple[float, float] | None = field(unit_range, default=None)
    reward_equals: float | None = field(unit, default=None)
    flake_rate_max: float | None = field(unit, default=None)

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        if not values.keys() & {"reward_min", "reward_max", "reward_range", "reward_equals"}:
            problems.error("missing-key", path, f"{path} must bound the reward")


class LiveCase(Record):
    """One fresh verifier or oracle run."""

    name: str = field(some_text)
    type: str = field(kinds.choice(*CASE_TYPES))
    command: str | None = field(line, default=None)
    reruns: int = field(reruns, default=1)
    expect: Expectation = field(kinds.record(Expectation))

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        if values["type"] == "oracle" and "command" in values:
            where = join(path, "command")
            problems.error("conflicting-keys", where, f"{where} cannot be used in an oracle case")


def _cases(value: Any, path: str, problems: IssueLog) -> tuple[LiveCase, ...]:
    cases: tuple[LiveCase, ...] = listing(kinds.record(LiveCase), least=1).parse(value, path, problems)
    names = [case.name for case in cases]
    if len(set(names)) != len(names):
        raise InvalidValueError("has two cases with the same name")
    return cases


class Workspace(Record):
    """What a live case starts from."""

    source: str = field(kinds.choice("current-worktree"), default="current-worktree")
    target: str | None = field(
        kinds.matching(r"/(?!.*(?:^|/)\.\.(?:/|$)).+", "an absolute path below '/'"), default=None
    )


class LiveCalibration(Record):
    """Live cases made from the calibration report."""

    from_: str = field(kinds.choice("calibration.report"), default="calibration.report", key="from")
    reruns: int = field(reruns, default=1)
    flake_rate_max: float | None = field(unit, default=None)


class LiveLeaderboard(Record):
    """What a leaderboard requires of live evidence."""

    required: bool = field(flag, default=False)
    max_flake_rate: float = field(unit, default=0.0)


class AcceptanceLive(Record):
    """`evidence.acceptance_live`."""

    workspace: Workspace = field(kinds.record(Workspace), default=Workspace())
    cases: tuple[LiveCase, ...] = field(Kind(_cases, LiveCase, "list"), default=())
    calibration: LiveCalibration | None = field(kinds.record(LiveCalibration), default=None)
    leaderboard: LiveLeaderboard | None = field(kinds.record(LiveLeaderboard), default=None)
    report: str | None = field(relative_path, default=None)


class Evidence(Record):
    """The whole `evidence` mapping."""

    oracle_runs: OracleRuns | None = field(kinds.record(OracleRuns), default=None)
    verifier: VerifierStability | None = field(kinds.record(VerifierStability), default=None)
    review: Review | None = field(kinds.record(Review), default=None)
    calibration: Calibration | None = field(kinds.record(Calibration), default=None)
    trajectories: tuple[Pin, ...] = field(listing(kinds.record(Pin)), default=())
    artifacts: tuple[Pin, ...] = field(listing(kinds.record(Pin)), default=())
    pins: str | None = field(relative_path, default=None)
    """A JSON file with the SHA-256 of `task.md`, the verifier and the evidence, written by a command."""
    acceptance_live: AcceptanceLive | None = field(kinds.record(AcceptanceLive), default=None)
