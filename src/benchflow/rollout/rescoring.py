"""One finished rollout scored again: its kept workspace in a new environment, the verifier as it is now, no agent.

What was there stays: the new verdict is written beside it, below `rescores/<number>/`, and returned as a result that
differs from the old one in its score only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchflow.environment import Environment
from benchflow.errors import RuntimeFailure
from benchflow.files import staged_folder
from benchflow.files.redaction import NO_SECRETS, Redactor
from benchflow.rewards import Attributed, Scored, Unscored, Verdict, attributed
from benchflow.rollout.draft import RESULT, write_document
from benchflow.rollout.lines import JsonLines
from benchflow.rollout.phases.keep import ARCHIVE
from benchflow.rollout.phases.restore import restore_workspace
from benchflow.rollout.policies import gather_secrets
from benchflow.rollout.record import ErrorRecord, Result
from benchflow.rollout.redaction import make_redactor, redact_folder
from benchflow.rollout.reward_events import reward_lines
from benchflow.rollout.steps import StepRecord, passes, total
from benchflow.rollout.trajectory import timestamp
from benchflow.sandbox.factory import prepare
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.task.package import TaskPackage
from benchflow.verifier import Verification, Verifier

RESCORES: Final = "rescores"
COUNTED: Final = frozenset({"verifier", "package"})
"""Errors that are the verifier's own answer. All others are trouble on the way to it, and leave the old verdict."""
_SCOPES: Final = ("environment", "verifier", "judge")


class NotRescoredError(RuntimeFailure):
    """Why a rollout cannot be scored again, in one sentence."""

    default_code = "not-rescored"


