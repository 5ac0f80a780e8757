"""`ArenaDriver`: live peers in boxes of their own, and an assessor in the verifier's ground that scores as they talk.

    participants (A2A, one box each) ──> tools of the environment ──> assessor: one task ──> verdict, all ended

Every message passes an endpoint of the driver in both directions and is written down there; neither side reaches the
other in another way. The game is the verification: `verifier.strategies.assessor` calls back into `_assess`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from typing import Any, Final

import anyio

from benchflow.agents.protocol import AgentContext
from benchflow.arena.a2a_types import PeerFailure
from benchflow.arena.assessing.assessment import Assessment
from benchflow.arena.assessing.live_verdict import (
    DRIVER_KEYS,
    Forfeit,
    GameVerdict,
    read_forfeit,
    read_winner_rewards,
)
from benchflow.arena.peers.arena_network import ANY_PORT, HOST, serve_in
from benchflow.arena.peers.message_log import MessageLog
from benchflow.arena.peers.role_tools import Offered, RoleTools, ToolEndpoint, ToolWorld, tool_world
from benchflow.errors import Issue
from benchflow.record import AgentEnd, ArenaPart, MessageFile, Workspace, write_document
from benchflow.rewards import UNIT, Attributed, Unscored, Verdict, attributed
from benchflow.rollout.course import Checkpoint, Past
from benchflow.rollout.drivers.agents import AgentDriver
from benchflow.rollout.drivers.arena_assessors import open_assessor
from benchflow.rollout.drivers.arena_audit import audit_messages
from benchflow.rollout.drivers.arena_outcome import BUILT_IN, Rules, played, scored, settled
from benchflow.rollout.drivers.arena_seats import OpenSeat, Seats
from benchflow.rollout.drivers.turns import TurnContext
from benchflow.rollout.lifecycle import Draft
from benchflow.rollout.phases.step_bounds import begin, collect
from benchflow.rollout.plan import MODEL, StepPlan
from benchflow.sandbox.protocol import Sandbox
from benchflow.sandbox.task_policy import mcp_servers
from benchflow.task.verifier.declared_strategies import AssessorStrategy
from benchflow.verifier.strategy_run import Run

_NO_LIMIT: Final = 7 * 24 * 3600.0
_TICK_SEC: Final = 0.25
_SHOWN: Final = 10
_NOT_KEPT: Final = (
    "Every participant of an arena has a workspace of its own, and a game cannot be scored again from them."
)


class ArenaDriver(AgentDriver):
    """The one step of an arena: a game."""

    def __init__(self, context: TurnContext, draft: Draft) -> None:
        super().__init__(context, draft)
        self._seats: Final = context.plan.seats
        self._roles: Final = tuple(seat.role.name for seat in self._seats)
        self._failed: Final = anyio.Event()
        """Set at the first failure of a participant."""
        self._open: list[OpenSeat] = []
        self._verdict: GameVerdict | None = None
        self._assessment: Assessment | None = None
        self._strategy: AssessorStrategy | None = None
        self._log: MessageLog | None = None
        self._world: ToolWorld | None = None
        self._offered: dict[str, Offered] = {}
        self._seed: int | None = None

    async def take_step(self, step: Checkpoint) -> Past:  # noqa: ARG002 - an arena is one step
        context, draft = self._context, self._draft
        plan = context.plan.steps[0]
        document = context.plan.view.verifier_document
        selected = document.selected if document is not None else None
        if not isinstance(selected, AssessorStrategy):
            raise Attributed(
                Unscored("package", "plan", "no-assessor", "The package has no strategy of type assessor.")
            )
        self._strategy = selected
        with (
            closing(MessageFile(context.folder, context.redactor)) as file,
            draft.timed("agent"),
        ):
            log = MessageLog(file, context.trajectory)
            try:
                async with AsyncExitStack() as stack:
                    with attributed("environment", "environment"):
                        await begin(context.environment, plan)
                    await self._tools(file, stack)
                    with attributed("agent", "agent"):
                        await self._sit_down(plan, log, stack)
                    context.trajectory("verification")
                    context.verifier.assess = self._assess
                    place = context.folder.step(None).verifier
                    checked = await context.verifier.verify(place, rollout=context.folder.path, soft=True)
                    context.verifier.assess = None
                    await self._collect(plan)
            finally:
                end = self._end()
                draft.arena = self._part(log, file)
            with attributed("agent", "agent"):
                await self._audit()
        return Past(checked.verdict, checked.record(), end)

    async def _sit_down(self, plan: StepPlan, log: MessageLog, stack: AsyncExitStack) -> None:
        """Open every seat, all at once: first the boxes, which must all be there, then who plays."""
        assessor = self._strategy.role if self._strategy is not None else "assessor"
        seats = Seats(self._context, plan, log, assessor, self._gatekeeper, self._failed.set, self._given)
        self._log = log
        boxes: dict[str, Any] = {}

        async def prepare(index: int) -> None:
            role = self._roles[index]
            boxes[role] = environment = await seats.box(self._seats[index], stack)
            if environment is not None:
                await self._offer(role, environment.sandbox, stack)

        async with anyio.create_task_group() as group:
            for index in range(len(self._seats)):
                group.start_soon(prepare, index)
        opened: dict[str, OpenSeat] = {}

        async def open_one(index: int) -> None:
            seat = self._seats[index]
            opened[seat.role.name] = await seats.open(seat, boxes[seat.role.name], stack)

        async with anyio.create_task_group() as group:
            for index in range(len(self._seats)):
                group.start_soon(open_one, index)
        self._open = [opened[role] for role in self._roles]

    async def _tools(self, file: MessageFile, stack: AsyncExitStack) -> None:
        """Start the tools of the package where no participant is."""
        context = self._context
        declared = mcp_servers(context.plan.view, context.machine)
        if not declared:
            return
        with attributed("environment", "environment"):
            user = context.plan.steps[0].agent.user
            sandbox = context.environment.sandbox
            started = tool_world(sandbox, declared, file, str(user) if user is not None else None)
            self._world = await stack.enter_async_context(started)

    async def _offer(self, role: str, sandbox: Sandbox, stack: AsyncExitStack) -> None:
        """The tools on the loopback of a participant's box, for the token of its role."""
        if self._world is None:
            return
        endpoint = ToolEndpoint(RoleTools(self._world, role))
        listener = await sandbox.listen(ANY_PORT)
        await stack.enter_async_context(serve_in(listener, endpoint))
        self._offered[role] = Offered(endpoint, f"http://{HOST}:{listener.getsockname()[1]}/mcp")

    def _given(self, role: str, made: AgentContext) -> AgentContext:
        """What the agent of a role is given beside what every agent is: the tools of the environment."""
        offered = self._offered.get(role)
        if offered is None:
            return made
        agent = next(seat.role.agent for seat in self._seats if seat.role.name == role)
        calls_itself = agent.partition(":")[0] == MODEL
        return replace(
            made,
            env={**made.env, **offered.variables()},
            mcp_servers=() if calls_itself else (offered.server(),),
            tools=offered.tools if calls_itself else None,
            redactor=made.redactor.with_values([offered.endpoint.token]),
        )

    async def _assess(self, run: Run) -> Verdict:
        """The game, from the first message to the assessor to its verdict."""
        strategy = run.strategy
        if not isinstance(strategy, AssessorStrategy):
            raise TypeError(f"{run.name} is not an assessor")
        config = json.loads(json.dumps(strategy.config, default=dict))
        forfeit, winners = read_forfeit(config, run.scope.reward_range), read_winner_rewards(config)
        context = self._context
        self._assessment = heard = Assessment(context.folder, context.redactor, context.trajectory, self._roles)
        async with AsyncExitStack() as stack:
            peers = {seat.participant.role: seat.participant for seat in self._open}
            with attributed("verifier", "verify"):
                assessor = await open_assessor(run, strategy, config, peers, stack, self._world)
            self._write_cards(assessor.peer.card)
            sent = {key: value for key, value in config.items() if key not in DRIVER_KEYS}
            if context.config.seed is not None:
                sent.setdefault("seed", context.config.seed)
            self._seed = sent.get("seed") if isinstance(sent.get("seed"), int) else None
            request = {"participants": assessor.urls, "config": sent}
            ended = await self._play(heard, assessor.peer, request, forfeit, run.scope.config.timeout_sec)
        if assessor.problems and heard.state == "failed":
            heard.said = f"{type(assessor.problems[0]).__name__}: {assessor.problems[0]}"
        for problem in heard.problems[:_SHOWN]:
            run.findings.add(Issue("reward-event", "warning", "", f"The assessor sent {problem}."))
        if self._log is not None:
            await audit_messages(run, self._log, self._seats, self._roles)
        rules = Rules(self._roles, run.scope.reward_range, forfeit, winners)
        failures = {seat.participant.role: seat.participant.failure for seat in self._open}
        self._verdict = settled(heard, ended, rules, failures)
        drawn = self._verdict.details.get("seed") if isinstance(self._verdict.details, dict) else None
        if self._seed is None and isinstance(drawn, int):  # the assessor drew one itself
            self._seed = drawn
        return scored(run, strategy, self._seats, self._verdict, heard)

    async def _play(
        self, heard: Assessment, peer: Any, request: Mapping[str, Any], forfeit: Forfeit | None, own_sec: float
    ) -> Unscored | None:
        """Follow the assessor to its end; the verdict if something else ended the game first."""
        ended: list[Unscored] = []
        async with anyio.create_task_group() as group:

            async def watch_participants() -> None:
                await self._failed.wait()
                fatal = self._fatal(forfeit)
                if fatal is not None:
                    ended.append(fatal)
                    group.cancel_scope.cancel()

            async def watch_assessor() -> None:
                """The time of participants is not the assessor's: only what it takes itself counts."""
                used = 0.0
                while used < own_sec:
                    await anyio.sleep(_TICK_SEC)
                    if not any(seat.participant.waiting for seat in self._open):
                        used += _TICK_SEC
                message = f"The assessor exceeded its limit of {own_sec:g} s."
                ended.append(Unscored("verifier", "verify", "timeout", message))
                group.cancel_scope.cancel()

            group.start_soon(watch_participants)
            group.start_soon(watch_assessor)
            try:
                await heard.listen(peer, request, _NO_LIMIT)
            except PeerFailure as error:
                said = str(error).replace("The peer at ", "The assessor at ", 1)
                ended.append(Unscored("verifier", "verify", f"assessor-{error.problem}", said))
            group.cancel_scope.cancel()
        return self._fatal(forfeit) or (ended[0] if ended else None)

    def _fatal(self, forfeit: Forfeit | None) -> Unscored | None:
        """The failure of a participant that ends the game at once."""
        failures = {seat.participant.role: seat.participant.failure for seat in self._open}
        return Rules(self._roles, UNIT, forfeit).fatal(failures)

    def _write_cards(self, assessor: Mapping[str, Any]) -> None:
        """The cards as they were served: what participants say of themselves, and the assessor."""
        folder, role = self._context.folder, self._strategy.role if self._strategy is not None else "assessor"
        cards = {seat.participant.role: dict(seat.participant.card) for seat in self._open}
        folder.a2a.mkdir(parents=True, exist_ok=True)
        write_document(folder.a2a_cards, self._context.redactor.data({**cards, role: dict(assessor)}))

    async def _collect(self, plan: StepPlan) -> None:
        """Copy declared artifacts out of each box, below the name of its role."""
        if not plan.artifacts:
            return
        for seat in self._open:
            if seat.environment is not None:
                target = self._context.folder.artifacts / seat.participant.role
                found = await collect(seat.environment.sandbox, plan.artifacts, target)
                named = tuple(
                    replace(item, destination=f"{seat.participant.role}/{item.destination}") for item in found
                )
                self._draft.note(artifacts=self._draft.notes.artifacts + named)

    def _end(self) -> AgentEnd:
        """How the agent of the rollout ended, and what all of them used."""
        self._draft.note(workspace=Workspace(kept=False, reason=_NOT_KEPT))
        end = AgentEnd(None, timed_out=False)
        for seat in reversed(self._open):
            for agents in seat.agents or ():
                end = agents.tally.end()
                self._draft.add_agent(end, agents.tally.usage)
        for seat in self._open:
            self._draft.note_calls(seat.grant)
        self._draft.note_calls(self._context.grant)
        return end

    def _part(self, log: MessageLog, file: MessageFile) -> ArenaPart:
        world, strategy = self._world, self._strategy
        part = ArenaPart(
            roles={},
            scored_role=self._roles[0],
            assessor=(strategy.agent if strategy is not None else None) or BUILT_IN,
            winner=None,
            seed=self._seed,
            rotation={},
            messages=file.message_count,
            events=len(self._assessment.rewards) if self._assessment is not None else 0,
            tool_calls=file.call_count,
        )
        opened = {seat.participant.role: seat.participant for seat in self._open}
        calls = world.by_role if world is not None else {}
        return played(part, self._seats, opened, self._verdict, log.by_role, calls)
