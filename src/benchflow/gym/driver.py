"""`ActionDriver`: a package driven by actions, on the course that a rollout takes and prepared as for its agent.

Every verification is of a copy. What cannot be copied (services, processes that are part of a solution) is not verified
at all: files of a verifier are never where a running agent could see them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.agents.workspace import Workspace
from benchflow.environment import Environment
from benchflow.errors import UnsupportedError
from benchflow.files.scratch import scratch_folder
from benchflow.gym.episode_calls import NO_CALL_SETTINGS, CallSettings, EpisodeCalls
from benchflow.rewards import Attributed, attributed
from benchflow.rollout.config import RolloutConfig
from benchflow.rollout.course import Course, Past
from benchflow.rollout.phases.step_bounds import begin, end_processes, for_agents
from benchflow.rollout.plan import StepPlan, plan_steps, require_one_actor
from benchflow.rollout.policies import Chosen, Secrets, forbidden_tools, gather_secrets, normal_tool
from benchflow.rollout.rollout import chosen_isolation
from benchflow.sandbox.factory import Preparation, prepare, taken_package
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.task.package import TaskPackage
from benchflow.verifier import Verification, Verifier
from benchflow.verifier.boxes import stopping
from benchflow.verifier.scope import Scope, isolation_of, scope_of

if TYPE_CHECKING:
    from benchflow.models.gateway import Access

_DRIVER: Final = "gym"
"""The driver of the task, used as the agent's name."""
_SCOPES: Final = ("environment", "agent", "verifier", "judge")
SEED_VARIABLE: Final = "BENCHCUBE_SEED"
"""Where every program of a package finds the seed of its task: services, agent and verifier."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all forks of a task share: the package and its plan."""

    package: TaskPackage
    steps: tuple[StepPlan, ...]
    secrets: Secrets
    base_image: str | None
    given: Mapping[str, str] = field(default_factory=dict)
    """Variables of every program in it, beside those of the package."""

    @property
    def forbidden(self) -> frozenset[str]:
        """Actions that the package does not allow, as `normal_tool` spells them."""
        return frozenset(map(normal_tool, forbidden_tools(self.package.view.namespace.agent_policy)))


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """What is the same for every episode of a task, as long as its package and this machine stay as they are."""

    setting: Setting
    backend: SandboxBackend
    preparation: Preparation


async def plan_task(
    package: TaskPackage,
    backend: SandboxBackend,
    *,
    base_image: str | None = None,
    chosen: Chosen | None = None,
    machine: Mapping[str, str] | None = None,
) -> PlannedTask:
    """Plan a package that was taken; the options are those of `ActionDriver.start`."""
    require_one_actor(package.view)
    steps = plan_steps(package, RolloutConfig(package, _DRIVER))
    secrets = gather_secrets(package.view, os.environ if machine is None else machine, _SCOPES)
    preparation = await prepare(package, backend, base_image=base_image, machine=machine)
    if chosen is None:
        chosen = await chosen_isolation(package, backend, RolloutConfig(package, _DRIVER, base_image=base_image))
    preparation = for_agents(replace(preparation, chosen=chosen), steps, secrets, _nothing)
    return PlannedTask(Setting(package, steps, secrets, base_image), backend, preparation)


