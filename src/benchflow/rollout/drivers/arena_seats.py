"""The participants of a game, each in a box of its own: started before the assessor, ended with the game.

A seat is opened into a `Participant`: an agent behind the bridge, a program that speaks A2A itself, or a peer that
somebody else runs. What cannot be opened is a participant that has failed, which the game then meets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from benchflow.agents.protocol import AgentContext, TurnResult
from benchflow.arena.a2a_cards import Card
from benchflow.arena.a2a_client import A2APeer
from benchflow.arena.a2a_tasks import Executor
from benchflow.arena.a2a_types import PeerFailure, Reply
from benchflow.arena.peers.bridge import Bridge
from benchflow.arena.peers.message_log import MessageLog
from benchflow.arena.peers.participant import Participant
from benchflow.arena.peers.participant_program import PeerExecutor, ProgramAgent, ProgramExecutor
from benchflow.environment import Environment
from benchflow.errors import AgentFailure
from benchflow.rewards import attributed
from benchflow.rollout.drivers.turns import Gatekeeper, OpenAgents, TurnContext
from benchflow.rollout.phases.step_bounds import begin
from benchflow.rollout.plan import NOP, ORACLE, SCRIPT, PlannedTurn, StepPlan
from benchflow.rollout.seats import Seat

if TYPE_CHECKING:
    from benchflow.models.gateway import Grant

GRACE_SEC: Final = 45.0
"""How long past its limit an agent of ours may take until the bridge itself gives up: agents end their turns first."""
_SILENT_KINDS: Final = (ORACLE, NOP, SCRIPT)
"""Agents that read no prose."""
_MAX_ID: Final = 200


@dataclass(slots=True)
class OpenSeat:
    """A participant and what belongs to it."""

    seat: Seat
    participant: Participant
    environment: Environment | None = None
    """Its box; None for somebody else's agent."""
    agents: list[OpenAgents] | None = None
    grant: Grant | None = None
    """Its share of the calls of models."""


class _Line:
    """One conversation with an agent of ours."""

    def __init__(self, agents: OpenAgents, turn: PlannedTurn) -> None:
        self._agents: Final = agents
        self._turn: Final = turn
        self._round = 0

    async def turn(self, prompt: str, note: Callable[[Mapping[str, Any]], None]) -> TurnResult:
        number, self._round = self._round, self._round + 1
        with self._agents.line.heard(note):
            outcome = await self._agents.take_turn(self._turn, prompt, round=number)
        return outcome.result

    async def close(self) -> None:
        await self._agents.close()


