"""`PackageTask`: a package, driven step by step, and the config that is sent to a worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import Field, PrivateAttr

from benchflow.environment import Environment
from benchflow.errors import RuntimeFailure, UsageError
from benchflow.gym.driver import ActionDriver
from benchflow.gym.episode_calls import CallSettings
from benchflow.gym.game_driver import GameDriver
from benchflow.gym.located import PLACES, PackageName
from benchflow.gym.sandbox_container import LOOP
from benchflow.gym.shared import BACKENDS
from benchflow.gym.tool import NEXT_STEP, REPLY, PackageTool, PackageToolConfig
from benchflow.models.gateway.call_limits import NO_CALL_LIMITS, CallLimits
from benchflow.models.gateway.shared_gateway import SharedGateway
from benchflow.record.codec import plain
from benchflow.rewards import Attributed, Scored, Unscored
from benchflow.sandbox.factory import AUTO
from benchflow.sandbox.pulling import PullPolicy, PullSettings
from benchflow.task.config.interaction import ARENA
from benchflow.task.package import TaskPackage
from benchflow.task.taken import COPIES
from cube.container import ContainerBackend
from cube.core import Action, ActionSchema, Content, Observation, StructuredContent
from cube.task import RuntimeContext, Task, TaskConfig, TaskMetadata
from cube.task import UnscoredError as GymUnscoredError


class UnscoredError(RuntimeFailure, GymUnscoredError):
    """A verification that ended without a score: no reward exists, and none is invented."""

    def __init__(self, verdict: Unscored) -> None:
        RuntimeFailure.__init__(
            self, f"{verdict.category}/{verdict.code} in phase {verdict.phase}: {verdict.reason}", code=verdict.code
        )
        self.verdict = verdict
        self.unscored = {key: str(getattr(verdict, key)) for key in ("category", "phase", "code", "reason")}


Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class PackageTaskMetadata(TaskMetadata):
    """A package by its content when it was listed. Where it is on a machine is not a part of it (`located`)."""

    bundle: Digest | None = None
    """The digest of the file with packages that it was listed from; None for a folder."""
    inside: str
    """Its path in that file, or below the folder that was listed: where to look first."""
    digest: Digest
    content_digest: Digest
    """What a worker must have: everything but the package's evidence."""
    steps: tuple[str, ...] = ()
    """The names of its steps, when it has several."""
    arena: bool = False
    """Whether it is a game with live peers, of which the first participant is played here."""


class PackageTask(Task[PackageTaskMetadata]):
    """A package, driven step by step."""

    sandbox: str = AUTO
    base_image: str | None = None
    pull: PullPolicy = "missing"
    """When images are pulled."""
    seed: int | None = None
    """What the programs of the package find in `BENCHCUBE_SEED`; without it the variable is not set."""
    records: str | None = None
    """A folder in which calls of models by the package's judges are recorded, one folder for each episode."""
    call_limits: CallLimits | None = None
    """Limits on those calls, for each episode with its forks."""
    benchmark_limits: CallLimits | None = None
    """Limits for all episodes of the live benchmark that made the task."""
    participants: dict[str, str] = Field(default_factory=dict)
    """Who plays the other roles of an arena; the others are played by what the document says."""

    _driver: ActionDriver | None = PrivateAttr(default=None)

    @property
    def driver(self) -> ActionDriver:
        """The task since the last reset."""
        if self._driver is None:
            raise RuntimeError(f"Task '{self.id}' has not been reset: there is no sandbox yet.")
        return self._driver

    @property
    def environment(self) -> Environment:
        """The running sandbox with its services."""
        return self.driver.environment

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        """Start a new sandbox; the first observation is the package's prompt, or that of its first step.

        `UnscoredError` if its benchmark has used up its limits on calls of models.
        """
        self._stop()
        package = named_package(self.metadata)
        try:
            self._connect(LOOP.run(lambda: self._start(package)))
        except Attributed as error:
            raise UnscoredError(error.verdict) from error
        self.tool.reset()
        info = {"sandbox": plain(self.environment.record()), "seed": self.seed}
        return Observation.from_text(self.driver.prompt), info

    def evaluate(self, obs: Observation | None = None) -> tuple[float, dict[str, Any]]:
        """Verify on a fork; raises `UnscoredError` if there is no score."""
        del obs
        course = LOOP.run(self.driver.evaluate)
        verdict = course.total()
        if not isinstance(verdict, Scored):
            raise UnscoredError(verdict)
        steps = plain(course.records())
        info = {"rewards": dict(verdict.metrics), "verifier": plain(course.past[-1].verifier)}
        return verdict.reward, {**info, **({"steps": steps} if steps else {})}

    def finished(self, obs: Observation | None = None) -> bool:
        """Whether a step ended the task before its last step."""
        del obs
        return self._driver is not None and self._driver.course.over

    def filter_actions(self, actions: list[ActionSchema]) -> list[ActionSchema]:
        """The actions that the package allows; `next_step` is offered if there is a next step."""
        driver, tool = self._driver, self.tool
        goes_on = bool(self.metadata.steps) if driver is None else driver.course.following is not None
        forbidden = tool.forbids if isinstance(tool, PackageTool) else None
        missing = {*(() if goes_on else (NEXT_STEP,)), *(() if self.metadata.arena else (REPLY,))}
        return [
            action
            for action in actions
            if action.name not in missing and not (forbidden is not None and forbidden(action.name))
        ]

    def _refused(self, action: Action, problem: str) -> Observation:
        """What the package forbids, or a next step where there is none, is refused in words of their own."""
        tool = self.tool
        known = tool.refusal(action.name) if isinstance(tool, PackageTool) else None
        return known or super()._refused(action, problem)

    def get_privileged_info(self) -> Content:
        """The oracle's files of the current step, for debug agents."""
        view = COPIES.take(named_package(self.metadata)).view
        number = self._driver.step.index if self._driver is not None else 0
        folder = (view.steps[number].oracle_dir if view.steps else None) or view.oracle_dir
        files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
        texts = {str(path.relative_to(folder or path)): path.read_text(errors="replace") for path in files}
        return StructuredContent(data={"oracle": texts})

    def get_status(self) -> str:
        if self._driver is None:
            return "not started"
        step = self._driver.step.name
        where = f"running in {self.environment.backend.name}"
        return where if step is None else f"{where}, step {step}"

    def fork(self) -> Self:
        """An independent copy of the task in its current state; processes are not copied."""
        copy = type(self)(**{name: getattr(self, name) for name in type(self).model_fields})
        copy._connect(LOOP.run(self.driver.fork))
        return copy

    def close(self) -> None:
        try:
            self._stop()
        finally:
            super().close()

    async def _start(self, package: TaskPackage) -> ActionDriver:
        backend = await BACKENDS.get(package, self.sandbox, self.base_image)
        backend.pulling = PullSettings(self.pull)
        settings: dict[str, Any] = {"base_image": self.base_image, "seed": self.seed}
        settings["calls"] = call_settings(self, self.runtime_context)
        if package.view.mode == ARENA:
            return await GameDriver.open(package, backend, participants=self.participants, **settings)
        return await ActionDriver.start(package, backend, **settings)

    def _connect(self, driver: ActionDriver) -> None:
        self._driver = driver
        if isinstance(self.tool, PackageTool):
            self.tool.connect(driver)

    def _stop(self) -> None:
        driver, self._driver = self._driver, None
        if isinstance(self.tool, PackageTool):
            self.tool.connect(None)
        if driver is not None:
            LOOP.run(driver.stop)


