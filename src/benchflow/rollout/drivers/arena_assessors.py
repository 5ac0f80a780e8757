"""The assessor of a game, of any kind, as an A2A peer in the verifier's ground, with a way to each participant.

- without `agent`: the built-in one, in this process;
- `a2a:COMMAND`: a program of the package, in a box that has the verifier's files and variables;
- any other agent: in such a box too, behind the bridge, with tools to talk to participants and to give rewards.

A participant is reached at an endpoint of the driver only: on the loopback of that box, or in this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from benchflow.agents.running import OutputLog
from benchflow.arena.a2a_app import a2a_app
from benchflow.arena.a2a_cards import Card
from benchflow.arena.a2a_client import A2APeer
from benchflow.arena.a2a_tasks import Executor
from benchflow.arena.a2a_types import PeerFailure
from benchflow.arena.assessing.live_verdict import WINNER_REWARDS
from benchflow.arena.assessor_builtin import BuiltinAssessor
from benchflow.arena.peers.arena_network import ANY_PORT, HOST, AppTransport, serve_in
from benchflow.arena.peers.participant import Participant
from benchflow.arena.peers.participant_program import Program
from benchflow.arena.peers.role_tools import Offered, RoleTools, ToolCallsApp, ToolEndpoint, ToolWorld
from benchflow.errors import VerifierFailure
from benchflow.files.redaction import make_redactor
from benchflow.rollout.drivers.arena_seats import card_of
from benchflow.rollout.policies import assessor_model
from benchflow.sandbox.protocol import Sandbox
from benchflow.task.verifier.declared_strategies import AssessorStrategy
from benchflow.verifier.boxes import Box
from benchflow.verifier.judging.judge_client import JudgeModel
from benchflow.verifier.strategy_run import Run

PROGRAM: Final = "a2a:"
OUTPUT: Final = "assessor.txt"
"""What the program of an assessor printed, in the record of the verification."""
START_SEC: Final = 120.0
_NO_LIMIT: Final = 7 * 24 * 3600.0
_INSIDE: Final = "http://{name}.arena.invalid"
"""Addresses in this process; no resolver knows them."""


@dataclass(frozen=True, slots=True)
class OpenAssessor:
    """An assessor that is ready, and where it finds the participants."""

    peer: A2APeer
    urls: Mapping[str, str]
    problems: Sequence[Exception] = ()
    """What an assessor in this process raised; its client is not told."""


async def open_assessor(
    run: Run,
    strategy: AssessorStrategy,
    config: Mapping[str, Any],
    participants: Mapping[str, Participant],
    stack: AsyncExitStack,
    world: ToolWorld | None = None,
) -> OpenAssessor:
    """Start the assessor; it ends with the stack. `world` has the tools of the environment and who called them."""
    if strategy.agent is None:
        return await _built_in(run, strategy, config, participants, stack)
    if strategy.agent.startswith(PROGRAM):
        box = await stack.enter_async_context(run.box())
        urls = {role: await served(participant, box.sandbox, stack) for role, participant in participants.items()}
        env = {**box.env, **await _told_of_tools(world, strategy.role, box, stack)}
        return OpenAssessor(await _program(run, strategy.agent.removeprefix(PROGRAM), box, env, stack), urls)
    from benchflow.rollout.drivers.arena_agent_assessor import agent_assessor

    apps = {}
    for index, (role, participant) in enumerate(participants.items()):
        apps[role] = await endpoint(participant, _INSIDE.format(name=f"p{index}"), stack)
    executor, sandbox = await agent_assessor(run, strategy, apps, world, stack)
    urls = {role: await served(participant, sandbox, stack) for role, participant in participants.items()}
    problems: list[Exception] = []
    return OpenAssessor(await _inside(strategy.role, executor, stack, problems), urls, problems)


async def _built_in(
    run: Run,
    strategy: AssessorStrategy,
    config: Mapping[str, Any],
    participants: Mapping[str, Participant],
    stack: AsyncExitStack,
) -> OpenAssessor:
    urls = {role: _INSIDE.format(name=f"p{index}") for index, role in enumerate(participants)}
    apps = {role: await endpoint(participants[role], url, stack) for role, url in urls.items()}
    otherwise = run.scope.config.judge.model
    model = assessor_model(strategy, otherwise) or otherwise
    judge = JudgeModel(model, {**run.machine, **run.variables.values}, run.scope.config.timeout_sec, access=run.models)

    async def ask(messages: list[dict[str, str]]) -> str:
        return (await judge.ask(messages)).text

    def peer_of(role: str, url: str) -> A2APeer:
        return A2APeer(url, timeout=_NO_LIMIT, transport=AppTransport(apps[role]))

    known = {key: value for key, value in config.items() if key != WINNER_REWARDS}
    executor = BuiltinAssessor(known, peer_of, ask)
    for participant in participants.values():
        limits = (participant.limit_sec, executor.game.turn_timeout_sec)
        participant.limit_sec = min(limit for limit in limits if limit is not None)
    problems: list[Exception] = []
    return OpenAssessor(await _inside(strategy.role, executor, stack, problems), urls, problems)


async def _inside(role: str, executor: Executor, stack: AsyncExitStack, problems: list[Exception]) -> A2APeer:
    """An executor of this process as a peer; what it raises is kept in `problems`."""
    url = _INSIDE.format(name="assessor")
    card = Card(role, "The assessor of an arena.", url, skill="assess")
    app = a2a_app(card, executor, told=problems.append)
    await stack.enter_async_context(app.running())
    return await stack.enter_async_context(A2APeer(url, timeout=_NO_LIMIT, transport=AppTransport(app)))


async def _told_of_tools(world: ToolWorld | None, role: str, box: Box, stack: AsyncExitStack) -> dict[str, str]:
    """The tools of the environment in the assessor's box: to use them, and to see who did what."""
    if world is None:
        return {}
    tools = ToolEndpoint(RoleTools(world, role))
    found: dict[str, str] = {}
    for app, name in ((tools, "mcp"), (ToolCallsApp(world), "tool-calls")):
        listener = await box.sandbox.listen(ANY_PORT)
        await stack.enter_async_context(serve_in(listener, app))
        found[name] = f"http://{HOST}:{listener.getsockname()[1]}/{name}"
    return {**Offered(tools, found["mcp"]).variables(), "BENCHFLOW_TOOL_CALLS_URL": found["tool-calls"]}


