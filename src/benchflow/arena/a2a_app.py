"""An A2A server: JSON-RPC and REST of 1.x, JSON-RPC of 0.3, and the card on both paths, in front of an `Executor`.

`a2a_app` makes the application; `serving` puts it on a port. Requests are bounded in size and time; a token, or without
one the loopback host, is checked before anything is read.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from benchflow.arena.a2a_cards import CARD_PATHS, Card
from benchflow.arena.a2a_dialects import Malformed, read_message, render_event, render_task
from benchflow.arena.a2a_tasks import MOST_RUNNING, Executor, NoRoom, RunningTask, TaskTable, Updates
from benchflow.arena.a2a_types import INTERRUPTED, TERMINAL, MessageEvent, StatusEvent, Version
from benchflow.files.strict_json import StrictJSONError, parse_json

__all__ = ["A2AApp", "Executor", "Updates", "a2a_app"]

MAX_BODY: Final = 4 << 20
BODY_SEC: Final = 60.0
HEARTBEAT_SEC: Final = 15.0
_VERBS: Final[Mapping[str, tuple[Version, str]]] = {
    "SendMessage": ("1.0", "send"),
    "SendStreamingMessage": ("1.0", "stream"),
    "GetTask": ("1.0", "get"),
    "ListTasks": ("1.0", "list"),
    "CancelTask": ("1.0", "cancel"),
    "SubscribeToTask": ("1.0", "subscribe"),
    "message/send": ("0.3", "send"),
    "message/stream": ("0.3", "stream"),
    "tasks/get": ("0.3", "get"),
    "tasks/cancel": ("0.3", "cancel"),
    "tasks/resubscribe": ("0.3", "subscribe"),
}
_UNSUPPORTED: Final = ("PushNotification", "pushNotification", "ExtendedAgentCard", "agent/")
"""Parts of the names of methods that the protocol has and this server does not offer."""
_STATUS: Final[Mapping[int, tuple[int, str, str]]] = {
    -32001: (404, "NOT_FOUND", "TASK_NOT_FOUND"),
    -32002: (409, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE"),
    -32004: (400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION"),
    -32009: (400, "UNIMPLEMENTED", "VERSION_NOT_SUPPORTED"),
    -32601: (404, "NOT_FOUND", "METHOD_NOT_FOUND"),
    -32602: (400, "INVALID_ARGUMENT", "INVALID_PARAMS"),
    -32600: (400, "INVALID_ARGUMENT", "INVALID_REQUEST"),
    -32700: (400, "INVALID_ARGUMENT", "INVALID_REQUEST"),
}
"""Errors of REST: status, its name, and the reason that clients tell errors by."""


class Refused(Exception):
    """A request that is answered with an error: a code of JSON-RPC or A2A, and a sentence."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code: Final = code


@dataclass(frozen=True, slots=True)
class _Wire:
    """How answers to one request are written."""

    version: Version
    rpc_id: Any = None
    rest: bool = False

    def wrap(self, result: Any) -> dict[str, Any]:
        return result if self.rest else {"jsonrpc": "2.0", "id": self.rpc_id, "result": result}

    def event(self, result: Any) -> bytes:
        return b"data: " + _dumped(self.wrap(result)) + b"\n\n"

    def answer(self, result: Any) -> Response:
        return Response(_dumped(self.wrap(result)), media_type="application/json")

    def error(self, error: Refused) -> Response:
        if not self.rest:
            told = {"code": error.code, "message": str(error)}
            return JSONResponse({"jsonrpc": "2.0", "id": self.rpc_id, "error": told})
        status, name, reason = _STATUS.get(error.code, (500, "INTERNAL", "INTERNAL_ERROR"))
        info = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": reason,
            "domain": "a2a-protocol.org",
            "metadata": {},
        }
        shown = {"code": status, "status": name, "message": str(error), "details": [info]}
        return JSONResponse({"error": shown}, status)


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


class A2AApp(Starlette):
    """The application; its answers live as long as `running`, which is also its lifespan."""

    def __init__(self, tasks: TaskTable, handler: _Handler, card: Card, prefix: str) -> None:
        shown = _dumped(card.to_dict())

        async def show_card(_: Request) -> Response:
            return Response(shown, media_type="application/json")

        routes: list[Any] = [Route(path, show_card, methods=["GET"]) for path in CARD_PATHS]
        routes += [
            Route("/", handler.rpc, methods=["POST"]),
            Route("/message:{verb}", handler.rest_send, methods=["POST"]),
            Route("/tasks", handler.rest_list, methods=["GET"]),
            Route("/tasks/{task}", handler.rest_task, methods=["GET", "POST"]),
        ]
        if prefix:
            routes = [Mount(prefix, routes=routes), Route(prefix, handler.rpc, methods=["POST"])]
        self.running: Final = tasks.running

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with tasks.running():
                yield

        super().__init__(routes=routes, lifespan=lifespan)


