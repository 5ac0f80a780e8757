"""`branch_execution: forked-snapshot`: every choice an agent offered is also tried the other way.

Before each turn the sandbox is forked. When the agent asks in that turn, each option that was not taken becomes a
branch: a new agent plays the turn again from the fork and gets that answer, the remaining turns follow, and the outcome
is verified. Branches of branches are run too, up to a limit. The score of record is the main line's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import anyio

from benchflow.agents.protocol import PermissionOption
from benchflow.errors import BenchflowError
from benchflow.rewards import attribute
from benchflow.rollout.context import RolloutContext
from benchflow.rollout.permissions import Gatekeeper
from benchflow.rollout.phases.freeze import keeps_processes
from benchflow.rollout.plan import StepPlan
from benchflow.rollout.rounds import BranchPoint, Conversation
from benchflow.rollout.stage import Stage
from benchflow.sandbox.protocol import Sandbox

MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class BranchNode:
    """One way a rollout went, or could have gone."""

    id: str
    parent: str
    """The line of work it leaves, `main` or a branch."""
    round: int
    request: str
    option: PermissionOption
    status: Literal["taken", "scored", "unscored", "not-run"]
    """`taken`: the parent itself went this way."""
    step: str | None = None
    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    agent: Mapping[str, Any] | None = None

    def record(self) -> dict[str, Any]:
        """The node for the record; its own folder is `branches/<id>`."""
        optional = {"step": self.step, "error": self.error, "agent": self.agent}
        outcome = {"reward": self.reward, "rewards": dict(self.rewards)} if self.status == "scored" else {}
        return {
            "id": self.id,
            "parent": self.parent,
            "round": self.round,
            "request": self.request,
            "option": {"id": self.option.id, "kind": self.option.kind},
            "status": self.status,
            **outcome,
            **{key: value for key, value in optional.items() if value is not None},
        }


@dataclass(frozen=True, slots=True)
class _Way:
    """One option of one request, and the answers that lead to it."""

    option: PermissionOption
    request: str
    decisions: tuple[str, ...]
    taken: bool


@dataclass(slots=True)
class BranchTree:
    """All branches of a rollout, run one after the other."""

    context: RolloutContext
    new_gatekeeper: Callable[[], Gatekeeper]
    nodes: list[BranchNode] = field(default_factory=list)
    _run: int = 0

    def record(self) -> list[dict[str, Any]]:
        return [node.record() for node in self.nodes]

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
        node = BranchNode(name, parent, point.position, way.request, way.option, "taken", step.name)
        if way.taken:
            self.nodes.append(node)
            return
        if self._run >= self.context.config.max_branches:
            self.nodes.append(replace(node, status="not-run"))
            return
        self._run += 1
        place = len(self.nodes)
        self.nodes.append(replace(node, status="not-run"))  # its place in the tree, before its own branches
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
        node: BranchNode,
        sandbox: Sandbox,
        points: list[BranchPoint],
    ) -> BranchNode:
        context = self.context
        gatekeeper = self.new_gatekeeper()
        gatekeeper.decisions.extend(way.decisions)
        stage = Stage(context, step, sandbox, context.place("branches", node.id, "agent"), gatekeeper)
        conversation = Conversation(context, stage, point.user, branch=node.id, points=points)
        try:
            try:
                await conversation.run(start=point.position, prompt=point.prompt, last=point.last)
            finally:
                await stage.close()
            if not keeps_processes(context.plan.view, step.name):
                await sandbox.kill_processes()
            checked = await context.verifier.verify(
                context.place("branches", node.id, "verifier"), rollout=context.folder, step=step.name, sandbox=sandbox
            )
        except BenchflowError as error:
            failed = attribute(error, "agent", "agent").record()["error"]
            return replace(node, status="unscored", error=failed, agent=stage.tally.record())
        record = checked.verdict.record()
        return replace(
            node,
            status=checked.verdict.status,
            reward=record["reward"],
            rewards=record["rewards"],
            error=record["error"],
            agent=stage.tally.record(),
        )


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
