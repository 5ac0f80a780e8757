"""The Open Reward Standard as an ASGI application: its routes, over the sessions of a server.

Paths come with an environment (`/NAME/tools`) or without (`/tools`: the one of `X-Deployment`, else the default). A
refused call is `ok: false` and the session lives; `event: error` means that the sandbox is gone; an end without a score
is `reward: null, finished: true` with the reason in `metadata`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Final

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from benchflow.rewards import Attributed
from benchflow.serve.episode import (
    CallResult,
    score_calls,
    unscored_metadata,
    verdict_metadata,
)
from benchflow.serve.http_wire import (
    HttpError,
    answering,
    event,
    header,
    parse_object,
    read_body,
    send_bytes,
    send_events,
    send_json,
    stream_when_done,
)
from benchflow.serve.ors.ors_messages import (
    SCORES,
    asked_task,
    calls_of,
    clients_secrets,
    index_of,
    last_events,
    objects_of,
    rendered_block,
    spec_list,
    split_of,
    tool_list,
)
from benchflow.serve.package_episode import PACKAGE_TOOLS
from benchflow.serve.served_tasks import ServedEnvironment, ServedTasks, UnknownTask
from benchflow.serve.sessions import NoRoom, Pending, Session, SessionExists, Sessions, UnknownSession

KEY_HEADER: Final = "x-api-key"
"""Where ORS clients send their key: here it is the token."""
READY_SEC: Final = 25.0
"""How long a request waits for an environment that starts; then the client has to ask again."""
STARTING: Final = {"X-Backend-State": "starting", "Retry-After": "2"}
MOST_CANDIDATES: Final = 64
_LONGEST_ID: Final = 200


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a route that belongs to an environment."""

    scope: Scope
    receive: Receive
    send: Send
    environment: str | None
    """As the client named it; None: the default."""

    async def body(self) -> dict[str, Any]:
        return parse_object(await read_body(self.scope, self.receive))

    @property
    def sid(self) -> str | None:
        found = header(self.scope, b"x-session-id")
        if found is not None and (not found or len(found) > _LONGEST_ID or not found.isascii() or " " in found):
            raise HttpError(400, f"X-Session-ID must have 1 to {_LONGEST_ID} visible characters.")
        return found


Handler = Callable[[Request], Awaitable[None]]


def ors_app(tasks: ServedTasks, sessions: Sessions) -> ASGIApp:
    """The application; `sessions` must be running."""
    return answering(_Wire(tasks, sessions).answer, _told, sessions.log)


def _told(error: Exception) -> HttpError | None:
    match error:
        case UnknownTask() | SessionExists():
            return HttpError(400, str(error))
        case UnknownSession():
            return HttpError(404, str(error))
        case NoRoom():
            return HttpError(503, str(error), STARTING)
        case _:
            return None


