"""`Stage`: one package, ready to be run many times; one backend, one proof of isolation, one built environment for all.

Every trial is a rollout by an agent that the caller makes, so that what is proven is what an evaluation would score.
The state that a trial leaves can be verified any number of times, as it is and under perturbations, without a new run.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio

from benchflow.agents.protocol import Agent
from benchflow.agents.registry import create_agent
from benchflow.agents.running import Installations
from benchflow.environment import Environment
from benchflow.errors import IssuesError
from benchflow.files.scratch import scratch
from benchflow.record import Isolation, Result
from benchflow.rewards import Unscored, Verdict
from benchflow.rollout.config import RolloutConfig
from benchflow.rollout.course import Course
from benchflow.rollout.plan import ORACLE
from benchflow.rollout.policies import Chosen, markers_left
from benchflow.rollout.proving import Proofs
from benchflow.rollout.rollout import Rollout, chosen_isolation
from benchflow.rollout.seats import own_players
from benchflow.rollout.users import PassthroughUser
from benchflow.sandbox.factory import AUTO, choose_backend, taken_package
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.sandbox.pulling import PullSettings
from benchflow.task.config.interaction import ARENA
from benchflow.task.package import TaskPackage
from benchflow.task.runtime_view import TaskRuntimeView
from benchflow.task.taken import COPIES
from benchflow.verifier import Verification, Verifier
from benchflow.verifier.perturbation import Perturbation
from benchflow.verifier.scope import scope_of

NOT_THE_PACKAGE: Final = frozenset({"infrastructure", "sandbox", "environment", "judge", "cancelled"})
"""Categories of failures that say nothing about the package."""
PURE: Final = frozenset({"separate", "shared", "system"})
"""The rungs at which a state is verified again without a new run: its files are all that the verifier sees."""


@dataclass(frozen=True, slots=True)
class StageOptions:
    """How the trials of a package run."""

    sandbox: str | SandboxBackend = AUTO
    """A name, or a backend that the caller keeps and closes."""
    base_image: str | None = None
    pull: PullSettings = field(default_factory=PullSettings)
    isolation: str | None = None
    timeout_sec: float | None = None
    """The time limit of one trial."""
    concurrency: int = field(default_factory=lambda: os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Trial:
    """One rollout, and the further verifications of the state it left."""

    result: Result
    again: tuple[Verification, ...] = ()
    """In the order in which they were asked for, one per step each."""
    verified: tuple[Verification, ...] = ()
    """The verifications of the rollout itself, one per step."""

    @property
    def reward(self) -> float | None:
        """None if it was not scored."""
        return self.result.reward


def total(view: TaskRuntimeView, verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on the whole of a task by those on its steps; a task without steps has one."""
    course = Course.of(view)
    for verdict in verdicts:
        if not course.over:
            course = course.after(verdict)
    return course.total()


MakeAgent = Callable[[], Agent]


class Stage:
    """A package on a backend. Made by `open_stage`."""

    def __init__(
        self,
        package: TaskPackage,
        backend: SandboxBackend,
        chosen: Chosen,
        options: StageOptions,
        *,
        proofs: Proofs,
        installations: Installations,
    ) -> None:
        self.package: Final = package
        self.backend: Final = backend
        self.chosen: Final = chosen
        self._options: Final = options
        self._proofs: Final = proofs
        self._installations: Final = installations
        self._running: Final = anyio.CapacityLimiter(options.concurrency)
        self._verifying: Final = anyio.CapacityLimiter(options.concurrency)
        """Apart from the other, because a rollout that waits for its verifications keeps its place."""

    @property
    def isolation(self) -> Isolation:
        """How the task, or its last step, is verified."""
        steps = self.package.view.steps
        step = steps[-1].config.name if steps else None
        found = self.chosen.get(step)
        return found.isolation if found is not None else scope_of(self.package.view, step).isolation

    @property
    def is_pure(self) -> bool:
        """Whether a state can be verified again without a new run; a game has no such state."""
        return self.isolation.rung in PURE and self.package.view.mode != ARENA

    async def run(
        self,
        agent: str | MakeAgent,
        *,
        name: str | None = None,
        again: Sequence[Mapping[str, Any]] = (),
        timeout_sec: float | None = None,
        perturbation: Perturbation | None = None,
    ) -> Trial:
        """A rollout by an agent of the registry, or by one that the caller makes, called `name`.

        `timeout_sec` is the time limit of this trial, where it is not that of the options.
        `again` has one entry for each further verification of the state, with options of `Verifier.verify`. The
        rollout's own verification happens under the `perturbation`.
        """
        made = None if isinstance(agent, str) else agent
        # A script always replaces the roles of a document, and needs no user that a caller would have to give.
        called = agent if isinstance(agent, str) else name if name == ORACLE else f"script:{name or 'trial'}"
        config = RolloutConfig(
            self.package,
            called,
            participants=own_players(self.package),
            sandbox=self.backend,
            base_image=self._options.base_image,
            isolation=self._options.isolation,
            timeout_sec=timeout_sec or self._options.timeout_sec,
            user=PassthroughUser() if made is not None and _lacks_user(self.package.view) else None,
            make_agent=None if made is None else lambda name, model: _made(made, called, name, model),
            proofs=self._proofs,
            installations=self._installations,
            keep_workspace=False,
            durable=False,
        )
        first: list[Verification] = []
        found: list[Verification] = []

        def verifier(environment: Environment, **options: Any) -> Verifier:
            return _Repeating(environment, perturbation, first, again, found, self._verifying, **options)

        with scratch("trial-") as folder:
            async with self._running:
                result = await Rollout(config, folder / "rollout", make_verifier=verifier).run()
        return Trial(result, tuple(found), tuple(first))