class _TroubleError(Exception):
    """Something else than the verifier failed: nothing of this is kept."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True, slots=True)
class Rescore:
    """A finished rollout, and what to score it again with."""

    folder: Path
    result: Result
    package: TaskPackage
    backend: SandboxBackend
    base_image: str | None = None
    machine: Mapping[str, str] | None = field(default=None, repr=False)
    note: Mapping[str, Any] = field(default_factory=dict)
    """What the record of the new verdict says besides: which verifier gave it, for instance."""


@dataclass(slots=True)
class _Scoring:
    """One rescoring under way."""

    task: Rescore
    machine: Mapping[str, str]
    stage: Path
    redactor: Redactor = NO_SECRETS
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    steps: list[StepRecord] = field(default_factory=list)
    verifier: dict[str, Any] | None = None

    async def run(self) -> Verdict:
        view = self.task.package.view
        with attributed("package", "plan"):
            secrets = gather_secrets(view, self.machine, _SCOPES)
        self.redactor, self.secrets = make_redactor(secrets.redacted), secrets.of("environment")
        return await (self._several() if view.steps else self._single())

    async def _single(self) -> Verdict:
        checked = await self._verify(None)
        self.verifier = checked.record()
        return checked.verdict

    async def _several(self) -> Verdict:
        """Step by step, as a rollout does; what the agent never did cannot be scored."""
        view = self.task.package.view
        before = {step["name"]: step for step in self.task.result.extra.get("steps", [])}
        stopped = False
        for step in view.steps:
            name = step.config.name
            if stopped:
                self.steps.append(StepRecord(name, "not-reached"))
                continue
            if not archive_of(self.task.folder, name).is_file():
                message = f"Step {name} was not reached by the agent and would be now; only a new rollout can tell."
                raise NotRescoredError(message)
            checked = await self._verify(name)
            self.verifier = checked.record()
            record = _step_record(name, checked, passes_at=step.config.min_reward, before=before.get(name, {}))
            self.steps.append(record)
            stopped = record.status == "unscored" or record.passed is False
        return total(self.steps, view.config.multi_step_reward_strategy)

    async def _verify(self, step: str | None) -> Verification:
        task = self.task
        with attributed("environment", "environment"):
            preparation = await prepare(task.package, task.backend, base_image=task.base_image, machine=self.machine)
            spec = replace(preparation.spec, env={**preparation.spec.env, **self.secrets})
            environment = Environment(task.backend, replace(preparation, spec=spec))
            await environment.start()
        async with environment:
            with attributed("sandbox", "environment"):
                await restore_workspace(environment.sandbox, archive_of(task.folder, step))
            place = self.stage / "verifier" if step is None else self.stage / "steps" / step / "verifier"
            with closing(Verifier(environment, machine=self.machine, base_image=task.base_image)) as verifier:
                return await verifier.verify(place, rollout=task.folder, step=step)


def archive_of(folder: Path, step: str | None = None) -> Path:
    """Where the workspace of a rollout, or of one of its steps, is kept."""
    return folder / ARCHIVE if step is None else folder / "steps" / step / ARCHIVE


def why_not(folder: Path, result: Result, package: TaskPackage) -> str | None:
    """Why a rollout cannot be scored again, in one sentence; None when it can."""
    kept = result.extra.get("workspace")
    if kept is not None and not kept["kept"]:
        return f"Its workspace was not kept: {kept['reason']}"
    steps = package.view.steps
    if archive_of(folder, steps[0].config.name if steps else None).is_file():
        return None
    if kept is not None:
        return "Its workspace is gone from the rollout's folder."
    phase = result.error.phase if result.error is not None else "agent"
    return f"It has no workspace: it ended in phase {phase}, before the agent's work was kept."


async def rescore_rollout(task: Rescore) -> Result:
    """Score a kept workspace by the verifier of the package as it is now, and write down what comes of it.

    Raises `NotRescoredError` when there is nothing to score; whatever else fails is an unscored result, which is
    written down when it `counts`. Nothing that was there is changed; when this is cancelled, nothing is added.
    """
    reason = why_not(task.folder, task.result, task.package)
    if reason is not None:
        raise NotRescoredError(reason)
    machine = dict(os.environ) if task.machine is None else task.machine
    place, number = _next_place(task.folder)
    try:
        with staged_folder(place, sync=False) as stage:
            return await _score_into(stage, task, machine, number)
    except _TroubleError as trouble:
        return trouble.result


def counts(result: Result) -> bool:
    """Whether a new result is a verdict, which takes the place of the old one."""
    return result.error is None or result.error.category in COUNTED


async def _score_into(stage: Path, task: Rescore, machine: Mapping[str, str], number: int) -> Result:
    scoring = _Scoring(task, machine, stage)
    try:
        verdict = await scoring.run()
    except Attributed as error:
        verdict = error.verdict
    redactor = scoring.redactor
    result = _rescored(task, verdict, scoring.steps, redactor.data(scoring.verifier), number, redactor)
    if not counts(result):
        raise _TroubleError(result)
    redact_folder(redactor, stage)
    _reward_events(stage / "rewards.jsonl", verdict, redactor)
    write_document(stage / RESULT, result.to_dict(), sync=True)
    return result


def latest_record(folder: Path) -> Path:
    """The folder of a rollout's newest verdict: one of its rescores, else the rollout's own."""
    done = sorted(path for path in (folder / RESCORES).glob("[0-9]*") if (path / RESULT).is_file())
    return done[-1] if done else folder


def discard_unfinished(folder: Path) -> None:
    """Remove what a killed rescoring left; for whoever knows that none is under way."""
    for path in (folder / RESCORES).glob(".*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def _next_place(folder: Path) -> tuple[Path, int]:
    taken = [int(path.name) for path in (folder / RESCORES).glob("[0-9]*") if path.name.isdigit()]
    number = max(taken, default=0) + 1
    return folder / RESCORES / f"{number:04}", number


def _step_record(
    name: str, checked: Verification, *, passes_at: float | Mapping[str, float] | None, before: Mapping[str, Any]
) -> StepRecord:
    verdict = checked.verdict
    record = verdict.record()
    return StepRecord(
        name=name,
        status="scored" if isinstance(verdict, Scored) else "unscored",
        reward=record["reward"],
        rewards=record["rewards"],
        passed=passes(passes_at, verdict) if isinstance(verdict, Scored) else None,
        agent=before.get("agent"),
        verifier={"strategy": checked.strategy, "exit_code": checked.exit_code},
        error=record["error"],
        artifacts=before.get("artifacts", ()),
    )


def _rescored(
    task: Rescore,
    verdict: Verdict,
    steps: list[StepRecord],
    verifier: dict[str, Any] | None,
    number: int,
    redactor: Redactor,
) -> Result:
    """The old result with the new score, and what it was before."""
    old = task.result
    record = verdict.record()
    error = None
    if isinstance(verdict, Unscored):
        error = ErrorRecord(verdict.category, verdict.code, verdict.phase, redactor.text(verdict.reason))
    before = {"status": old.status, "reward": old.reward}
    rescore = {"number": number, "folder": f"{RESCORES}/{number:04}", "at": timestamp(), **task.note, "before": before}
    extra = {**old.extra, "rescore": rescore}
    if steps:
        extra["steps"] = redactor.data([step.record() for step in steps])
    return replace(
        old,
        status=verdict.status,
        reward=record["reward"],
        rewards=record["rewards"],
        error=error,
        verifier=verifier,
        extra=extra,
    )


def _reward_events(path: Path, verdict: Verdict, redactor: Redactor) -> None:
    if not isinstance(verdict, Scored):
        return
    lines = JsonLines(path)
    try:
        for line in reward_lines(verdict, step=None, final=True):
            lines.append(redactor.data(line))
    finally:
        lines.close()
