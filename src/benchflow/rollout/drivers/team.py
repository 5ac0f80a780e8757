"""A team at work on a step: its roles at the same time or one after the other, in workspaces of their own or in one.

stage (a scene, or a turn) ──> everyone receives ──> lines run ──> everyone hands over ──> next stage

The team's own workspace is the environment's: what roles with workspaces of their own deliver are the declared
artifacts, which are copied into it. A role that fails ends the others; one that reaches its limit ends its own turn.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from benchflow.agents.protocol import PermissionHandler, PermissionRequest
from benchflow.files.scratch import scratch
from benchflow.rewards import attributed
from benchflow.rollout.drivers.turns import Gatekeeper, OpenAgents, TurnContext, log_round
from benchflow.rollout.phases.handing_over import Handed, Handoffs
from benchflow.rollout.phases.role_boxes import RoleBoxes
from benchflow.rollout.phases.team_memory import TeamMemory
from benchflow.rollout.plan import HandoffPlan, StepPlan
from benchflow.rollout.team_schedule import Line, Stage, stages
from benchflow.rollout.users import RoundResult
from benchflow.sandbox.protocol import Sandbox


@dataclass(slots=True)
class Team:
    """The roles of one step."""

    context: TurnContext
    step: StepPlan
    plan: HandoffPlan
    new_gatekeeper: Callable[[], Gatekeeper]
    agents: dict[str, OpenAgents] = field(default_factory=dict)
    """The open agents of every role that has worked, for their totals."""
    limits_reached: tuple[str, ...] = ()
    """Of the boxes of roles, as far as the team came to its end."""
    _previous: tuple[RoundResult, ...] = ()
    _began: float = 0.0

    async def run(self) -> None:
        """All stages, until the last or until time or calls of models are used up; nothing stays open."""
        shared = self.context.environment.sandbox
        self._began = anyio.current_time()
        memory = TeamMemory(self.plan.trajectory)
        asking = anyio.Lock()
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(scratch("handoff-"))
            (folder / "store").mkdir()
            boxes = await stack.enter_async_context(RoleBoxes(self.context.environment))
            stack.push_async_callback(self._close)
            handoffs = Handoffs(shared, self.plan.artifacts, folder / "store", await self._owner(shared))
            for stage in stages(self.step.turns, parallel=self.plan.parallel):
                places = {line.role: await self._box(boxes, line.role) for line in stage.lines}
                await self._receive(handoffs, places)
                await self._play(stage, places, memory, asking)
                await self._hand_over(handoffs, stage, places)
                if any(self.agents[role].exhausted for role in places):
                    break
            with attributed("sandbox", "agent"):
                await memory.forget([shared])
                for role in boxes.opened:
                    self.limits_reached += await (await boxes.of(role)).limits_reached()

    async def _box(self, boxes: RoleBoxes, role: str) -> Sandbox:
        with attributed("sandbox", "agent"):
            return await boxes.of(role) if self.plan.isolated else self.context.environment.sandbox

    async def _owner(self, shared: Sandbox) -> str | None:
        """Who files belong to that are copied between workspaces: the account that agents work as."""
        if not (self.plan.isolated and self.plan.artifacts):
            return None
        user = str(self.step.agent.user) if self.step.agent.user is not None else None
        with attributed("sandbox", "agent"):
            said = await shared.exec(["id", "-un"], user=user, cwd="/", timeout=60)
        return said.stdout.decode(errors="replace").strip() or None

    async def _receive(self, handoffs: Handoffs, places: dict[str, Sandbox]) -> None:
        if not self.plan.artifacts:
            return
        with attributed("sandbox", "agent"):
            for role, box in self._givers(places).items():
                if refused := await handoffs.receive(role, box):
                    self._record(None, role, refused)

    async def _hand_over(self, handoffs: Handoffs, stage: Stage, places: dict[str, Sandbox]) -> None:
        """In the order of the scene, so that it is always the same role that counts."""
        if not self.plan.artifacts:
            return
        with attributed("sandbox", "agent"):
            for role, box in self._givers(places).items():
                handed = await handoffs.hand_over(role, box)
                self._record(stage.scene, role if role in places else None, handed)

    def _record(self, scene: str | None, role: str | None, handed: list[Handed]) -> None:
        where = {"scene": scene, "step": self.step.name, "role": role}
        self.context.trajectory("handoff", **where, artifacts=[item.record() for item in handed])

    def _givers(self, places: dict[str, Sandbox]) -> dict[str, Sandbox]:
        """Who hands over: every role of its own, or in one workspace all of them together."""
        if self.plan.isolated or len(places) == 1:
            return places
        return {"the team": self.context.environment.sandbox}

    async def _play(self, stage: Stage, places: dict[str, Sandbox], memory: TeamMemory, asking: anyio.Lock) -> None:
        """Every line of a stage; the first that fails ends the others and is raised."""
        for role, box in places.items():
            if role not in self.agents:
                self.agents[role] = self._opened(box, asking)
        results: dict[str, RoundResult] = {}
        failures: list[BaseException] = []

        async def play(line: Line) -> None:
            try:
                await self._line(line, places[line.role], memory, results)
            except Exception as error:  # noqa: BLE001 - raised below, as itself and not as one of a group
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for line in stage.lines:
                group.start_soon(play, line)
        if failures:
            raise failures[0]
        for line in stage.lines:
            if line.role in results:
                memory.add(results[line.role])
        self._previous = tuple(results[line.role] for line in stage.lines if line.role in results)

    def _opened(self, box: Sandbox, asking: anyio.Lock) -> OpenAgents:
        place = self.context.folder.step(self.step.name).agent
        gatekeeper = self.new_gatekeeper()
        if gatekeeper.handler is not None:
            gatekeeper.handler = _one_at_a_time(gatekeeper.handler, asking)
        return OpenAgents(self.context, self.step, box, place, gatekeeper, began=self._began)

    async def _line(self, line: Line, box: Sandbox, memory: TeamMemory, results: dict[str, RoundResult]) -> None:
        """The turns of one role in a stage; its last result has the events of all of them."""
        agents = self.agents[line.role]
        handed = [result for result in self._previous if result.role != line.role]
        for index, (number, turn) in enumerate(line.turns):
            if agents.exhausted:
                return
            told = "" if index else await memory.brief(line.role, box, handed)
            where: dict[str, Any] = {"step": self.step.name, "round": number}
            outcome = await agents.take_turn(turn, turn.prompt + told, **where)
            before = results.get(line.role)
            result = RoundResult(
                round=number,
                trajectory=outcome.events,
                n_tool_calls=outcome.tool_calls,
                scene=turn.scene,
                role=line.role,
                handoff_from=handed[0].role if len(handed) == 1 and not index else None,
                handoff_to=line.role if len(handed) == 1 and not index else None,
            )
            log_round(self.context, self.step, result, turn.prompt + told, outcome)
            if before is not None:
                result = replace(
                    result,
                    trajectory=[*before.trajectory, *result.trajectory],
                    n_tool_calls=before.n_tool_calls + result.n_tool_calls,
                )
            results[line.role] = result

    async def _close(self) -> None:
        for agents in self.agents.values():
            await agents.close()


def _one_at_a_time(handler: PermissionHandler, lock: anyio.Lock) -> PermissionHandler:
    """A handler that one role at a time can ask."""

    async def ask(request: PermissionRequest) -> str | None:
        async with lock:
            return await handler(request)

    return ask