def _made(made: MakeAgent, called: str, name: str, model: str | None) -> Agent:
    """The agent of a trial; other participants of an arena are whom the registry has."""
    return made() if name == called else create_agent(name, model)


def _lacks_user(view: TaskRuntimeView) -> bool:
    """Whether the rounds come from a user that the caller has to bring; here the prompt is sent once."""
    user = view.prompt_plan.user_runtime
    declared = user.status != "none" and user.runtime_kind != "none"
    return view.mode == "multi-round" and not declared and len(view.prompt_plan.turns) <= 1


class _Repeating(Verifier):
    """Verifies a state once for the rollout, and then as often as it is asked to."""

    def __init__(
        self,
        environment: Environment,
        perturbation: Perturbation | None,
        verified: list[Verification],
        again: Sequence[Mapping[str, Any]],
        found: list[Verification],
        limit: anyio.CapacityLimiter,
        **options: Any,
    ) -> None:
        super().__init__(environment, **options)
        self._perturbation: Final = perturbation
        self._verified_first: Final = verified
        self._again: Final = again
        self._found: Final = found
        self._limit: Final = limit

    async def verify(self, output: Path | None, *, soft: bool = False, **options: Any) -> Verification:
        if soft:
            return await super().verify(output, soft=soft, **options)
        first = await super().verify(output, **{**options, "perturbation": self._perturbation})
        self._verified_first.append(first)
        if not self._again or isinstance(first.verdict, Unscored):  # each may take as long to fail as the first
            return first
        verify = super().verify
        found: dict[int, Verification] = {}
        with scratch("again-") as folder:

            async def once(number: int, own: Mapping[str, Any]) -> None:
                async with self._limit:
                    asked = {**options, "isolation": first.isolation, **own}
                    found[number] = await verify(folder / str(number), **asked)

            async with anyio.create_task_group() as group:
                for number, own in enumerate(self._again):
                    group.start_soon(once, number, own)
        self._found.extend(found[number] for number in sorted(found))
        return first


@asynccontextmanager
async def open_stage(package: TaskPackage | Path | str, options: StageOptions | None = None) -> AsyncIterator[Stage]:
    """The stage of a package; nothing is left running after the block.

    Raises what refuses a package before anything starts: `PackageError`, `UnsupportedTaskFeatureError`, `UsageError`.
    """
    options = options or StageOptions()
    taken = await taken_package(package)
    if left := markers_left(taken):
        raise IssuesError(tuple(left))
    backend = options.sandbox
    owned = isinstance(backend, str)
    if isinstance(backend, str):
        backend = await choose_backend(taken, backend, base_image=options.base_image, pull=options.pull)
    installations = Installations(backend)
    proofs = Proofs()
    try:
        config = RolloutConfig(taken, ORACLE, base_image=options.base_image, isolation=options.isolation, proofs=proofs)
        chosen = await chosen_isolation(taken, backend, config)
        yield Stage(taken, backend, chosen, options, proofs=proofs, installations=installations)
    finally:
        with anyio.CancelScope(shield=True):
            await installations.close()
            if owned:
                await backend.close()
        COPIES.forget(taken)  # of thousands of packages, each has one stage