class _Wire:
    def __init__(self, tasks: ServedTasks, sessions: Sessions) -> None:
        self._tasks: Final = tasks
        self._sessions: Final = sessions
        self._whole: Final[Mapping[tuple[str, str], Handler]] = {
            ("GET", "health"): self._health,
            ("GET", "metrics"): self._metrics,
            ("GET", "version"): self._version,
            ("GET", "list_environments"): self._environments,
            ("POST", "create_session"): self._create_session,
            ("POST", "create"): self._create,
            ("POST", "ping"): self._ping,
            ("POST", "delete"): self._delete,
            ("POST", "delete_session"): self._delete_session,
        }
        self._of_environment: Final[Mapping[tuple[str, str], Handler]] = {
            ("GET", "tools"): self._tools,
            ("GET", "splits"): self._splits,
            ("POST", "tasks"): self._list,
            ("POST", "num_tasks"): self._number,
            ("POST", "task"): self._one,
            ("POST", "task_range"): self._range,
            ("GET", "prompt"): self._prompt,
            ("GET", "task_tools"): self._task_tools,
            ("POST", "call"): self._call,
            ("POST", "score_group"): self._score_group,
        }

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the route and let it answer."""
        method, parts = scope["method"], [part for part in scope["path"].split("/") if part]
        named = header(scope, b"x-deployment")
        if len(parts) == 1:
            handler = self._whole.get((method, parts[0])) or self._of_environment.get((method, parts[0]))
        else:
            handler = self._of_environment.get((method, parts[-1])) if len(parts) in (2, 3) else None
            named = "/".join(parts[:-1])
        if handler is None:
            known = {path for _, path in (*self._whole, *self._of_environment)}
            if parts and len(parts) < 4 and parts[-1] in known:
                raise HttpError(405, f"{method} is not a method of /{parts[-1][:100]}.")
            raise HttpError(404, f"Unknown route {scope['path'][:200]}.")
        await handler(Request(scope, receive, send, named))

    def _environment(self, request: Request) -> ServedEnvironment:
        try:
            return self._tasks.environment(request.environment)
        except UnknownTask as error:
            raise HttpError(404, str(error)) from error

    def _session(self, request: Request) -> Session:
        if request.sid is None:
            raise HttpError(400, "The header X-Session-ID is required.")
        session = self._sessions.get(request.sid)
        if session.task is None:
            raise UnknownSession(f"The session '{session.id[:64]}' has no task: create it first.")
        return session

    # -- the server ------------------------------------------------------------------------------------------------

    async def _health(self, request: Request) -> None:
        await send_json(request.send, {"status": "ok"})

    async def _metrics(self, request: Request) -> None:
        text = self._sessions.metrics.text().encode()
        await send_bytes(request.send, text, kind=b"text/plain; version=0.0.4; charset=utf-8")

    async def _version(self, request: Request) -> None:
        await send_json(request.send, {"version": version("benchcube"), "server": "benchcube"})

    async def _environments(self, request: Request) -> None:
        await send_json(request.send, list(self._tasks.environments))

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def _tools(self, request: Request) -> None:
        environment = self._environment(request)
        await send_json(request.send, tool_list(() if environment.is_cube else PACKAGE_TOOLS, group=False))

    async def _splits(self, request: Request) -> None:
        types = self._environment(request).types()
        await send_json(request.send, [{"name": name, "type": kind} for name, kind in types.items()])

    async def _list(self, request: Request) -> None:
        environment, body = self._environment(request), await request.body()
        tasks = environment.tasks(split_of(body))
        await send_json(request.send, spec_list(environment, tasks))

    async def _number(self, request: Request) -> None:
        environment, body = self._environment(request), await request.body()
        await send_json(request.send, {"num_tasks": len(environment.tasks(split_of(body)))})

    async def _one(self, request: Request) -> None:
        environment, body = self._environment(request), await request.body()
        task = environment.task(split_of(body), index_of(body, "index"))
        await send_json(request.send, {"task": task.spec(), "env_name": environment.name})

    async def _range(self, request: Request) -> None:
        environment, body = self._environment(request), await request.body()
        ends = [None if body.get(name) is None else index_of(body, name) for name in ("start", "stop")]
        await send_json(request.send, spec_list(environment, environment.tasks(split_of(body))[slice(*ends)]))

    # -- sessions --------------------------------------------------------------------------------------------------

    async def _create_session(self, request: Request) -> None:
        """A place for a session: nothing starts, since clients open one for every question they ask."""
        await request.body()
        self._environment(request)
        session = self._sessions.place()
        await send_events(request.send, (event("task_id", session.id), event("end", "")))

    async def _create(self, request: Request) -> None:
        body = await request.body()
        if request.sid is None:
            raise HttpError(400, "The header X-Session-ID is required.")
        named = body.get("env_name")
        if named is not None and not isinstance(named, str):
            raise HttpError(422, "env_name must be a text.")
        environment = self._environment(replace(request, environment=named or request.environment))
        if body.get("toolset_name") is not None:
            raise HttpError(400, "toolset_name: this environment has no toolsets.")
        secrets = clients_secrets(header(request.scope, b"x-secrets"), body.get("secrets"))
        session = self._sessions.begin(asked_task(environment, body), request.sid, secrets)
        await send_json(request.send, {"sid": session.id})

    async def _ping(self, request: Request) -> None:
        if request.sid is None:
            raise HttpError(400, "The header X-Session-ID is required.")
        self._sessions.get(request.sid)
        await send_json(request.send, {"status": "ok"})

    async def _delete(self, request: Request) -> None:
        if request.sid is None:
            raise HttpError(400, "The header X-Session-ID is required.")
        await self._sessions.end(request.sid)
        await send_json(request.send, {"status": "ok", "sid": request.sid})

    async def _delete_session(self, request: Request) -> None:
        """The end of a place, or of a session whose client did not delete it; nothing to do is fine."""
        with contextlib.suppress(UnknownSession):
            await self._sessions.end(request.sid)
        await send_json(request.send, {"status": "ok"})

    # -- episodes --------------------------------------------------------------------------------------------------

    async def _ready(self, request: Request) -> Session:
        session = self._session(request)
        try:
            with anyio.fail_after(READY_SEC):
                await session.wait_ready()
        except TimeoutError:
            raise HttpError(503, "The environment is still starting; try again.", STARTING) from None
        except Attributed as error:
            told = unscored_metadata(error.verdict)
            sentence = f"The environment could not start: {error.verdict.reason}"
            raise HttpError(500, sentence, {"X-Backend-State": "failed"}, told) from error
        return session

    async def _prompt(self, request: Request) -> None:
        session = await self._ready(request)
        await send_json(request.send, [rendered_block(block) for block in session.prompt])

    async def _task_tools(self, request: Request) -> None:
        session = await self._ready(request)
        await send_json(request.send, tool_list(session.begun.tools(), group=session.begun.scores_groups))

    async def _call(self, request: Request) -> None:
        session, body = self._session(request), await request.body()
        asked = body.get("task_id")
        if asked is not None:
            await self._deliver(request, session, session.pending.get(asked) if isinstance(asked, str) else None)
            return
        name, arguments = body.get("name"), body.get("input", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise HttpError(422, "A call needs a name, and an input that is an object.")
        await self._deliver(request, session, self._sessions.call(session, name, arguments))

    async def _score_group(self, request: Request) -> None:
        """Score candidates by the calls in their messages, each on a copy of the current state."""
        session, body = await self._ready(request), await request.body()
        if not session.begun.scores_groups:
            raise HttpError(404, "This task does not score groups.")
        asked = body.get("task_id")
        if asked is not None:
            await self._deliver(request, session, session.pending.get(asked) if isinstance(asked, str) else None)
            return
        candidates = [calls_of(each) for each in objects_of(body, "candidates")]
        if not 0 < len(candidates) <= MOST_CANDIDATES:
            raise HttpError(422, f"candidates must be a list of 1 to {MOST_CANDIDATES}.")

        async def score() -> CallResult:
            verdicts = await score_calls(session.begun, candidates)
            scores = [{"reward": verdict.reward, "metadata": verdict_metadata(verdict)} for verdict in verdicts]
            return CallResult((), metadata={SCORES: scores})

        await self._deliver(request, session, self._sessions.run(session, score))

    async def _deliver(self, request: Request, session: Session, pending: Pending | None) -> None:
        if pending is None:
            await send_events(request.send, (event("error", "unknown task_id"),))
            return
        with session.in_use():
            there = await stream_when_done(request.receive, request.send, event("task_id", pending.id), pending.done)
        if there:
            await request.send({"type": "http.response.body", "body": last_events(session, pending)})
