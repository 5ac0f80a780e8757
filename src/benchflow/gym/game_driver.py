"""`GameDriver`: one role of an arena, driven by actions, while the others are live.

The game is an ordinary rollout in the background, whose scored role is played by a `PlayerAgent`: each message to the
role waits for the action `reply`. The game ends as every game does; its verdict is the task's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import anyio

from benchflow.agents.protocol import Agent, AgentContext, TurnResult
from benchflow.agents.workspace import Workspace
from benchflow.environment import Environment
from benchflow.errors import UnsupportedError
from benchflow.files.scratch import scratch
from benchflow.gym.driver import ActionDriver, Setting
from benchflow.gym.episode_calls import NO_CALL_SETTINGS, CallSettings
from benchflow.record import ErrorRecord, Player, Result
from benchflow.rewards import Scored, Unscored, Verdict
from benchflow.rollout.config import RolloutConfig
from benchflow.rollout.course import Course, Past
from benchflow.rollout.plan import plan_rollout
from benchflow.rollout.rollout import Rollout
from benchflow.sandbox.factory import prepare, taken_package
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.task.package import TaskPackage

PLAYER: Final = "gym"
OVER: Final = "The game is over."


class _Table:
    """Messages to the role, and the replies to them."""

    def __init__(self) -> None:
        self.asked: Final[asyncio.Queue[tuple[str, asyncio.Future[str]]]] = asyncio.Queue()
        self.context: AgentContext | None = None
        """That of the role, once it was asked."""


class PlayerAgent(Agent):
    """An agent whose answers are actions of a gym task."""

    name = PLAYER

    def __init__(self, table: _Table) -> None:
        self._table: Final = table

    async def start(self, context: AgentContext) -> None:
        self._table.context = context

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        del timeout  # who steps decides when
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await self._table.asked.put((text, answer))
        return TurnResult("end_turn", await answer)

    async def close(self) -> None:
        """Nothing runs."""


class GameDriver(ActionDriver):
    """A game under way, from its first message to the role."""

    def __init__(
        self, setting: Setting, environment: Environment, table: _Table, running: asyncio.Task[Result], first: str
    ) -> None:
        super().__init__(setting, environment, Course())
        self._table: Final = table
        self._running: Final = running
        self._said = first
        self._answer: asyncio.Future[str] | None = None

    @classmethod
    async def open(
        cls,
        package: TaskPackage,
        backend: SandboxBackend,
        *,
        base_image: str | None = None,
        seed: int | None = None,
        participants: Mapping[str, str] | None = None,
        calls: CallSettings = NO_CALL_SETTINGS,
    ) -> GameDriver:
        """The game at its first message to the role; after an error nothing runs.

        With `calls` the game has the limits of a rollout, and leaves its whole record below the folder of records.
        """
        package = await taken_package(package)
        table, shared = _Table(), calls.shared
        config = RolloutConfig(
            package,
            PLAYER,
            participants={role: Player(agent) for role, agent in (participants or {}).items()},
            sandbox=backend,
            base_image=base_image,
            seed=seed,
            make_agent=lambda name, model: _made(table, name, model),
            durable=False,
            call_limits=shared.limits if shared is not None else None,
            gateway=shared.gateway if shared is not None and shared.counts_all else None,
        )
        plan = plan_rollout(package, config, {})
        preparation = await prepare(package, backend, base_image=base_image)
        running = asyncio.create_task(_played(config, calls.folder(package)))
        driver: GameDriver | None = None
        try:
            asked = await _next(table, running)
            sandbox = table.context.sandbox if table.context is not None else None
            environment = Environment(backend, preparation, sandbox=sandbox)
            setting = Setting(package, plan.steps, plan.secrets, base_image)
            driver = cls(setting, environment, table, running, OVER if asked is None else asked[0])
            driver._take(asked)
        finally:
            if driver is None:
                await _ended(running)
        return driver

    @property
    def prompt(self) -> str:
        """The last message to the role."""
        return self._said

    def workspace(self) -> Workspace:
        """The box of the role; a role that was never asked has none."""
        context = self._table.context
        if context is None:
            return super().workspace()
        return Workspace(context.sandbox, context.workdir, context.user, context.env)

    async def reply(self, text: str) -> str:
        """Answer the last message, and wait for the next one or the end of the game."""
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return OVER
        answer.set_result(text)
        asked = await _next(self._table, self._running)
        self._said = OVER if asked is None else asked[0]
        self._take(asked)
        return self._said

    def _take(self, asked: tuple[str, asyncio.Future[str]] | None) -> None:
        if asked is not None:
            self._answer = asked[1]
        elif not self.course.over:
            result = self._running.result()
            self.course = self.course.after(Past(_verdict(result), result.verifier))

    async def evaluate(self, *, for_user: bool = False) -> Course:
        """The course with the verdict; a game that is under way has none."""
        del for_user  # a game has no user
        if self.course.over:
            return self.course
        return self.course.after(Unscored("agent", "agent", "game-not-over", "The game is not over."))

    async def advance(self) -> None:
        """A game has one step."""

    async def fork(self) -> ActionDriver:
        message = "A game cannot be forked: its other participants are live."
        raise UnsupportedError(message, code="live-state", path="benchflow.interaction.mode")

    async def stop(self) -> None:
        """Cancel the game, with everybody in it."""
        await _ended(self._running)


def _made(table: _Table, name: str, model: str | None) -> Agent:
    if name == PLAYER:
        return PlayerAgent(table)
    from benchflow.agents.registry import create_agent

    return create_agent(name, model)


async def _played(config: RolloutConfig, folder: Path | None) -> Result:
    if folder is not None:
        return await Rollout(config, folder).run(raise_refusals=True)
    with scratch("game-") as passing:
        return await Rollout(config, passing / "rollout").run(raise_refusals=True)


async def _next(table: _Table, running: asyncio.Task[Result]) -> tuple[str, asyncio.Future[str]] | None:
    """The next message to the role; None if the game has ended. A game that was refused raises why."""
    asking = asyncio.create_task(table.asked.get())
    try:
        await asyncio.wait({asking, running}, return_when="FIRST_COMPLETED")
        if asking.done():
            return asking.result()
        running.result()
        return None
    finally:
        asking.cancel()


async def _ended(running: asyncio.Task[Result]) -> None:
    with anyio.CancelScope(shield=True):
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _verdict(result: Result) -> Verdict:
    outcome = result.outcome
    if isinstance(outcome, ErrorRecord):
        return Unscored(outcome.category, outcome.phase, outcome.code, outcome.message)
    metrics = {name: value for name, value in outcome.rewards.items() if name != "reward"}
    return Scored(outcome.reward, metrics=metrics)
