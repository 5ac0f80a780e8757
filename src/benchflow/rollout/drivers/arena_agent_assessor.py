"""Opens an agent of ours as the assessor of a game: in a fresh box of the verifier's environment, with its tools."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio

from benchflow.agents.protocol import Agent, TurnResult
from benchflow.agents.registry import create_agent
from benchflow.agents.script_agent import ScriptAgent
from benchflow.arena.a2a_client import A2APeer
from benchflow.arena.assessing.agent_that_assesses import AgentAssessor, AssessorTools, Turn
from benchflow.arena.peers.arena_network import ANY_PORT, HOST, App, AppTransport, serve_in
from benchflow.arena.peers.role_tools import Offered, ToolEndpoint, ToolWorld
from benchflow.errors import AgentFailure, PackageError, UsageError, VerifierFailure
from benchflow.files.redaction import Redactor
from benchflow.files.scratch import scratch
from benchflow.record import Trajectory
from benchflow.rollout.plan import MODEL, NOP, ORACLE, SCRIPT
from benchflow.sandbox.protocol import Sandbox
from benchflow.task.verifier.declared_strategies import AssessorStrategy
from benchflow.verifier.judging.judge_box import box_context, judge_box
from benchflow.verifier.strategy_run import Run

TRAJECTORY: Final = "assessor-trajectory.jsonl"
"""What the agent did, in the record of the verification."""
_NO_LIMIT: Final = 7 * 24 * 3600.0
_CLOSE_SEC: Final = 30.0


def make_assessor(run: Run, strategy: AssessorStrategy) -> Agent:
    """The agent, not started; `script:FILE` is a file of the verifier."""
    name = strategy.agent or ""
    kind, _, argument = name.partition(":")
    path = f"verifier.strategies.{run.name}.agent"
    if kind in (ORACLE, NOP):
        message = f"{path}: '{name}' assesses nothing."
        raise PackageError(message, code="assessor-unsupported", file="verifier.md")
    if kind == SCRIPT:
        file = run.scope.file(argument)
        if file is None:
            message = f"{path}: the script '{argument}' is not in the verifier folder."
            raise PackageError(message, code="missing-file", file="verifier.md")
        return ScriptAgent(name, file.read_bytes())
    try:
        return create_agent(name, strategy.model, environ={**run.machine, **run.variables.values})
    except UsageError as error:
        raise PackageError(f"{path}: {error}", code=error.code, file="verifier.md") from error


async def agent_assessor(
    run: Run,
    strategy: AssessorStrategy,
    apps: Mapping[str, App],
    world: ToolWorld | None,
    stack: AsyncExitStack,
) -> tuple[AgentAssessor, Sandbox]:
    """The executor of the agent, and its box; both end with the stack. `apps` are the endpoints of participants."""
    agent = make_assessor(run, strategy)
    variables = {**run.machine, **run.variables.values}
    secrets = [variables[name] for name in agent.variables() if variables.get(name)]
    redactor = Redactor((*run.variables.secret.values(), *secrets))
    nothing: Path = stack.enter_context(scratch("assessor-"))
    sandbox = await stack.enter_async_context(judge_box(run, agent, nothing))
    events = stack.enter_context(Trajectory(run.output / TRAJECTORY, redactor))
    logs = run.output / "assessor"
    made = box_context(run, agent, sandbox, variables, events, redactor, logs, strategy.model)
    context, grant = await stack.enter_async_context(made)
    kind = agent.name.partition(":")[0]

    async def open_turn(tools: AssessorTools) -> Turn:
        given = replace(context, peer=kind == SCRIPT, tools=tools if kind == MODEL else None)
        if kind not in (MODEL, SCRIPT):
            endpoint = ToolEndpoint(tools)
            listener = await sandbox.listen(ANY_PORT)
            await stack.enter_async_context(serve_in(listener, endpoint))
            offered = Offered(endpoint, f"http://{HOST}:{listener.getsockname()[1]}/mcp")
            given = replace(given, mcp_servers=(offered.server(),))
        try:
            await agent.start(given)
        except AgentFailure as error:
            raise VerifierFailure(f"The assessor could not start: {error}", code="assessor-unreachable") from error

        async def take(prompt: str) -> TurnResult:
            events("user_message", text=prompt)
            try:
                result = await agent.prompt(prompt, timeout=None)
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SEC):
                    await agent.close()
            place = context.models.place if context.models is not None else None
            unreached = grant.failure_of(place.role, place.source) if place is not None else None
            if unreached is not None:
                raise unreached.error()
            return result

        return take

    peers: dict[str, A2APeer] = {}
    for index, (role, app) in enumerate(apps.items()):
        peer = A2APeer(f"http://p{index}.arena.invalid", timeout=_NO_LIMIT, transport=AppTransport(app))
        peers[role] = await stack.enter_async_context(peer)
    document = run.scope.document
    prompt = document.role_prompts.get(strategy.role, "") if document is not None else ""
    bounds = (run.scope.reward_range.low, run.scope.reward_range.high)
    return AgentAssessor(prompt, bounds, open_turn, peers, world, talks=kind != SCRIPT), sandbox
