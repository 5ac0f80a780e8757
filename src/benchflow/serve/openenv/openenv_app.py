"""The OpenEnv server as an ASGI application: sessions on `/ws` and with `/mcp`, and what the server says of itself.

A connection is a client: when it is gone, so is its sandbox, in the middle of a step too. Messages are read while a
step runs, so that a client that has vanished is noticed at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from benchflow.serve.http_wire import Disconnected, HttpError, read_body
from benchflow.serve.openenv.openenv_frames import (
    AskState,
    CallTool,
    Close,
    ErrorCode,
    FrameError,
    Rpc,
    encoded,
    error_frame,
    frame,
    json_object,
    listed,
    parse,
    parse_reset,
)
from benchflow.serve.openenv.openenv_schemas import openapi, schemas
from benchflow.serve.openenv.openenv_seat import Seat
from benchflow.serve.served_tasks import ServedEnvironment, ServedTasks, UnknownTask
from benchflow.serve.sessions import Sessions
from cube.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, Method, RpcError, answer, require

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 32
"""How many messages a client may send ahead of their answers."""
SEND_SEC: Final = 60.0
"""How long a client may take to read an answer."""
TRY_LATER: Final = 1013
TOO_MUCH: Final = 1008
"""Codes with which a connection is closed."""

SERVER_ERROR: Final = -32000
_STATUS: Final[Mapping[ErrorCode, int]] = {
    "INVALID_JSON": 400, "VALIDATION_ERROR": 422, "SESSION_ERROR": 409, "CAPACITY_REACHED": 503,
}  # fmt: skip

Endpoint = Callable[[Request], Awaitable[Any]]


class OpenEnvServer:
    """The application, and the clients that have no connection of their own."""

    def __init__(self, tasks: ServedTasks, sessions: Sessions) -> None:
        self._tasks: Final = tasks
        self._sessions: Final = sessions
        self._seats: Final[dict[str, Seat]] = {}
        """Of clients that began with `/mcp`, by session."""
        self._connected: Final[set[str]] = set()
        """Those of them that have a connection now."""

    def app(self) -> Starlette:
        about = self._about()
        gets: Mapping[str, Endpoint] = {
            "/health": _always({"status": "healthy"}),
            "/metadata": _always(about),
            "/schema": _always(schemas()),
            "/openapi.json": _always(openapi(about["name"], about["description"])),
            "/state": _always({"episode_id": None, "step_count": 0}),
            "/list_environments": _always(list(self._tasks.environments)),
            "/{environment}/splits": self._splits,
        }
        posts: Mapping[str, Endpoint] = {
            "/reset": self._reset,
            "/step": self._step,
            "/{environment}/tasks": self._task_list,
            "/{environment}/num_tasks": self._task_count,
            "/{environment}/task": self._one_task,
            "/{environment}/task_range": self._task_range,
        }
        routes = [Route(path, _answering(endpoint), methods=["GET"]) for path, endpoint in gets.items()]
        routes += [Route(path, _answering(endpoint), methods=["POST"]) for path, endpoint in posts.items()]
        own = [Route("/mcp", self._mcp, methods=["POST"]), Route("/metrics", self._metrics)]
        return Starlette(routes=[*own, *routes, WebSocketRoute("/ws", self._socket)])

    def _about(self) -> dict[str, Any]:
        environments = self._tasks.environments
        count = sum(len(environment.all_tasks()) for environment in environments.values())
        description = f"{count} tasks. A step calls a tool; 'submit' ends and scores the episode."
        unset = dict.fromkeys(("readme_content", "version", "author", "documentation_url"))
        return {"name": ", ".join(environments), "description": description, **unset}

    async def _socket(self, socket: WebSocket) -> None:
        await socket.accept()
        try:
            seat = self._seat_for(socket.query_params.get("session_id"))
        except FrameError as error:
            await _send(socket, error_frame(error.code, str(error)))
            await _hang_up(socket, TRY_LATER)
            return
        self._connected.add(seat.id)
        try:
            await self._converse(socket, seat)
        finally:
            self._connected.discard(seat.id)
            with anyio.CancelScope(shield=True):
                await self._leave(seat)
                await _hang_up(socket, 1000)

    def _seat_for(self, session_id: str | None) -> Seat:
        """A new seat, or that of a session which began with `/mcp` and has no connection yet."""
        if session_id is None:
            return Seat(self._tasks, self._sessions)
        seat = self._seat(session_id)
        if seat.id in self._connected:
            raise FrameError("SESSION_ERROR", "The session has a connection already.")
        return seat

    def _seat(self, session_id: str) -> Seat:
        seat = self._seats.get(session_id)
        if seat is None or not seat.alive:
            raise FrameError(
                "SESSION_ERROR", "Unknown session: it was never created, or was closed because it was idle."
            )
        return seat

    async def _leave(self, seat: Seat) -> None:
        self._seats.pop(seat.id, None)
        await seat.leave()

    async def _converse(self, socket: WebSocket, seat: Seat) -> None:
        """Answer one message after the other, until the client closes or is gone."""
        arrived, waiting = anyio.create_memory_object_stream[str](MAX_WAITING)
        async with anyio.create_task_group() as talking:
            talking.start_soon(_read, socket, arrived, talking.cancel_scope)
            await self._answer_all(socket, seat, waiting)
            talking.cancel_scope.cancel()

    async def _answer_all(self, socket: WebSocket, seat: Seat, waiting: MemoryObjectReceiveStream[str]) -> None:
        async with waiting:
            async for text in waiting:
                reply = await self._answer(seat, text)
                if reply is None or not await _send(socket, reply):
                    return

    async def _answer(self, seat: Seat, text: str) -> str | None:
        """The frame that answers a message; None if it is the last one."""
        try:
            message = parse(text)
            if isinstance(message, Close):
                return None
            if isinstance(message, Rpc):
                body = await answer(encoded(message.data).encode(), self._methods(seat))
                return frame("mcp", json_object(body or b'{"jsonrpc": "2.0", "id": null, "result": null}'))
            data = await seat.answer(message)
            return frame("state" if isinstance(message, AskState) else "observation", data)
        except FrameError as error:
            return error_frame(error.code, str(error), **error.more)
        except Exception as error:  # a defect of ours; the client learns of it, and its connection stays
            logger.exception("A message could not be answered")
            return error_frame("EXECUTION_ERROR", f"The server failed: {type(error).__name__}")

    def _methods(self, own: Seat | None) -> dict[str, Method]:
        """The methods of JSON-RPC: on the session of a connection, or on one that the request names."""

        def seat_of(params: Mapping[str, Any]) -> Seat:
            return own or self._seat(require(params, "session_id", str))

        async def create(params: dict[str, Any]) -> Any:
            del params
            return {"session_id": (own or self._placed()).id}

        async def close(params: dict[str, Any]) -> Any:
            seat = seat_of(params)
            if seat.id in self._connected:
                raise RpcError(INVALID_REQUEST, "A session with a connection ends when that closes.")
            await self._leave(seat)
            return {"session_id": seat.id, "closed": True}

        async def list_tools(params: dict[str, Any]) -> Any:
            return {"tools": [listed(tool, "inputSchema") for tool in seat_of(params).tools()]}

        async def call_tool(params: dict[str, Any]) -> Any:
            arguments = params.get("arguments") or {}
            if not isinstance(arguments, dict):
                raise RpcError(INVALID_PARAMS, "'arguments' must be an object.")
            done = await seat_of(params).call(CallTool(require(params, "name", str), arguments))
            text = done["observation"]["result"]
            told = {key: done[key] for key in ("reward", "done", "metadata")}
            return {"data": text, "content": [{"type": "text", "text": text}], **told}

        known = {
            "openenv/session/create": create,
            "openenv/session/close": close,
            "tools/list": list_tools,
            "tools/call": call_tool,
        }
        return {name: _as_rpc(method) for name, method in known.items()}

    def _placed(self) -> Seat:
        for gone in [session_id for session_id, seat in self._seats.items() if not seat.alive]:
            del self._seats[gone]
        seat = Seat(self._tasks, self._sessions)
        self._seats[seat.id] = seat
        return seat

    async def _mcp(self, request: Request) -> Response:
        try:
            body = await read_body(request.scope, request.receive)
        except HttpError as error:
            return _json({"detail": str(error)}, error.status)
        except Disconnected:
            return Response(status_code=400)
        reply = await answer(body, self._methods(None))
        return Response(status_code=204) if reply is None else Response(reply, media_type="application/json")

    async def _reset(self, request: Request) -> Any:
        """An episode of its own, which ends with the reply, as this protocol has it: to play, connect to /ws."""
        reset = parse_reset(await _object(request))
        seat = Seat(self._tasks, self._sessions)
        try:
            return await seat.answer(reset)
        finally:
            with anyio.CancelScope(shield=True):
                await seat.leave()

    async def _step(self, request: Request) -> Any:
        del request
        raise FrameError("SESSION_ERROR", "A step needs a session: connect to /ws.")

    async def _metrics(self, request: Request) -> Response:
        del request
        return Response(self._sessions.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _splits(self, request: Request) -> Any:
        return [{"name": name, "type": kind} for name, kind in self._environment(request).types().items()]

    async def _task_list(self, request: Request) -> Any:
        environment, split = self._environment(request), _split(await _object(request))
        return {"tasks": [task.spec() for task in environment.tasks(split)], "env_name": environment.name}

    async def _task_count(self, request: Request) -> Any:
        return {"num_tasks": len(self._environment(request).tasks(_split(await _object(request))))}

    async def _one_task(self, request: Request) -> Any:
        body = await _object(request)
        return {"task": self._environment(request).task(_split(body), _number(body, "index", 0)).spec()}

    async def _task_range(self, request: Request) -> Any:
        body = await _object(request)
        tasks = self._environment(request).tasks(_split(body))
        chosen = tasks[_number(body, "start", 0) : _number(body, "stop", len(tasks))]
        return {"tasks": [task.spec() for task in chosen]}

    def _environment(self, request: Request) -> ServedEnvironment:
        return self._tasks.environment(request.path_params["environment"])


async def _read(socket: WebSocket, arrived: MemoryObjectSendStream[str], scope: anyio.CancelScope) -> None:
    """Pass on what the client sends; when it is gone, or sends too much at once, end the conversation."""
    with suppress(WebSocketDisconnect):
        while (message := await socket.receive())["type"] == "websocket.receive":
            try:
                arrived.send_nowait(message.get("text") or "")  # bytes are not JSON, and neither is an empty text
            except anyio.WouldBlock:
                await _hang_up(socket, TOO_MUCH)
                break
    scope.cancel()


async def _send(socket: WebSocket, text: str) -> bool:
    """Whether the client took it."""
    with suppress(WebSocketDisconnect, RuntimeError), anyio.move_on_after(SEND_SEC):
        await socket.send_text(text)
        return True
    return False


async def _hang_up(socket: WebSocket, code: int) -> None:
    with suppress(WebSocketDisconnect, RuntimeError), anyio.move_on_after(5, shield=True):
        await socket.close(code)


def _as_rpc(method: Method) -> Method:
    """The method, with its refusals as errors of JSON-RPC."""

    async def call(params: dict[str, Any]) -> Any:
        try:
            return await method(params)
        except FrameError as error:
            raise RpcError(SERVER_ERROR if error.code == "CAPACITY_REACHED" else INVALID_PARAMS, str(error)) from error

    return call


def _answering(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def reply(request: Request) -> Response:
        try:
            return _json(await endpoint(request))
        except UnknownTask as error:
            return _json({"detail": str(error)}, 404)
        except FrameError as error:
            return _json({"detail": str(error), **error.more}, _STATUS.get(error.code, 500))
        except HttpError as error:
            return _json({"detail": str(error)}, error.status)
        except Disconnected:
            return Response(status_code=400)

    return reply


def _always(value: Any) -> Endpoint:
    async def endpoint(request: Request) -> Any:
        del request
        return value

    return endpoint


async def _object(request: Request) -> dict[str, Any]:
    return json_object(await read_body(request.scope, request.receive) or b"{}")


def _split(body: Mapping[str, Any]) -> str:
    split = body.get("split")
    if not isinstance(split, str):
        raise FrameError("VALIDATION_ERROR", "'split' must be a string.")
    return split


def _number(body: Mapping[str, Any], key: str, default: int) -> int:
    number = body.get(key)
    if number is None:
        return default
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise FrameError("VALIDATION_ERROR", f"'{key}' must be an integer of 0 or more.")
    return number


def _json(value: Any, status: int = 200) -> Response:
    return Response(encoded(value), status, media_type="application/json")
