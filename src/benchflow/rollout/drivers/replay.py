"""Replay: a finished rollout is scored again, its kept workspaces in new environments, with the current verifier.

No agent runs. What was there stays: the new verdict is written beside it, below `rescores/<number>/`, and returned as a
result that differs from the old one in its score only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from benchflow.environment import Environment
from benchflow.errors import PackageError, RuntimeFailure
from benchflow.files import staged_folder
from benchflow.files.redaction import NO_SECRETS, Redactor, make_redactor, redact_folder
from benchflow.record import RescoreNote, Result, RolloutFolder, write_document
from benchflow.record.layout import RESCORES
from benchflow.record.trajectory import write_rewards
from benchflow.rewards import Attributed, Verdict, attributed
from benchflow.rollout.course import Checkpoint, Course, Past
from benchflow.rollout.lifecycle import Driver, rescored
from benchflow.rollout.phases.restore import restore_workspace
from benchflow.rollout.policies import gather_secrets
from benchflow.sandbox.factory import ChosenIsolation, prepare, taken_package
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.task.package import TaskPackage
from benchflow.verifier import Verifier

COUNTED: Final = frozenset({"verifier", "package"})
"""Errors that are the verifier's own answer. All others are failures before it runs, and keep the old verdict."""
_SCOPES: Final = ("environment", "verifier", "judge")


class NotRescoredError(RuntimeFailure):
    """Why a rollout cannot be scored again, in one sentence."""

    default_code = "not-rescored"


class _TroubleError(Exception):
    """Something other than the verifier failed: nothing is kept."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True, slots=True)
class Rescore:
    """A finished rollout, and how to score it again."""

    folder: RolloutFolder
    result: Result
    package: TaskPackage
    backend: SandboxBackend
    note: RescoreNote
    """Which verifier gives the new verdict."""
    base_image: str | None = None
    chosen: Mapping[str | None, ChosenIsolation] = field(default_factory=dict)
    """The isolation of verifiers, where the user or a proof chose it."""
    machine: Mapping[str, str] | None = field(default=None, repr=False)


class ReplayDriver(Driver):
    """Takes each step of a rollout by restoring its kept workspace; a step that was never done cannot be scored."""

    def __init__(self, task: Rescore, stage: RolloutFolder) -> None:
        """What verifiers leave goes below `stage`."""
        super().__init__(Course.of(task.package.view))
        self.redactor: Redactor = NO_SECRETS
        self._task: Final = task
        self._stage: Final = stage
        self._machine: Final = dict(os.environ) if task.machine is None else task.machine
        self._env: Mapping[str, str] = {}
        """Secrets of the environment."""
        self._before: Final = {step.name: step for step in task.result.steps}

    async def walk(self) -> Verdict:
        with attributed("package", "plan"):
            secrets = gather_secrets(self._task.package.view, self._machine, _SCOPES)
        self.redactor, self._env = make_redactor(secrets.redacted), secrets.of("environment")
        return await super().walk()

    async def take_step(self, step: Checkpoint) -> Past:
        task, name = self._task, step.name
        kept = task.folder.step(name).workspace
        if not kept.is_file():
            message = f"Step {name} was not reached by the agent but would be now; run a new rollout to score it."
            raise NotRescoredError(message)
        async with await self._environment() as environment:
            with attributed("sandbox", "environment"):
                await restore_workspace(environment.sandbox, kept)
            verifier = Verifier(environment, machine=self._machine, base_image=task.base_image)
            place = self._stage.step(name).verifier
            checked = await verifier.verify(place, rollout=task.folder.path, step=name)
        before = self._before.get(name or "")
        agent, artifacts = (before.agent, before.artifacts) if before is not None else (None, ())
        return Past(checked.verdict, checked.record(), agent, artifacts)

    async def _environment(self) -> Environment:
        task = self._task
        with attributed("environment", "environment"):
            preparation = await prepare(task.package, task.backend, base_image=task.base_image, machine=self._machine)
            spec = replace(preparation.spec, env={**preparation.spec.env, **self._env})
            environment = Environment(task.backend, replace(preparation, spec=spec, chosen=task.chosen))
            await environment.start()
            return environment


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


def counts(result: Result) -> bool:
    """Whether a new result is a verdict, which takes the place of the old one."""
    return result.error is None or result.error.category in COUNTED


async def rescore_rollout(task: Rescore) -> Result:
    """Score a kept workspace by the verifier of the package as it is now, and write down the result.

    Raises `NotRescoredError` when there is nothing to score; whatever else fails is an unscored result, which is
    written down when it `counts`. Nothing that was there is changed; when this is cancelled, nothing is added.
    """
    reason = why_not(task.folder, task.result, task.package)
    if reason is not None:
        raise NotRescoredError(reason)
    try:
        task = replace(task, package=await taken_package(task.package))
    except PackageError as error:
        raise NotRescoredError(str(error)) from error
    place, number = task.folder.next_rescore()
    note = replace(task.note, number=number, folder=f"{RESCORES}/{number:04}")
    try:
        with staged_folder(place.path, sync=False) as stage:
            return await _score_into(RolloutFolder(stage), task, note)
    except _TroubleError as failed:
        return failed.result


async def _score_into(stage: RolloutFolder, task: Rescore, note: RescoreNote) -> Result:
    driver = ReplayDriver(task, stage)
    try:
        verdict = await driver.walk()
    except Attributed as error:
        verdict = error.verdict
    result = rescored(task.result, driver.course, verdict, note, driver.redactor)
    if not counts(result):
        raise _TroubleError(result)
    redact_folder(driver.redactor, stage.path)
    write_rewards(stage.rewards, verdict, driver.redactor)
    write_document(stage.result, result.to_dict(), sync=True)
    return result


def discard_unfinished(folder: RolloutFolder) -> None:
    """Remove what a killed rescoring left; call it only if none is running."""
    for path in folder.rescores.glob(".*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
