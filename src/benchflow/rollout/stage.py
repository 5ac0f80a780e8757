"""A sandbox and the agents that are open in it: roles take turns here, under one deadline.

An agent stays open between its turns, so that it remembers them; one that has ended or overrun is opened anew.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio

from benchflow.agents.protocol import Agent, TurnResult
from benchflow.record import AgentEnd, Event
from benchflow.rewards import attributed
from benchflow.rollout.context import RolloutContext
from benchflow.rollout.permissions import Asked, Gatekeeper
from benchflow.rollout.plan import PlannedTurn, StepPlan
from benchflow.sandbox.protocol import Sandbox

GRACE_SEC: Final = 30.0
"""How much longer than its time an agent may take to end its turn by itself."""
CLOSE_SEC: Final = 30.0


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """One turn: how it ended, what happened, what was asked."""

    result: TurnResult
    events: list[Event]
    wall_sec: float
    asked: tuple[Asked, ...] = ()

    @property
    def tool_calls(self) -> int:
        return sum(event["type"] == "tool_call" for event in self.events)


@dataclass(slots=True)
class AgentTally:
    """What the agents of a stage came to, added up."""

    exit_code: int | None = None
    timed_out: bool = False
    stop_reason: str | None = None
    usage: Counter[str] = field(default_factory=Counter)

    def add(self, result: TurnResult) -> None:
        self.stop_reason = result.stop_reason
        self.timed_out = self.timed_out or result.timed_out
        if result.exit_code is not None:
            self.exit_code = result.exit_code
        for name, value in result.usage.items():
            self.usage[name] += value  # type: ignore[assignment] # a Counter adds up any number

    def end(self) -> AgentEnd:
        return AgentEnd(self.exit_code, self.timed_out, self.stop_reason)


class Stage:
    """One line of work in one sandbox."""

    def __init__(
        self, context: RolloutContext, step: StepPlan, sandbox: Sandbox, logs: Path, gatekeeper: Gatekeeper
    ) -> None:
        """The deadline of the step begins now."""
        self.context: Final = context
        self.step: Final = step
        self.sandbox: Final = sandbox
        self.tally: Final = AgentTally()
        self.gatekeeper: Final = gatekeeper
        self._logs: Final = logs
        self._several: Final = len({turn.role.name for turn in step.turns}) > 1
        self._open: dict[str, Agent] = {}
        own = None if step.timeout_sec is None else anyio.current_time() + step.timeout_sec
        limits = [limit for limit in (own, context.agents_until) if limit is not None]
        self._deadline: Final = min(limits, default=None)

    @property
    def exhausted(self) -> bool:
        """Whether the time of the step is over."""
        return self._deadline is not None and anyio.current_time() >= self._deadline

    def _time_left(self, turn: PlannedTurn) -> float | None:
        limits = [turn.role.timeout_sec]
        if self._deadline is not None:
            limits.append(max(self._deadline - anyio.current_time(), 0.0))
        return min((limit for limit in limits if limit is not None), default=None)

    async def take_turn(self, turn: PlannedTurn, prompt: str, **where: Any) -> TurnOutcome:
        """Prompt a role and wait until its turn is over; `where` is added to every event of the turn."""
        trajectory = self.context.trajectory
        began = anyio.current_time()
        self.gatekeeper.begin_turn()
        role = turn.role.name if turn.scene is not None else None
        with trajectory.context(scene=turn.scene, role=role, **where), trajectory.collected() as events:
            trajectory("user_message", text=prompt)
            with attributed("agent", "agent"):
                result = await self._prompt(turn, prompt)
        self.gatekeeper.end_turn()
        self.tally.add(result)
        return TurnOutcome(result, events, anyio.current_time() - began, tuple(self.gatekeeper.asked))

    async def _prompt(self, turn: PlannedTurn, prompt: str) -> TurnResult:
        result: TurnResult | None = None
        agent = await self._opened(turn)
        limit = self._time_left(turn)
        with anyio.move_on_after(None if limit is None else limit + GRACE_SEC):
            result = await agent.prompt(prompt, timeout=limit)
        if result is None:
            self.context.trajectory("agent_timeout", reason="did not end by itself", timeout_sec=limit)
            result = TurnResult("timeout", timed_out=True)
        if result.timed_out or result.stop_reason == "exited":
            await self._shut(turn.role.name)
        return result

    async def _opened(self, turn: PlannedTurn) -> Agent:
        role = turn.role
        agent = self._open.get(role.name)
        if agent is None:
            agent = self.context.make_agent(role.agent, role.model)
            logs = self._logs / role.name if self._several else self._logs
            ask = self.gatekeeper if self.gatekeeper.active() else None
            settings = self.context.agent_context(self.step, turn, self.sandbox, logs, ask)
            self._open[role.name] = agent  # before it is up, so that a cancelled start is closed too
            await agent.start(settings)
        return agent

    async def _shut(self, role: str) -> None:
        agent = self._open.pop(role, None)
        if agent is None:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SEC):
            await agent.close()

    async def close(self) -> None:
        """End all agents, also while being cancelled; what they placed in the sandbox is gone then."""
        for role in list(self._open):
            await self._shut(role)
