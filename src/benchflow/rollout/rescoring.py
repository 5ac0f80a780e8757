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
from typing import Final

from benchflow.environment import Environment
from benchflow.errors import RuntimeFailure
from benchflow.files import staged_folder
from benchflow.files.redaction import NO_SECRETS, Redactor
from benchflow.record import (
    EarlierScore,
    RescoreNote,
    Result,
    RolloutFolder,
    StepRecord,
    VerifierPart,
    outcome_of,
    write_document,
)
from benchflow.record.codec import cleaned
from benchflow.record.layout import RESCORES
from benchflow.record.reward_log import write_rewards
from benchflow.record.trajectory import timestamp
from benchflow.rewards import Attributed, Verdict, attributed
from benchflow.rollout.phases.restore import restore_workspace
from benchflow.rollout.policies import gather_secrets
from benchflow.rollout.redaction import make_redactor, redact_folder
from benchflow.rollout.steps import NOT_REACHED, ends_task, step_record, total
from benchflow.sandbox.factory import prepare
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.task.package import TaskPackage
from benchflow.verifier import Verification, Verifier

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

    folder: RolloutFolder
    result: Result
    package: TaskPackage
    backend: SandboxBackend
    note: RescoreNote
    """Which verifier gives the new verdict."""
    base_image: str | None = None
    machine: Mapping[str, str] | None = field(default=None, repr=False)


@dataclass(slots=True)
class _Scoring:
    """One rescoring under way."""

    task: Rescore
    machine: Mapping[str, str]
    stage: RolloutFolder
    redactor: Redactor = NO_SECRETS
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    steps: list[StepRecord] = field(default_factory=list)
    verifier: VerifierPart | None = None

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
        before = {step.name: step for step in self.task.result.steps}
        stopped = False
        for step in view.steps:
            name = step.config.name
            if stopped:
                self.steps.append(StepRecord(name=name, outcome=NOT_REACHED))
                continue
            if not self.task.folder.step(name).workspace.is_file():
                message = f"Step {name} was not reached by the agent but would be now; run a new rollout to score it."
                raise NotRescoredError(message)
            checked = await self._verify(name)
            self.verifier = checked.record()
            old = before.get(name)
            agent, artifacts = (old.agent, old.artifacts) if old is not None else (None, ())
            record = step_record(name, checked, step.config.min_reward, agent=agent, artifacts=artifacts)
            self.steps.append(record)
            stopped = ends_task(record)
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
                await restore_workspace(environment.sandbox, task.folder.step(step).workspace)
            place = self.stage.step(step).verifier
            with closing(Verifier(environment, machine=self.machine, base_image=task.base_image)) as verifier:
                return await verifier.verify(place, rollout=task.folder.path, step=step)


def why_not(folder: RolloutFolder, result: Result, package: TaskPackage) -> str | None:
    """Why a rollout cannot be scored again, in one sentence; None when it can."""
    workspace = result.notes.workspace
    if workspace is not None and not workspace.kept:
        return f"Its workspace was not kept: {workspace.reason}"
    steps = package.view.steps
    if folder.step(steps[0].config.name if steps else None).workspace.is_file():
        return None
    if workspace is not None:
        return "Its workspace is missing from the rollout's folder."
    phase = result.error.phase if result.error is not None else "agent"
    return f"It has no workspace: it ended in phase {phase}, before the workspace was saved."


async def rescore_rollout(task: Rescore) -> Result:
    """Score a kept workspace by the verifier of the package as it is now, and write down what comes of it.

    Raises `NotRescoredError` when there is nothing to score; whatever else fails is an unscored result, which is
    written down when it `counts`. Nothing that was there is changed; when this is cancelled, nothing is added.
    """
    reason = why_not(task.folder, task.result, task.package)
    if reason is not None:
        raise NotRescoredError(reason)
    machine = dict(os.environ) if task.machine is None else task.machine
    place, number = task.folder.next_rescore()
    try:
        with staged_folder(place.path, sync=False) as stage:
            return await _score_into(RolloutFolder(stage), task, machine, number)
    except _TroubleError as trouble:
        return trouble.result


def counts(result: Result) -> bool:
    """Whether a new result is a verdict, which takes the place of the old one."""
    return result.error is None or result.error.category in COUNTED


async def _score_into(stage: RolloutFolder, task: Rescore, machine: Mapping[str, str], number: int) -> Result:
    scoring = _Scoring(task, machine, stage)
    try:
        verdict = await scoring.run()
    except Attributed as error:
        verdict = error.verdict
    result = _rescored(scoring, verdict, number)
    if not counts(result):
        raise _TroubleError(result)
    redact_folder(scoring.redactor, stage.path)
    write_rewards(stage.rewards, verdict, scoring.redactor)
    write_document(stage.result, result.to_dict(), sync=True)
    return result


def discard_unfinished(folder: RolloutFolder) -> None:
    """Remove what a killed rescoring left; for whoever knows that none is under way."""
    for path in folder.rescores.glob(".*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def _rescored(scoring: _Scoring, verdict: Verdict, number: int) -> Result:
    """The old result with the new score, and what it was before."""
    old, clean = scoring.task.result, scoring.redactor.text
    note = replace(
        scoring.task.note,
        number=number,
        folder=f"{RESCORES}/{number:04}",
        at=timestamp(),
        before=EarlierScore("unscored" if old.error is not None else "scored", old.reward),
    )
    return replace(
        old,
        outcome=outcome_of(verdict, clean),
        verifier=cleaned(scoring.verifier, clean) if scoring.verifier is not None else None,
        steps=tuple(cleaned(step, clean) for step in scoring.steps) or old.steps,
        notes=replace(old.notes, rescore=note),
    )
