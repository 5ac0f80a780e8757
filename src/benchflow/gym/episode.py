"""`Episode`: a package while it is worked on step by step, prepared as a rollout prepares it for its agent.

Every verification is of a copy. What cannot be copied (services, processes that are part of a solution) is not verified
at all: nothing of a verifier is ever where an agent that goes on could see it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio

from benchflow.agents.workspace import Workspace
from benchflow.environment import Environment
from benchflow.errors import UnsupportedError
from benchflow.files.scratch import scratch, scratch_folder
from benchflow.record import StepRecord, outcome_of
from benchflow.record.codec import plain
from benchflow.rewards import Attributed, Verdict, attributed
from benchflow.rollout.config import RolloutConfig
from benchflow.rollout.plan import StepPlan, plan_steps
from benchflow.rollout.policies import Secrets, forbidden_tools, gather_secrets, normal_tool
from benchflow.rollout.preparation import begin_step, for_agents
from benchflow.rollout.steps import NOT_REACHED, ends_task, step_record, total
from benchflow.sandbox.factory import prepare
from benchflow.sandbox.protocol import NetworkPolicy, SandboxBackend
from benchflow.task.package import TaskPackage
from benchflow.verifier import Verification, Verifier
from benchflow.verifier.boxes import stopping
from benchflow.verifier.live import agent_users, end_agent
from benchflow.verifier.scope import Scope, scope_of

_DRIVER: Final = "gym"
"""Whoever drives the task, in the place of an agent's name."""
_SCOPES: Final = ("environment", "agent", "verifier", "judge")


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and how it was reached."""

    verdict: Verdict
    verification: Verification
    """Of the step that was verified last."""
    steps: Sequence[StepRecord] = ()

    def info(self) -> dict[str, Any]:
        """What comes with a reward."""
        rewards = {name: value for name, value in self.verdict.record()["rewards"].items() if name != "reward"}
        steps = {"steps": plain(self.steps)} if self.steps else {}
        return {"rewards": rewards, "verifier": plain(self.verification.record()), **steps}


class Episode:
    """One course of a task, from the start of its sandbox to its end."""

    def __init__(
        self,
        package: TaskPackage,
        steps: tuple[StepPlan, ...],
        secrets: Secrets,
        environment: Environment,
        *,
        base_image: str | None,
        network: NetworkPolicy,
        records: Sequence[StepRecord] = (),
    ) -> None:
        """`environment` is started; `network` is the one that holds in it, `records` what past steps came to."""
        self.environment: Final = environment
        self._package: Final = package
        self._steps: Final = steps
        self._secrets: Final = secrets
        self._base_image: Final = base_image
        self._network = network
        self._records: Final = list(records)
        self._last: Verification | None = None
        self._verifier: Final = Verifier(environment, base_image=base_image)
        self.forbidden: Final = frozenset(map(normal_tool, forbidden_tools(package.view.namespace.agent_policy)))
        """Actions that the package does not allow, as `normal_tool` spells them."""

    @classmethod
    async def start(
        cls,
        package: TaskPackage,
        backend: SandboxBackend,
        *,
        base_image: str | None = None,
        machine: Mapping[str, str] | None = None,
    ) -> Episode:
        """The episode at its first step; after an error nothing runs. Refuses what cannot be honoured."""
        variables = os.environ if machine is None else machine
        steps = plan_steps(package, RolloutConfig(package, _DRIVER))
        secrets = gather_secrets(package.view, variables, _SCOPES)
        preparation = await prepare(package, backend, base_image=base_image, machine=variables)
        environment = Environment(backend, for_agents(preparation, steps, secrets, _nothing))
        await environment.start()
        network = environment.preparation.spec.network
        episode = cls(package, steps, secrets, environment, base_image=base_image, network=network)
        try:
            await episode._begin()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await episode.stop()
            raise
        return episode

    @property
    def over(self) -> bool:
        """Whether a step ended the task: it was not scored, or reached less than it must."""
        return len(self._records) == len(self._steps)

    @property
    def step(self) -> StepPlan:
        """The step that is under way, or was last; of a task without steps the whole of it."""
        return self._steps[min(len(self._records), len(self._steps) - 1)]

    @property
    def following(self) -> StepPlan | None:
        """The step after that one."""
        number = len(self._records) + 1
        return self._steps[number] if number < len(self._steps) else None

    @property
    def prompt(self) -> str:
        """What an agent is told at the beginning of the step."""
        return self.step.turns[0].prompt

    def workspace(self) -> Workspace:
        """The sandbox as the agent of the step sees it."""
        sandbox, user = self.environment.sandbox, self.step.agent.user
        named = str(user) if user is not None else None
        return Workspace(sandbox, sandbox.spec.workdir, named, self._secrets.of("agent"))

    async def _begin(self) -> None:
        step, sandbox = self.step, self.environment.sandbox
        await begin_step(sandbox, self._package.view, step)
        if step.network != self._network:
            await sandbox.set_network(step.network)
            self._network = step.network

    async def evaluate(self) -> Judged:
        """The verdict on the task as it is now, steps that were not reached included; changes nothing."""
        if self.over and self._last is not None:
            return Judged(self._total(self._records), self._last, tuple(self._records))
        checked = await self._verified()
        if self.step.name is None:
            return Judged(checked.verdict, checked)
        records = self._all([*self._records, self._record(checked)])
        return Judged(self._total(records), checked, tuple(records))

    async def advance(self) -> None:
        """End the step as a rollout does: it is frozen and scored, and the next one begins or the task is over."""
        with attributed("sandbox", "agent"):
            await self._freeze()
        self._last = await self._verified()
        record = self._record(self._last)
        self._records.append(record)
        if ends_task(record):
            self._records[:] = self._all(self._records)
            return
        try:
            with attributed("environment", "environment"):
                await self._begin()
        except Attributed as error:
            failed = StepRecord(name=str(self.step.name), outcome=outcome_of(error.verdict))
            self._records[:] = self._all([*self._records, failed])

    async def _freeze(self) -> None:
        sandbox = self.environment.sandbox
        if self._scope().opt_outs.keep_processes:
            return
        if self.environment.services is None:
            await sandbox.kill_processes()
        else:
            await end_agent(sandbox, agent_users(sandbox, self._package.view))

    def _scope(self) -> Scope:
        return scope_of(self._package.view, self.step.name)

    def _record(self, checked: Verification) -> StepRecord:
        step = self.step.view
        return step_record(str(self.step.name), checked, step.config.min_reward if step is not None else None)

    def _all(self, records: Sequence[StepRecord]) -> list[StepRecord]:
        """With the steps that were not reached."""
        missing = self._steps[len(records) :]
        return [*records, *(StepRecord(name=str(step.name), outcome=NOT_REACHED) for step in missing)]

    def _total(self, records: Sequence[StepRecord]) -> Verdict:
        return total(records, self._package.view.config.multi_step_reward_strategy)

    async def _verified(self) -> Verification:
        with scratch("gym-") as folder:
            try:
                with attributed("sandbox", "verify"):
                    return await self._verified_copy(folder / "verifier")
            except Attributed as error:
                return Verification.refused(error.verdict, self._package.view, self.step.name)

    async def _verified_copy(self, output: Path) -> Verification:
        scope, sandbox = self._scope(), self.environment.sandbox
        await self._require_copyable(scope)
        if not scope.opt_outs.keep_processes and sandbox.spec.composition is None:
            return await self._verifier.verify(output, step=scope.step, soft=True)  # makes its own copy, always
        copy = await sandbox.fork()
        async with stopping(copy):
            return await self._verifier.verify(output, step=scope.step, sandbox=copy)

    async def _require_copyable(self, scope: Scope) -> None:
        """Refuse to verify where a copy would lack what the verifier looks at."""
        if scope.config.isolation == "separate":
            return
        path = "benchflow.environment.manifest"
        what = "services of the environment" if self.environment.services is not None else None
        if what is None and scope.opt_outs.keep_processes and await self.environment.sandbox.has_processes():
            path, what = "verifier.hardening.keep_processes", "processes that live on into verification"
        if what is not None:
            message = (
                f"{path}: the verifier looks at {what}, which cannot be copied, and in a gym a copy is verified; "
                "score the package by a rollout."
            )
            raise UnsupportedError(message, code="live-state", path=path)

    async def fork(self) -> Episode:
        """An independent copy as it is now, without processes; an environment with services cannot be copied."""
        if self.environment.services is not None:
            raise UnsupportedError(
                "benchflow.environment.manifest: services of the environment cannot be forked.",
                code="live-state",
                path="benchflow.environment.manifest",
            )
        copy = Episode(
            self._package,
            self._steps,
            self._secrets,
            await self.environment.fork(),
            base_image=self._base_image,
            network=self._network,
            records=self._records,
        )
        copy._last = self._last
        return copy

    async def stop(self) -> None:
        """End it with all that runs in it."""
        self._verifier.close()
        await self.environment.stop()


@cache
def _nothing() -> Path:
    """An empty folder as long as this process lives: forks outlive the task that they come from."""
    return scratch_folder("nothing-")