class Seats:
    """Opens seats; everything that it opened ends with the stack it was given."""

    def __init__(
        self,
        context: TurnContext,
        step: StepPlan,
        log: MessageLog,
        assessor: str,
        gatekeeper: Callable[[], Gatekeeper],
        on_failure: Callable[[], None],
        adapt: Callable[[str, AgentContext], AgentContext],
    ) -> None:
        """`adapt` adds to what the agent of a role is given."""
        self._context: Final = context
        self._step: Final = step
        self._log: Final = log
        self._assessor: Final = assessor
        self._gatekeeper: Final = gatekeeper
        self._on_failure: Final = on_failure
        self._adapt: Final = adapt

    async def box(self, seat: Seat, stack: AsyncExitStack) -> Environment | None:
        """The box of a participant, started and ready; None for somebody else's agent."""
        if seat.url is not None:
            return None
        with attributed("environment", "environment"):
            environment = self._context.environment.another()
            await environment.start()
            await stack.enter_async_context(environment)
            await begin(environment, replace(self._step, prompt=seat.instructions))
        return environment

    async def open(self, seat: Seat, environment: Environment | None, stack: AsyncExitStack) -> OpenSeat:
        """The participant of a seat; one that cannot be reached has failed already."""
        name, limit = seat.role.name, seat.role.timeout_sec
        agents: list[OpenAgents] = []
        grant = self._share(stack)
        try:
            executor, card = await self._executor(seat, environment, agents, grant, stack)
        except AgentFailure as error:
            participant = self._participant(name, _Nobody())
            participant.fail(error if isinstance(error, PeerFailure) else PeerFailure("unreachable", str(error)))
            return OpenSeat(seat, participant, environment, agents, grant)
        participant = self._participant(name, executor)
        participant.card = card
        bridged = isinstance(executor, Bridge)
        participant.limit_sec = None if limit is None else limit + GRACE_SEC if bridged else limit
        return OpenSeat(seat, participant, environment, agents, grant)

    def _share(self, stack: AsyncExitStack) -> Grant | None:
        """A part of the calls that the rollout may make: what one participant uses up is not another's."""
        context = self._context
        if context.grant is None:
            return None
        limits = context.config.call_limits
        own = sum(seat.url is None for seat in context.plan.seats)
        grant = context.grant.of_role(limits.share(own) if limits is not None and own else context.grant.request.limits)
        stack.push_async_callback(grant.close)
        return grant

    def _participant(self, role: str, executor: Executor) -> Participant:
        return Participant(role, executor, self._log, self._assessor, on_failure=self._on_failure)

    async def _executor(
        self,
        seat: Seat,
        environment: Environment | None,
        agents: list[OpenAgents],
        grant: Grant | None,
        stack: AsyncExitStack,
    ) -> tuple[Executor, Mapping[str, Any]]:
        name = seat.role.name
        if environment is None:
            peer = await A2APeer(seat.url or "").__aenter__()
            remote = PeerExecutor(name, peer)
            stack.push_async_callback(remote.close)
            return remote, peer.card
        turn = next(turn for turn in self._step.turns if turn.role.name == name)

        def opened(context_id: str) -> OpenAgents:
            adapted = replace(self._context, adapt=lambda made: self._seated(seat, context_id, made), grant=grant)
            logs = self._context.folder.agent
            made = OpenAgents(adapted, self._step, environment.sandbox, logs, self._gatekeeper())
            agents.append(made)
            stack.push_async_callback(made.close)
            return made

        if seat.role.agent.partition(":")[0] == "a2a":
            agent = await opened("").opened(turn)
            if isinstance(agent, ProgramAgent) and agent.peer is not None:
                program = ProgramExecutor(name, agent)
                return program, agent.peer.card

        async def line(context_id: str) -> _Line:
            return _Line(opened(context_id), turn)

        talks = seat.role.agent.partition(":")[0] not in _SILENT_KINDS
        bridge = Bridge(name, line, seat.instructions, talks=talks, limit_sec=seat.role.timeout_sec)
        stack.push_async_callback(bridge.close)
        return bridge, card_of(name, "").to_dict()

    def _seated(self, seat: Seat, context_id: str, made: AgentContext) -> AgentContext:
        """What an agent is given in a game: its role, its conversation, and tools of its own."""
        own = {"BENCHFLOW_ROLE": seat.role.name, "BENCHFLOW_CONTEXT": _safe(context_id)}
        mine = replace(made, env={**made.env, **own}, peer=True, mcp_servers=(), tools=None)
        if seat.oracle_script is not None:
            mine = replace(mine, oracle_script=seat.oracle_script)
        return self._adapt(seat.role.name, mine)


def card_of(role: str, url: str) -> Card:
    """The card of the endpoint through which an assessor meets a role."""
    return Card(role, f"The participant '{role}' of an arena.", url, skill="play")


def _safe(text: str) -> str:
    return "".join(letter for letter in text[:_MAX_ID] if letter.isprintable())


class _Nobody:
    """The executor of a participant that was never there; its failure is answered before this is asked."""

    async def answer(self, *_: Any) -> Reply:
        raise PeerFailure("unreachable", "The participant is not there.")

    async def cancel(self, *_: Any) -> None:
        """Nothing is under way."""
