"""Tries that ended on the driver: the node was lost, or what should travel could not. Each has a record of its own."""

from __future__ import annotations

from pathlib import Path

import anyio

from benchflow.evaluation.work import WorkItem
from benchflow.record import AgentPart, JobRequest, NodeNote, Player, Result, RolloutFolder, SandboxPart, write_document
from benchflow.rewards import Attributed, Unscored, Verdict
from benchflow.rollout.lifecycle import Draft, carry_out


async def record_unscored(
    item: WorkItem, request: JobRequest, folder: Path, verdict: Unscored, node: NodeNote | None = None
) -> Result:
    """The result of a try that no node has a record of, written into its folder."""
    await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
    player = item.line_up.agent if item.line_up is not None else Player(request.agent, request.model)
    agent = AgentPart(player.agent, player.model, exit_code=None, timed_out=False)
    draft = Draft(item.task.record(), agent, SandboxPart(None, None, None), item.key, item.attempt)

    if node is not None:
        draft.note(node=node)

    async def work() -> Verdict:
        raise Attributed(verdict)

    return await carry_out(draft, RolloutFolder(folder), work, durable=False)


async def record_here(result: Result, folder: Path) -> None:
    """Write down a result as the driver knows it."""
    await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
    write_document(RolloutFolder(folder).result, result.to_dict(), sync=False)
