"""Packages that are served (`bench serve ors`) as an Inspect task.

    inspect eval benchcube_inspect/packages -T url=http://… --model …

Each sample is a session with the package: its tools act in the package's sandbox, and its own verifier scores the work.
A sample without a score is unscored (`Score.unscored`): reducers leave it out, and its metadata say why. It is never 0.
"""

from __future__ import annotations

import os

import anyio.to_thread
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageUser
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import Tool, ToolDef, ToolParams
from inspect_ai.util import JSONSchema

from benchflow.trainers import client as thin

__all__ = ["packages", "play", "verdict"]

TOKEN_VARIABLE = "BENCHCUBE_TOKEN"  # the name of a variable, not a secret
SESSION = "benchcube_session"
"""The key of a sample's store with the id of its session."""


def connected(url: str) -> thin.Client:
    return thin.Client(url, token=os.environ.get(TOKEN_VARIABLE))


@task
def packages(url: str, split: str | None = None, environment: str | None = None, strict: bool = False) -> Task:
    """All packages of a server, or of one split or environment. The token is in `BENCHCUBE_TOKEN`.

    With `strict`, a package without a score is an error of its sample instead of being left out.
    """
    with connected(url) as client:
        tasks = client.tasks(split, environment)
    samples = [Sample(input=each.id, id=each.id, metadata={"url": url, "package": each.row()}) for each in tasks]
    return Task(dataset=MemoryDataset(samples), solver=play(), scorer=verdict(strict=strict))


@solver
def play() -> Solver:
    """Open the session of a sample, give the model its prompt and its tools, and let it act until it stops."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        client, package = _of(state)
        with client:
            try:
                session = await anyio.to_thread.run_sync(client.open, package)
            except thin.Unscored as error:
                state.metadata["unscored"] = error.error
                return state
            try:
                state.messages = [ChatMessageUser(content=session.prompt)]
                state.tools = [_tool(session, tool) for tool in session.tools]
                state = await generate(state, tool_calls="loop")
                state.metadata |= await anyio.to_thread.run_sync(_outcome, session)
            finally:
                await anyio.to_thread.run_sync(session.close)
        return state

    return solve


@scorer(metrics=[mean(), stderr()])
def verdict(strict: bool = False) -> Scorer:
    """The reward of the package's own verifier."""

    async def score(state: TaskState, target: Target) -> Score:
        del target
        reward, unscored = state.metadata.get("reward"), state.metadata.get("unscored")
        if reward is not None:
            return Score(value=float(reward), metadata={"rewards": state.metadata.get("rewards")})
        error = unscored or {"category": "infrastructure", "code": "not-played", "reason": "The sample was not played."}
        if strict:
            raise thin.Unscored(error)
        return Score.unscored(explanation=str(error.get("reason")), metadata={"unscored": error})

    return score


def _of(state: TaskState) -> tuple[thin.Client, thin.Task]:
    return connected(state.metadata["url"]), thin.Task(**state.metadata["package"])


def _outcome(session: thin.Session) -> dict[str, object]:
    try:
        return {"reward": session.score()}
    except thin.Unscored as error:
        return {"unscored": error.error}


def _tool(session: thin.Session, tool: thin.Tool) -> Tool:
    async def execute(**arguments: object) -> str:
        try:
            return (await anyio.to_thread.run_sync(lambda: session.call(tool.name, **arguments))).text
        except thin.CallRefused as refused:
            return f"error: {refused}"
        except thin.Unscored as error:
            return f"The environment is lost: {error}"

    schema = JSONSchema.model_validate(tool.input_schema)
    parameters = ToolParams(properties=schema.properties or {}, required=schema.required or [])
    return ToolDef(execute, name=tool.name, description=tool.description, parameters=parameters).as_tool()