class ActionDriver:
    """One running task, from the start of its sandbox to its end."""

    def __init__(
        self, setting: Setting, environment: Environment, course: Course, calls: EpisodeCalls | None = None
    ) -> None:
        """`environment` is started; `calls` are those of judges and users, which end with the driver."""
        self.environment: Final = environment
        self.course = course
        self.forbidden: Final = setting.forbidden
        self._setting: Final = setting
        self.calls: Final = calls or EpisodeCalls()
        self._verifier: Final = self._verifying(self.calls.judge())

    def _verifying(self, models: Access | None) -> Verifier:
        setting = self._setting
        return Verifier(self.environment, base_image=setting.base_image, given=setting.given, models=models)

    @classmethod
    async def start(
        cls,
        package: TaskPackage,
        backend: SandboxBackend,
        *,
        base_image: str | None = None,
        chosen: Chosen | None = None,
        machine: Mapping[str, str] | None = None,
        seed: int | None = None,
        calls: CallSettings = NO_CALL_SETTINGS,
    ) -> ActionDriver:
        """The task at its first step; after an error nothing runs. Refuses what is not supported.

        `chosen` is the isolation of its verifiers, if the caller knows it already; `machine` the variables from which
        secrets are taken, those of this process without it. With a `seed`, every program of the package has it in
        `SEED_VARIABLE`, whatever the package itself sets there. `calls` says where calls of models by judges and
        users are recorded, and how many there may be.
        """
        package = await taken_package(package)
        planned = await plan_task(package, backend, base_image=base_image, chosen=chosen, machine=machine)
        return await cls.begin(planned, seed=seed, calls=calls)

    @classmethod
    async def begin(
        cls, planned: PlannedTask, *, seed: int | None = None, calls: CallSettings = NO_CALL_SETTINGS
    ) -> ActionDriver:
        """As `start`, for a task that is planned."""
        setting, preparation = planned.setting, planned.preparation
        if seed is not None:
            given = {SEED_VARIABLE: str(seed)}
            setting = replace(setting, given=given)
            preparation = replace(preparation, spec=replace(preparation.spec, env={**preparation.spec.env, **given}))
        names = [step.name for step in setting.steps]
        opened = EpisodeCalls.open(setting.package, names, setting.secrets, calls)
        environment = Environment(planned.backend, preparation)
        try:
            await environment.start()
        except BaseException:
            opened.close()
            raise
        driver = cls(setting, environment, Course.of(setting.package.view), opened)
        try:
            await begin(environment, driver.step)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await driver.stop()
            raise
        return driver

    @property
    def step(self) -> StepPlan:
        """The current or last step; for a task without steps the whole task."""
        return self._setting.steps[self.course.number]

    @property
    def prompt(self) -> str:
        """The prompt of the step."""
        return self.step.turns[0].prompt

    def workspace(self) -> Workspace:
        """The sandbox as the agent of the step sees it."""
        sandbox, user = self.environment.sandbox, self.step.agent.user
        named = str(user) if user is not None else None
        return Workspace(sandbox, sandbox.spec.workdir, named, self._setting.secrets.of("agent"))

    async def evaluate(self, *, for_user: bool = False) -> Course:
        """The course with a verdict on the task as it is now; changes nothing.

        What is only `for_user` to see is on the account of the simulated user, so that the last word of the judge is
        left for the end.
        """
        if self.course.over:
            return self.course
        verifier = self._verifying(self.calls.judge_for_user()) if for_user else self._verifier
        return self.course.after(await self._verified(verifier))

    async def advance(self) -> None:
        """End the step as a rollout does: it is frozen and scored, and the next one begins or the task ends."""
        with attributed("sandbox", "agent"):
            await end_processes(self.environment, self.step.name)
        self.course = self.course.after(await self._verified(self._verifier))
        if self.course.over:
            return
        try:
            with attributed("environment", "environment"):
                await begin(self.environment, self.step)
        except Attributed as error:
            self.course = self.course.after(error.verdict)

    async def _verified(self, verifier: Verifier) -> Past:
        isolation = isolation_of(self.environment.preparation, self.step.name)
        scope = scope_of(self._setting.package.view, self.step.name, isolation)
        try:
            with attributed("sandbox", "verify"):
                checked = await self._verified_copy(scope, verifier)
            return Past(checked.verdict, checked.record())
        except Attributed as error:
            return Past(error.verdict)

    async def _verified_copy(self, scope: Scope, verifier: Verifier) -> Verification:
        sandbox = self.environment.sandbox
        rung = scope.isolation.rung
        if rung == "open":
            await self._require_copyable()
        if rung == "services" or (rung != "open" and sandbox.spec.composition is None):
            return await verifier.verify(None, step=scope.step, soft=True)  # always makes its own copy
        copy = await sandbox.fork()
        async with stopping(copy):
            return await verifier.verify(None, step=scope.step, sandbox=copy)

    async def _require_copyable(self) -> None:
        """Refuse to verify in the open if a copy would lack what the verifier needs."""
        what = "services of the environment" if self.environment.services is not None else None
        if what is None and await self.environment.sandbox.has_processes():
            what = "processes that keep running during verification"
        if what is not None:
            path = "verifier.isolation"
            message = (
                f"{path}: with `open` the verifier needs {what} in its own sandbox, which cannot be copied, but a gym "
                "verifies a copy; score the package by a rollout, or declare a stricter isolation."
            )
            raise UnsupportedError(message, code="live-state", path=path)

    async def fork(self) -> ActionDriver:
        """An independent copy of the current state, without processes; one with services cannot be copied."""
        if self.environment.services is not None:
            started = "the image's entry point" if self.environment.entrypoint is not None else "its manifest"
            message = f"The environment cannot be forked: services run in it that {started} started."
            raise UnsupportedError(message, code="live-state", path="environment")
        copy = await self.environment.fork()
        return ActionDriver(self._setting, copy, self.course, self.calls.fork())

    async def stop(self) -> None:
        """End it with all that runs in it."""
        self.calls.close()
        await self.environment.stop()


@cache
def _nothing() -> Path:
    """An empty folder for the life of this process: forks outlive the task that they come from."""
    return scratch_folder("nothing-")
