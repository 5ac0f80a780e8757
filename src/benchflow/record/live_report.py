"""The report of `bench tasks check --level acceptance-live`: every live run, the expected rewards, the verdict.

The document has the fields of the standard's `acceptance-live-report`. Each run carries the SHA-256 of its own record,
so that a changed number shows. A run without a score has no reward: it is null, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Self

from benchflow.errors import Category
from benchflow.files.strict_json import canonical_sha256
from benchflow.record.codec import plain, read
from benchflow.record.evidence import CaseReport, CaseSource, CaseType, Expected, SuitabilityStatus

LIVE_REPORT_KIND: Final = "acceptance-live-report"
LIVE_REPORT_VERSION: Final = "1.0"
RunStatus = Literal["passed", "failed"]


@dataclass(frozen=True, slots=True)
class LiveExpect:
    """The bounds of a case; all of them are written, null where there is none."""

    reward_min: float | None
    reward_max: float | None
    reward_range: tuple[float, float] | None
    reward_equals: float | None
    flake_rate_max: float | None

    def expected(self) -> Expected:
        return Expected(**asdict(self))


@dataclass(frozen=True, slots=True)
class LiveCaseRecord:
    """One case as it was asked for."""

    name: str
    type: CaseType
    source: CaseSource
    command: str | None
    reruns: int
    expect: LiveExpect


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run of a case."""

    case: str
    type: CaseType
    source: CaseSource
    run_index: int
    """Counts from 1 in each case."""
    reward: float | None
    status: RunStatus
    error: str | None
    verifier_error_category: Category | None
    diagnostic_code: str | None
    artifact_hint: str | None
    """The file of a rollout that holds the cause."""
    expectation_issues: tuple[str, ...]
    sha256: str = ""
    """Of the record without this key."""

    def sealed(self) -> Self:
        content = plain(replace(self, sha256=""))
        return replace(self, sha256=canonical_sha256(content))


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The runs of the whole report."""

    total_runs: int
    passed_runs: int
    failed_runs: int
    flake_rate: float
    min_reward: float | None
    max_reward: float | None


@dataclass(frozen=True, slots=True)
class LiveCaseSummary:
    """The runs of one case."""

    case: str
    type: CaseType
    source: CaseSource
    total_runs: int
    passed_runs: int
    failed_runs: int
    flake_rate: float
    flake_rate_max: float | None
    min_reward: float | None
    max_reward: float | None
    status: RunStatus


@dataclass(frozen=True, slots=True)
class LiveSuitability:
    """The verdict for leaderboards."""

    status: SuitabilityStatus
    required: bool
    max_flake_rate: float
    required_generated_calibration_types: tuple[str, ...]
    observed_generated_calibration_types: tuple[str, ...]
    checks: Mapping[str, bool]
    issues: tuple[str, ...]
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveTask:
    """Which package the report is about."""

    path: str
    task_md_sha256: str | None
    oracle_sha256: str | None
    """Of `solve.sh`; null where there is none."""
    verifier_sha256: str | None
    """Of `test.sh`; null where there is none."""
    content_digest: str | None = None
    """Of the package without its evidence: any other change makes the report stale."""


@dataclass(frozen=True, slots=True)
class LiveWorkspace:
    """What was staged into the environment; all null if nothing was."""

    source: str | None
    target: str | None
    staged_tree_sha256: str | None


@dataclass(frozen=True, slots=True)
class LiveReport:
    """The whole document."""

    kind: str
    schema_version: str
    benchflow_version: str
    generated_at: str
    sandbox: str
    task: LiveTask
    workspace: LiveWorkspace
    spec_sha256: str
    cases: tuple[LiveCaseRecord, ...]
    case_summaries: tuple[LiveCaseSummary, ...]
    leaderboard_suitability: LiveSuitability
    summary: RunSummary
    runs: tuple[LiveRun, ...]

    def to_text(self) -> str:
        return json.dumps(plain(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """Raises `ValueError` when the document is not such a report."""
        if not isinstance(document, dict) or document.get("kind") != LIVE_REPORT_KIND:
            raise ValueError(f"not an {LIVE_REPORT_KIND}")
        return read(cls, document)


def summarized(runs: Sequence[LiveRun]) -> RunSummary:
    """The numbers of some runs."""
    rewards = [run.reward for run in runs if run.reward is not None]
    failed = sum(run.status == "failed" for run in runs)
    rate = failed / len(runs) if runs else 0.0
    least, most = min(rewards, default=None), max(rewards, default=None)
    return RunSummary(len(runs), len(runs) - failed, failed, rate, least, most)


def case_summary(case: LiveCaseRecord, report: CaseReport, runs: Sequence[LiveRun]) -> LiveCaseSummary:
    """The numbers of the runs of one case, and whether it passed."""
    counted = summarized(runs)
    return LiveCaseSummary(
        case=case.name,
        type=case.type,
        source=case.source,
        total_runs=counted.total_runs,
        passed_runs=counted.passed_runs,
        failed_runs=counted.failed_runs,
        flake_rate=counted.flake_rate,
        flake_rate_max=case.expect.flake_rate_max,
        min_reward=counted.min_reward,
        max_reward=counted.max_reward,
        status="passed" if report.passed else "failed",
    )