async def _program(run: Run, command: str, box: Box, env: Mapping[str, str], stack: AsyncExitStack) -> A2APeer:
    log = OutputLog(run.output / OUTPUT, make_redactor(frozenset(run.variables.secret.values())))
    program = await Program.start(command, command, box.sandbox, log, user=box.user, env=env, cwd=run.scope.mount)
    stack.push_async_callback(program.close)
    try:
        peer = await program.peer(_NO_LIMIT, START_SEC)
    except PeerFailure as error:
        message = f"The assessor did not start: {error}"
        raise VerifierFailure(message, code=f"assessor-{error.problem}") from error
    stack.push_async_callback(peer.__aexit__, None, None, None)
    return peer


async def endpoint(participant: Participant, url: str, stack: AsyncExitStack) -> Any:
    """The application through which an assessor meets a participant."""
    app = a2a_app(card_of(participant.role, url), participant)
    await stack.enter_async_context(app.running())
    return app


async def served(participant: Participant, sandbox: Sandbox, stack: AsyncExitStack) -> str:
    """That endpoint on the loopback of the assessor's box; its address there."""
    listener = await sandbox.listen(ANY_PORT)
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    app = await endpoint(participant, url, stack)
    await stack.enter_async_context(serve_in(listener, app))
    return f"{url}/"
