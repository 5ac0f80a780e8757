"""`branch_execution: forked-snapshot`: every choice an agent offered is also tried the other way.

Before each turn the sandbox is forked. When the agent asks in that turn, each option that was not taken becomes a
branch: a new agent plays the turn again from the fork and gets that answer, the remaining turns follow, and the outcome
is verified. Branches of branches are run too, up to a limit. The score of record is the main line's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import anyio

from benchflow.agents.protocol import PermissionOption
from benchflow.errors import BenchflowError
from benchflow.record import BranchOption, BranchRecord, NoOutcome, outcome_of
from benchflow.rewards import attribute
from benchflow.rollout.drivers.conversation import BranchPoint, Conversation
from benchflow.rollout.drivers.turns import Gatekeeper, OpenAgents, TurnContext
from benchflow.rollout.phases.step_bounds import keeps_processes
from benchflow.rollout.plan import StepPlan
from benchflow.sandbox.protocol import Sandbox

MAIN: Final = "main"


_TAKEN: Final = NoOutcome("taken")
_NOT_RUN: Final = NoOutcome("not-run")


@dataclass(frozen=True, slots=True)
class _Way:
    """One option of one request, and the answers up to it."""

    option: PermissionOption
    request: str
    decisions: tuple[str, ...]
    taken: bool


@dataclass(slots=True)
class BranchTree:
    """All branches of a rollout, run one after the other."""

    context: TurnContext
    new_gatekeeper: Callable[[], Gatekeeper]
    nodes: list[BranchRecord] = field(default_factory=list)
    _run: int = 0

    async def grow(self, step: StepPlan, points: list[BranchPoint], parent: str = MAIN) -> None:
        """Run every branch that leaves these points, and the branches that leave those; ends the points' sandboxes."""
        async with AsyncExitStack() as stack:
            for point in points:
                stack.push_async_callback(_stop, point.base)
            for point in points:
                for way in _ways(point):
                    await self._follow(step, point, way, parent)

    async def _follow(self, step: StepPlan, point: BranchPoint, way: _Way, parent: str) -> None:
        name = str(len(self.nodes) + 1)
        node = BranchRecord(
            id=name,
            parent=parent,
            round=point.position,
            request=way.request,
            option=BranchOption(way.option.id, way.option.kind),
            outcome=_TAKEN,
            step=step.name,
        )
        if way.taken:
            self.nodes.append(node)
            return
        if self._run >= self.context.config.max_branches:
            self.nodes.append(replace(node, outcome=_NOT_RUN))
            return
        self._run += 1
        place = len(self.nodes)
        self.nodes.append(replace(node, outcome=_NOT_RUN))  # its place in the tree, before its own branches
        points: list[BranchPoint] = []
        try:
            async with _forked(point.base) as sandbox:
                self.nodes[place] = await self._play(step, point, way, node, sandbox, points)
        finally:
            nested, points = points, []
            if nested:
                await self.grow(step, nested, parent=name)

    async def _play(
        self,
        step: StepPlan,
        point: BranchPoint,
        way: _Way,
        node: BranchRecord,
        sandbox: Sandbox,
        points: list[BranchPoint],
    ) -> BranchRecord:
        context = self.context
        gatekeeper = self.new_gatekeeper()
        gatekeeper.decisions.extend(way.decisions)
        place = context.folder.branch(node.id)
        agents = OpenAgents(context, step, sandbox, place.agent, gatekeeper)
        conversation = Conversation(context, agents, point.user, branch=node.id, points=points)
        try:
            try:
                await conversation.run(start=point.position, prompt=point.prompt, last=point.last)
            finally:
                await agents.close()
            if not keeps_processes(context.environment.preparation, step.name):
                await sandbox.kill_processes()
            checked = await context.verifier.verify(
                place.verifier, rollout=context.folder.path, step=step.name, sandbox=sandbox
            )
        except BenchflowError as error:
            failed = outcome_of(attribute(error, "agent", "agent"))
            return replace(node, outcome=failed, agent=agents.tally.end())
        return replace(node, outcome=outcome_of(checked.verdict), agent=agents.tally.end())


def _ways(point: BranchPoint) -> Iterator[_Way]:
    """Every option of every request of a turn that a branch has not decided itself."""
    answers: list[str] = []
    for asked in point.asked:
        if asked.by != "branch":
            for option in asked.request.options:
                taken = option.id == asked.answer
                yield _Way(option, asked.request.title, (*answers, option.id), taken)
        answers.append(asked.answer or "")


@asynccontextmanager
async def _forked(base: Sandbox) -> AsyncIterator[Sandbox]:
    sandbox = await base.fork()
    try:
        yield sandbox
    finally:
        await _stop(sandbox)


async def _stop(sandbox: Sandbox) -> None:
    with anyio.CancelScope(shield=True):
        await sandbox.stop()
