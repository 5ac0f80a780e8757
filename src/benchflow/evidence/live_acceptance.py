"""`run_live`: every live case of a package, each run a new rollout in a new sandbox, and the report of them all.

An oracle case is the oracle agent on the task. Any other case starts from the environment, with the current worktree
staged into it where the package declares a workspace, runs its command as root, and is verified. A reference without
command and workspace is the oracle's solution. Trouble of the machine is tried again, and what remains is a failed run
without a reward.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

import anyio

from benchflow.agents.protocol import AgentContext, TurnResult
from benchflow.errors import BenchflowError, Issue
from benchflow.evidence.case_agents import CommandAgent
from benchflow.evidence.live_cases import LIVE, LiveSpec
from benchflow.evidence.staged_worktree import stage_worktree
from benchflow.evidence.standard_files import FOLDER
from benchflow.evidence.suitability import GENERATED_TYPES, examined_by, generated_types, suitability
from benchflow.evidence.trial_stage import Stage, StageOptions, Trial, open_stage
from benchflow.files.redaction import make_redactor
from benchflow.files.scratch import scratch
from benchflow.record.codec import cleaned
from benchflow.record.evidence import TOLERANCE, CaseReport, read_proof_report
from benchflow.record.live_report import (
    LIVE_REPORT_KIND,
    LIVE_REPORT_VERSION,
    LiveCaseRecord,
    LiveReport,
    LiveRun,
    LiveSuitability,
    LiveTask,
    LiveWorkspace,
    case_summary,
    summarized,
)
from benchflow.record.trajectory import timestamp
from benchflow.rollout.plan import ORACLE
from benchflow.rollout.policies import gather_secrets, judges
from benchflow.task.config.evidence_config import Evidence
from benchflow.task.package import TaskPackage, package_parts
from benchflow.verifier.strategy_run import INSTALL_FAILED

TRIES: Final = 3
"""How often a run is made whose sandbox, network or judge failed."""
_NOT_THE_PACKAGE: Final = frozenset({"infrastructure", "sandbox", "environment", "judge"})
_INSTALL_LOG: Final = "verifier/test-stdout.txt"
_NOP: Final = "nop"
_UNSEEN: Final = "workspace_not_carried_over"


@dataclass(frozen=True, slots=True)
class _Staged:
    folder: Path
    target: str
    sha256: str


class _LiveAgent(CommandAgent):
    """Puts the staged worktree in place, and runs the command of a case there."""

    def __init__(self, case: LiveCaseRecord, staged: _Staged | None) -> None:
        super().__init__("live", case.command or "")
        self._staged: Final = staged

    async def start(self, context: AgentContext) -> None:
        if self._staged is not None:
            await context.sandbox.upload(self._staged.folder, self._staged.target)
            context = replace(context, workdir=self._staged.target)
        await super().start(context)

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        return await super().prompt(text, timeout=timeout) if self._command else TurnResult("end_turn")


async def run_live(
    package: TaskPackage, spec: LiveSpec, options: StageOptions, *, worktree: Path | None = None
) -> tuple[LiveReport, tuple[Issue, ...]]:
    """Run all cases; the report, and what failed. `worktree` is what a declared workspace holds.

    Raises what refuses a package before anything starts.
    """
    with ExitStack() as kept:
        staged = None
        if spec.target is not None:
            folder = kept.enter_context(scratch("worktree-")) / "tree"
            sha256 = await anyio.to_thread.run_sync(stage_worktree, worktree or Path.cwd(), folder)
            staged = _Staged(folder, spec.target, sha256)
        async with open_stage(package, options) as stage:
            runs = await _run_all(stage, spec, staged)
            sandbox = stage.backend.name
    hidden = make_redactor(gather_secrets(package.view, os.environ, ()).redacted)
    runs = {name: tuple(cleaned(run, hidden.text).sealed() for run in found) for name, found in runs.items()}
    reports = [_case_report(case, runs[case.name]) for case in spec.cases]
    report = LiveReport(
        kind=LIVE_REPORT_KIND,
        schema_version=LIVE_REPORT_VERSION,
        benchflow_version=version("benchcube"),
        generated_at=timestamp(),
        sandbox=sandbox,
        task=live_task(package),
        workspace=LiveWorkspace(
            "current-worktree" if staged is not None else None, spec.target, staged.sha256 if staged else None
        ),
        spec_sha256=spec.sha256,
        cases=tuple(cleaned(case, hidden.text) for case in spec.cases),
        case_summaries=tuple(
            case_summary(cleaned(case, hidden.text), found, runs[case.name])
            for case, found in zip(spec.cases, reports, strict=True)
        ),
        leaderboard_suitability=_verdict(package, spec, reports),
        summary=summarized([run for found in runs.values() for run in found]),
        runs=tuple(run for found in runs.values() for run in found),
    )
    return report, (*_case_issues(spec, report, runs), *_verdict_issues(report))


def live_task(package: TaskPackage) -> LiveTask:
    """The hashes that bind a report to its package."""
    hashes = package.files.hashes()
    oracle = next((hashes[name] for name in ("oracle/solve.sh", "solution/solve.sh") if name in hashes), None)
    verifier = next((hashes[name] for name in ("verifier/test.sh", "tests/test.sh") if name in hashes), None)
    name = package.path.absolute().name
    return LiveTask(name, hashes.get("task.md"), oracle, verifier, package.content_digest)


async def _run_all(stage: Stage, spec: LiveSpec, staged: _Staged | None) -> Mapping[str, Sequence[LiveRun]]:
    found: dict[tuple[str, int], LiveRun] = {}

    async def one(case: LiveCaseRecord, number: int) -> None:
        for _ in range(TRIES):
            trial = await _play(stage, case, staged)
            error = trial.result.error
            if error is None or error.category not in _NOT_THE_PACKAGE:
                break
        found[case.name, number] = _judged(case, number, trial, staged)

    async with anyio.create_task_group() as group:
        for case in spec.cases:
            for number in range(1, case.reruns + 1):
                group.start_soon(one, case, number)
    return {case.name: [found[case.name, number] for number in range(1, case.reruns + 1)] for case in spec.cases}


def _by_oracle(case: LiveCaseRecord, staged: _Staged | None) -> bool:
    return case.type == ORACLE or (case.type == "reference" and case.command is None and staged is None)


async def _play(stage: Stage, case: LiveCaseRecord, staged: _Staged | None) -> Trial:
    if _by_oracle(case, staged):
        return await stage.run(ORACLE)
    if case.command is None and staged is None:
        return await stage.run(_NOP)
    return await stage.run(lambda: _LiveAgent(case, staged), name="live")


def _judged(case: LiveCaseRecord, number: int, trial: Trial, staged: _Staged | None) -> LiveRun:
    """One run, by its rollout."""
    run = LiveRun(case.name, case.type, case.source, number, None, "failed", None, None, None, None, ())
    error, agent = trial.result.error, trial.result.agent
    if error is not None:
        install = error.code == "network-failed" or INSTALL_FAILED in error.message
        return replace(
            run,
            error="The verifier could not install what it needs." if install else error.message,
            verifier_error_category=error.category,
            diagnostic_code="dependency_install_failed" if install else error.code.replace("-", "_"),
            artifact_hint=_INSTALL_LOG if install else None,
        )
    if agent.timed_out or agent.exit_code not in (0, None):
        who = "oracle" if _by_oracle(case, staged) else "command"
        code = "oracle_failed" if who == "oracle" else "setup_command_failed"
        how = "exceeded its time limit" if agent.timed_out else f"exited with code {agent.exit_code}"
        return replace(run, error=f"The {who} {how}.", diagnostic_code=code)
    reward = trial.reward
    if reward is None or not 0 <= reward <= 1:
        shown = "none" if reward is None else f"{reward:g}"
        return replace(run, error=f"The reward must be from 0 to 1, and is {shown}.", diagnostic_code="invalid_reward")
    missed = case.expect.expected().missed(reward)
    unseen = missed and _withheld(trial, staged)
    return replace(
        run,
        reward=reward,
        status="failed" if missed else "passed",
        diagnostic_code=_UNSEEN if unseen else None,
        expectation_issues=tuple(missed),
    )


def _withheld(trial: Trial, staged: _Staged | None) -> bool:
    """Whether the verifier did not see the staged worktree, because the package does not carry that folder over."""
    verifier = trial.result.verifier
    if staged is None or verifier is None:
        return False
    below = f"{staged.target.rstrip('/')}/"
    return any(f"{change.path}/".startswith(below) for change in verifier.not_carried_over.changes)


def _case_report(case: LiveCaseRecord, runs: Sequence[LiveRun]) -> CaseReport:
    """The case with its verdict: a tolerated flake rate decides, otherwise every run has to pass."""
    failed = [run for run in runs if run.status == "failed"]
    tolerated = case.expect.flake_rate_max or 0.0
    passed = len(failed) / len(runs) <= tolerated + TOLERANCE
    reasons = tuple(_why(run) for run in failed)
    rewards = tuple(run.reward for run in runs)
    return CaseReport(case.name, case.type, len(runs), rewards, case.expect.expected(), passed, case.source, reasons)


def _why(run: LiveRun) -> str:
    said = run.error or "; ".join(run.expectation_issues)
    where = f" See {run.artifact_hint} of the rollout." if run.artifact_hint is not None else ""
    if run.diagnostic_code == _UNSEEN:
        where = "; the verifier did not see the staged worktree, because the package does not carry that folder over"
    return f"{said}{where}"


def _case_issues(spec: LiveSpec, report: LiveReport, runs: Mapping[str, Sequence[LiveRun]]) -> list[Issue]:
    issues: list[Issue] = []
    for case, summary in zip(spec.cases, report.case_summaries, strict=True):
        if summary.status == "passed":
            continue
        file, path = spec.paths[case.name]
        failed = [run for run in runs[case.name] if run.status == "failed"]
        if case.expect.flake_rate_max is not None:
            rate = f"{len(failed)} of {summary.total_runs} runs failed"
            allowed = f"a flake rate of at most {case.expect.flake_rate_max:g} is allowed"
            message = f"The live case '{summary.case}': {rate}; {allowed}. The first failure: {_why(failed[0])}"
            issues.append(Issue("live-case-failed", "error", path, message, file))
            continue
        for run in failed:
            message = f"The live case '{summary.case}', run {run.run_index}: {_why(run)}"
            issues.append(Issue("live-case-failed", "error", path, message, file))
    return issues


def _verdict(package: TaskPackage, spec: LiveSpec, reports: Sequence[CaseReport]) -> LiveSuitability:
    board = spec.leaderboard
    found = suitability(
        reports,
        max_flake_rate=board.max_flake_rate,
        examined=_examined(package, spec.evidence),
        not_applicable=() if _has_judge(package) else ("judge-agreement",),
    )
    return LiveSuitability(
        found.status,
        board.required,
        board.max_flake_rate,
        GENERATED_TYPES,
        generated_types(reports),
        found.checks,
        found.issues,
        found.unchecked,
    )


def _has_judge(package: TaskPackage) -> bool:
    steps: list[str | None] = [step.config.name for step in package.view.steps]
    try:
        return bool(judges(package.view, os.environ, steps or [None]))
    except BenchflowError:  # a judge that is not set up here
        return True


def _examined(package: TaskPackage, evidence: Evidence) -> frozenset[str]:
    """What the package shows beside live runs: a proof counts as long as it is about the package as it is."""
    proof = read_proof_report(package.path / FOLDER)
    holds = proof is not None and proof.bound is not None and proof.bound.planes == package_parts(package)
    examined = set(examined_by(proof)) if proof is not None and holds else set[str]()
    if evidence.review is not None and evidence.review.instruction_alignment == "passed":
        examined.add("instruction-review")
    examples = evidence.calibration.human_or_reference_examples if evidence.calibration is not None else ()
    if any("human" in (example.name or "").lower() for example in examples):
        examined.add("human-baseline")
    if package.view.config.verifier.network_mode == "no-network":
        examined.add("network-off")
    return frozenset(examined)


def _verdict_issues(report: LiveReport) -> list[Issue]:
    verdict = report.leaderboard_suitability
    if not verdict.required:
        return []
    path = f"{LIVE}.leaderboard.required"
    return [
        Issue("live-unsuitable", "error", path, f"Not suitable for a leaderboard: {issue}", "task.md")
        for issue in verdict.issues
    ]