def a2a_app(
    card: Card,
    executor: Executor,
    *,
    prefix: str = "",
    max_body: int = MAX_BODY,
    most_running: int = MOST_RUNNING,
    time_limit: float | None = None,
    cancel_on_disconnect: bool = False,
    told: Callable[[Exception], None] | None = None,
) -> A2AApp:
    """The application of one agent. `async with app.running()` must be open while it is served without a lifespan.

    `prefix` is a path below which everything is; a random one keeps strangers out where clients can send no token.
    `cancel_on_disconnect` ends an answer whose client is gone; `told` gets what the executor raises.
    """
    tasks = TaskTable(executor, most=most_running, time_limit=time_limit, told=told)
    return A2AApp(tasks, _Handler(tasks, max_body, cancel_on_disconnect=cancel_on_disconnect), card, prefix)


class _Handler:
    """Requests of all bindings and versions, as calls of the table of tasks."""

    def __init__(self, tasks: TaskTable, max_body: int, *, cancel_on_disconnect: bool) -> None:
        self._tasks: Final = tasks
        self._max_body: Final = max_body
        self._cancel_on_disconnect: Final = cancel_on_disconnect

    async def rpc(self, request: Request) -> Response:
        """JSON-RPC; the name of a method says of which version it is."""
        wire = _Wire("1.0")
        try:
            body = await self._body(request)
            if not isinstance(body, dict) or body.get("jsonrpc") != "2.0" or not isinstance(body.get("method"), str):
                raise Refused(-32600, "The request is not one of JSON-RPC 2.0.")
            rpc_id = body.get("id")
            if isinstance(rpc_id, (bool, float, dict, list)):
                raise Refused(-32600, "The id of the request must be a string or an integer.")
            version, verb = _method(body["method"], request.headers.get("a2a-version"))
            wire = _Wire(version, rpc_id)
            return await self._do(verb, body.get("params") or {}, wire, request)
        except Refused as error:
            return wire.error(error)
        except ClientDisconnect:
            return Response(status_code=400)

    async def rest_send(self, request: Request) -> Response:
        return await self._rest(request.path_params["verb"], request, ("send", "stream"))

    async def rest_list(self, request: Request) -> Response:
        return await self._rest("list", request, ("list",), dict(request.query_params))

    async def rest_task(self, request: Request) -> Response:
        """`GET /tasks/ID`, `POST /tasks/ID:cancel`, `GET` or `POST /tasks/ID:subscribe`."""
        task_id, _, verb = request.path_params["task"].partition(":")
        known = ("get", "subscribe") if request.method == "GET" else ("cancel", "subscribe")
        return await self._rest(verb or "get", request, known, {"id": task_id})

    async def _rest(
        self, verb: str, request: Request, known: tuple[str, ...], params: dict[str, Any] | None = None
    ) -> Response:
        wire = _Wire("1.0", rest=True)
        try:
            _require_version(request.headers.get("a2a-version"))
            if verb not in known:
                raise Refused(-32601, f"Unknown method {verb[:60]!r}.")
            return await self._do(verb, await self._body(request) if params is None else params, wire, request)
        except Refused as error:
            return wire.error(error)
        except ClientDisconnect:
            return Response(status_code=400)

    async def _body(self, request: Request) -> Any:
        sent = bytearray()
        with anyio.move_on_after(BODY_SEC) as waiting:
            async for chunk in request.stream():
                sent += chunk
                if len(sent) > self._max_body:
                    raise Refused(-32600, f"The body exceeds the limit of {self._max_body} bytes.")
        if waiting.cancelled_caught:
            raise Refused(-32600, f"The body did not arrive within {BODY_SEC:g} s.")
        try:
            return parse_json(bytes(sent))
        except StrictJSONError as error:
            raise Refused(-32700, f"The body {error}.") from error

    async def _do(self, verb: str, params: Any, wire: _Wire, request: Request) -> Response:
        if not isinstance(params, dict):
            raise Refused(-32602, "The parameters must be an object.")
        if verb in ("send", "stream"):
            return await self._send(verb, params, wire, request)
        if verb == "list":
            return self._list(params, wire)
        task = self._find(params)
        if verb == "cancel":
            if task.ended:
                raise Refused(-32002, "The task has ended.")
            await self._tasks.cancel(task)
        elif verb == "subscribe":
            if task.ended:
                raise Refused(-32004, "The task has ended: there is nothing to subscribe to.")
            return _streamed(self._stream(task, wire, start=None))
        return wire.answer(render_task(task.show(wire.version), wire.version, wrapped=False))

    async def _send(self, verb: str, params: dict[str, Any], wire: _Wire, request: Request) -> Response:
        try:
            message = read_message(params.get("message"))
        except Malformed as error:
            raise Refused(-32602, f"Malformed: {error}.") from error
        if not message.parts:
            raise Refused(-32602, "The message has no parts.")
        if message.task_id is not None:
            earlier = self._find({"id": message.task_id})
            latest = earlier.events[-1]
            if not (earlier.ended and isinstance(latest, StatusEvent) and latest.state in INTERRUPTED):
                ended = isinstance(latest, StatusEvent) and latest.state in TERMINAL
                raise Refused(-32004, f"The task {'has ended' if ended else 'is under way'} and takes no message.")
        try:
            task = self._tasks.start(message)
        except NoRoom as error:
            raise Refused(-32603, "The server answers as many messages as it may; try again later.") from error
        if verb == "stream":
            await task.decided()
            if task.failed is not None:
                raise Refused(-32603, task.failed)
            return _streamed(self._stream(task, wire, start=0))
        await self._until(task, request, ended=not _at_once(params))
        if task.failed is not None:
            raise Refused(-32603, task.failed)
        first = task.events[0]
        if isinstance(first, MessageEvent):
            return wire.answer(render_event(first, wire.version))
        return wire.answer(render_task(task.show(wire.version), wire.version, wrapped=True))

    async def _until(self, task: RunningTask, request: Request, *, ended: bool) -> None:
        """Wait for the answer; a client that is gone may end it."""
        async with anyio.create_task_group() as watching:
            if self._cancel_on_disconnect:
                watching.start_soon(self._end_with, request, task)
            await (task.wait() if ended else task.decided())
            watching.cancel_scope.cancel()

    async def _end_with(self, request: Request, task: RunningTask) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue
        await self._tasks.cancel(task)

    async def _stream(self, task: RunningTask, wire: _Wire, *, start: int | None) -> AsyncGenerator[bytes]:
        """A message, or the task and what happens to it; `start` None: from now on."""
        try:
            position = len(task.events) if start is None else start
            if task.is_task:
                shown = task.show(wire.version) if start is None else task.begun(wire.version)
                yield wire.event(render_task(shown, wire.version, wrapped=True))
                position = max(position, 1)
            while True:
                while position < len(task.events):
                    yield wire.event(render_event(task.events[position], wire.version))
                    position += 1
                if task.ended:
                    return
                with anyio.move_on_after(HEARTBEAT_SEC) as waiting:
                    await task.changed()
                if waiting.cancelled_caught:
                    yield b": waiting\n\n"
        finally:
            if self._cancel_on_disconnect and start is not None and not task.ended:
                with anyio.CancelScope(shield=True):
                    await self._tasks.cancel(task)

    def _find(self, params: Mapping[str, Any]) -> RunningTask:
        task_id = params.get("id")
        found = self._tasks.find(task_id) if isinstance(task_id, str) else None
        if found is None:
            raise Refused(-32001, "Unknown task.")
        return found

    def _list(self, params: Mapping[str, Any], wire: _Wire) -> Response:
        """The tasks of one context: a client that does not know its id learns nothing of others."""
        context = params.get("contextId")
        if not isinstance(context, str) or not context:
            raise Refused(-32602, "Tasks are listed by context: contextId is required.")
        shown = [task.show(wire.version) for task in self._tasks.of_context(context)]
        size = len(shown)
        return wire.answer({"tasks": shown, "nextPageToken": "", "pageSize": size, "totalSize": size})


def _streamed(events: AsyncGenerator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def _at_once(params: Mapping[str, Any]) -> bool:
    configuration = params.get("configuration")
    if not isinstance(configuration, dict):
        return False
    return configuration.get("blocking") is False or configuration.get("returnImmediately") is True


def _require_version(version: str | None) -> None:
    if version and version.partition(".")[0] not in ("0", "1"):
        raise Refused(-32009, f"A2A {version[:20]} is not supported; 1.0 and 0.3 are.")


def _method(name: str, version: str | None) -> tuple[Version, str]:
    _require_version(version)
    if name in _VERBS:
        return _VERBS[name]
    if any(part in name for part in _UNSUPPORTED):
        raise Refused(-32004, f"{name[:60]} is not supported.")
    raise Refused(-32601, f"Unknown method {name[:60]!r}.")