class PackageTaskConfig(TaskConfig[PackageTaskMetadata]):
    """A package for a worker that has its content: in a bundle, a folder or its cache."""

    sandbox: str = AUTO
    base_image: str | None = None
    pull: PullPolicy = "missing"
    records: str | None = None
    call_limits: CallLimits | None = None
    """Limits on calls of models by the package's judges, for each episode with its forks."""
    benchmark_limits: CallLimits | None = None
    """Limits for all episodes of a live benchmark: then only that benchmark can make the task."""
    participants: dict[str, str] = Field(default_factory=dict)
    """Who plays the other roles of an arena."""
    validate_per_step: bool = False

    def verify_installed(self) -> None:
        """Its content must be on this worker."""
        named_package(self.metadata)

    def make(
        self,
        runtime_context: RuntimeContext | None = None,
        container_backend: ContainerBackend | None = None,
    ) -> PackageTask:
        self.verify_installed()
        call_settings(self, runtime_context)
        return PackageTask(
            metadata=self.metadata,
            tool_config=self.tool_config or PackageToolConfig(),
            runtime_context=runtime_context,
            container_backend=container_backend,
            sandbox=self.sandbox,
            base_image=self.base_image,
            pull=self.pull,
            seed=self.seed,
            records=self.records,
            call_limits=self.call_limits,
            benchmark_limits=self.benchmark_limits,
            participants=self.participants,
            validate_per_step=self.validate_per_step,
        )


MODELS: Final = "models"
"""Where the runtime context of a benchmark has the gateway that its tasks share."""


def call_settings(of: PackageTask | PackageTaskConfig, context: RuntimeContext | None = None) -> CallSettings:
    """What holds for the calls of models of an episode; refuses limits of a benchmark where nobody counts for all."""
    shared = (context or {}).get(MODELS)
    if not isinstance(shared, SharedGateway):
        if of.benchmark_limits is not None:
            message = (
                "benchmark_limits hold for the tasks of one live benchmark: make it with `config.make()`, and its tasks"
                " with its `spawn`."
            )
            raise UsageError(message, code="benchmark-limits")
        shared = SharedGateway(os.environ, of.call_limits or NO_CALL_LIMITS)
    return CallSettings(Path(of.records) if of.records is not None else None, shared)


def named_package(metadata: PackageTaskMetadata) -> TaskPackage:
    """The package on this machine; `PackageError` if its content is not here."""
    return PLACES.find(PackageName(metadata.id, metadata.content_digest, metadata.inside, metadata.bundle))
