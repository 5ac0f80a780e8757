"""`AgentServer`: the two applications of `bench serve mcp`, one for the agent and one for its harness."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchflow.errors import UsageError
from benchflow.serve.http_server import Application, Port
from benchflow.serve.mcp.agent_stage import AgentStage
from benchflow.serve.served_tasks import ServedTask, ServedTasks
from benchflow.serve.sessions import NoRoom, Sessions
from cube.access import new_token
from cube.listening import MOST_CONNECTIONS
from cube.mcp_tools import PATH, agent_app
from cube.server import harness_app


class AgentServer:
    """A stage, an MCP server on it, and the methods of its harness."""

    agent_path: Final = PATH

    def __init__(self, tasks: ServedTasks, sessions: Sessions, task_id: str | None) -> None:
        """`task_id`: begin with this task. Raises `UsageError` if there is none with that id."""
        self._sessions: Final = sessions
        self._first: Final = first_task(tasks, task_id)
        self._stage: Final = AgentStage(tasks, sessions)
        self._agents, self._mcp = agent_app(", ".join(tasks.environments), self._stage)
        self._stage.on_change = self._refresh
        self._path: Final = f"/{new_token()}"

    def harness_path(self, token: str | None) -> str:
        """Where the harness calls. Without a token it cannot be guessed, so that a local agent does not find it."""
        return "/" if token is not None else self._path

    def applications(self, harness: Port, agent: Port) -> list[Application]:
        methods = harness_app(self._stage.methods(), self.harness_path(harness.token))
        methods.routes.append(Route("/metrics", self._metrics))
        return [Application(methods, harness), Application(self._agents, agent, most_connections=MOST_CONNECTIONS)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While it is entered, agents can connect; the first episode has begun, or its failure is raised.

        Where no node can play it yet, nothing has begun.
        """
        async with self._agents.router.lifespan_context(self._agents):
            if self._first is not None:
                try:
                    await self._stage.begin(self._first)
                except NoRoom as error:  # no node of a cluster can play now: the harness begins it later
                    self._sessions.log("not_begun", task=self._first.id, reason=str(error))
            yield

    def _refresh(self) -> None:
        self._mcp.instructions = self._stage.instructions()

    async def _metrics(self, request: Request) -> Response:
        del request
        return Response(self._sessions.metrics.text(), media_type="text/plain; version=0.0.4")


def first_task(tasks: ServedTasks, task_id: str | None) -> ServedTask | None:
    """The task to begin with: the one named, or the only one; None if there are several and none is named."""
    every = [task for environment in tasks.environments.values() for task in environment.all_tasks()]
    if task_id is None:
        return every[0] if len(every) == 1 else None
    found = next((task for task in every if task.id == task_id), None)
    if found is None:
        known = ", ".join(task.id for task in every[:20])
        raise UsageError(f"Unknown task '{task_id}'; available: {known}.", code="unknown-task")
    return found
