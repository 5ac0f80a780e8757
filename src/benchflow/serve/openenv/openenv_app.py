"""The OpenEnv server as an ASGI application: sessions on `/ws` and with `/mcp`, and what the server says of itself.

A connection is a client: when it is gone, so is its sandbox, in the middle of a step too. Messages are read while a
step runs, so that a client that has vanished is noticed at once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from benchflow.serve.openenv.openenv_frames import (
    AskState,
    CallTool,
    Close,
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
from benchflow.serve.openenv.openenv_places import Place, Places
from benchflow.serve.openenv.openenv_schemas import openapi, schemas
from benchflow.serve.openenv.openenv_seat import Open
from benchflow.serve.served_tasks import ServedEnvironment, ServedTasks, UnknownTask
from cube.jsonrpc import INVALID_PARAMS, Method, RpcError, answer, require

logger = logging.getLogger(__name__)

MAX_MESSAGE: Final = 16 * 1024 * 1024
"""Maximum bytes of a message or a body."""
MAX_WAITING: Final = 32
"""How many messages a client may send ahead of their answers."""
SEND_SEC: Final = 60.0
"""How long a client may take to read an answer."""
TRY_LATER: Final = 1013
TOO_MUCH: Final = 1008
"""Codes with which a connection is closed."""

Endpoint = Callable[[Request], Awaitable[Any]]


class OpenEnvServer:
    """The application and the clients that use it."""

    def __init__(self, tasks: ServedTasks, open_episode: Open, *, max_sessions: int, idle_sec: float) -> None:
        self._tasks: Final = tasks
        self._places: Final = Places(tasks, open_episode, most=max_sessions, idle_sec=idle_sec)

    def app(self) -> Starlette:
        """The application; its lifespan ends what is left."""
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
        mcp = Route("/mcp", self._mcp, methods=["POST"])
        return Starlette(routes=[mcp, *routes, WebSocketRoute("/ws", self._socket)], lifespan=self._lifespan)

    def _about(self) -> dict[str, Any]:
        environments = self._tasks.environments
        count = sum(len(environment.all_tasks()) for environment in environments.values())
        description = f"{count} tasks. A step calls a tool; 'submit' ends and scores the episode."
        unset = dict.fromkeys(("readme_content", "version", "author", "documentation_url"))
        return {"name": ", ".join(environments), "description": description, **unset}

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        del app
        async with anyio.create_task_group() as reaping:
            reaping.start_soon(self._places.reap)
            try:
                yield
            finally:
                reaping.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._places.leave_all()

    async def _socket(self, socket: WebSocket) -> None:
        await socket.accept()
        wanted = socket.query_params.get("session_id")
        try:
            place = self._places.take() if wanted is None else self._places.find(wanted)
            if place.scope is not None:
                raise FrameError("SESSION_ERROR", "The session has a connection already.")
        except FrameError as error:
            await _send(socket, error_frame(error.code, str(error), **error.more))
            await _hang_up(socket, TRY_LATER)
            return
        try:
            with anyio.CancelScope() as scope:
                place.scope = scope
                await self._converse(socket, place)
        finally:
            await self._places.leave(place)
            await _hang_up(socket, 1000)

    async def _converse(self, socket: WebSocket, place: Place) -> None:
        """Answer one message after the other, until the client closes or is gone."""
        arrived, waiting = anyio.create_memory_object_stream[str](MAX_WAITING)
        async with anyio.create_task_group() as talking:
            talking.start_soon(_read, socket, arrived, talking.cancel_scope)
            await self._answer_all(socket, place, waiting)
            talking.cancel_scope.cancel()

    async def _answer_all(self, socket: WebSocket, place: Place, waiting: MemoryObjectReceiveStream[str]) -> None:
        async with waiting:
            async for text in waiting:
                with place.in_use():
                    reply = await self._answer(place, text)
                    if reply is None or not await _send(socket, reply):
                        return

    async def _answer(self, place: Place, text: str) -> str | None:
        """The frame that answers a message; None if it is the last one."""
        try:
            message = parse(text)
            if isinstance(message, Close):
                return None
            if isinstance(message, Rpc):
                body = await answer(encoded(message.data).encode(), self._methods(place))
                return frame("mcp", json_object(body or b'{"jsonrpc": "2.0", "id": null, "result": null}'))
            kind = "state" if isinstance(message, AskState) else "observation"
            return frame("state" if kind == "state" else "observation", await place.seat.answer(message))
        except FrameError as error:
            return error_frame(error.code, str(error), **error.more)
        except Exception as error:  # a defect of ours; the client is told, and may go on
            logger.exception("A message could not be answered")
            return error_frame("EXECUTION_ERROR", f"The server failed: {type(error).__name__}")

    def _methods(self, own: Place | None) -> dict[str, Method]:
        """The methods of JSON-RPC: on the session of a connection, or on one that the request names."""

        def place_of(params: Mapping[str, Any]) -> Place:
            if own is not None:
                return own
            return _found(self._places, require(params, "session_id", str))

        async def create(params: dict[str, Any]) -> Any:
            del params
            return {"session_id": (own or _taken(self._places)).seat.id}

        async def close(params: dict[str, Any]) -> Any:
            place = place_of(params)
            if place.scope is not None:
                raise RpcError(INVALID_PARAMS, "A session with a connection ends when that closes.")
            await self._places.leave(place)
            return {"session_id": place.seat.id, "closed": True}

        async def list_tools(params: dict[str, Any]) -> Any:
            tools = [listed(tool) for tool in place_of(params).seat.tools()]
            return {"tools": [{**tool, "inputSchema": tool.pop("input_schema")} for tool in tools]}

        async def call_tool(params: dict[str, Any]) -> Any:
            place, arguments = place_of(params), params.get("arguments") or {}
            if not isinstance(arguments, dict):
                raise RpcError(INVALID_PARAMS, "'arguments' must be an object.")
            try:
                with place.in_use():
                    done = await place.seat.call(CallTool(require(params, "name", str), arguments))
            except FrameError as error:
                raise RpcError(INVALID_PARAMS, str(error)) from error
            text = done["observation"]["result"]
            told = {key: done[key] for key in ("reward", "done", "metadata")}
            return {"data": text, "content": [{"type": "text", "text": text}], **told}

        return {
            "openenv/session/create": create,
            "openenv/session/close": close,
            "tools/list": list_tools,
            "tools/call": call_tool,
        }

    async def _mcp(self, request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return _json({"detail": f"The request exceeds the limit of {MAX_MESSAGE} bytes."}, 413)
        reply = await answer(body, self._methods(None))
        return Response(status_code=204) if reply is None else Response(reply, media_type="application/json")

    async def _reset(self, request: Request) -> Any:
        """An episode of its own, which ends with the reply, as this protocol has it: to play, connect to /ws."""
        reset = parse_reset(await _object(request))
        place = _taken(self._places)
        try:
            with place.in_use():
                return await place.seat.answer(reset)
        finally:
            await self._places.leave(place)

    async def _step(self, request: Request) -> Any:
        del request
        raise FrameError("SESSION_ERROR", "A step needs a session: connect to /ws.")

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


def _taken(places: Places) -> Place:
    try:
        return places.take()
    except FrameError as error:
        raise RpcError(-32000, str(error)) from error


def _found(places: Places, session_id: str) -> Place:
    try:
        return places.find(session_id)
    except FrameError as error:
        raise RpcError(INVALID_PARAMS, str(error)) from error


def _answering(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def reply(request: Request) -> Response:
        try:
            return _json(await endpoint(request))
        except UnknownTask as error:
            return _json({"detail": str(error)}, 404)
        except FrameError as error:
            return _json({"detail": str(error), **error.more}, 422 if error.code == "VALIDATION_ERROR" else 400)
        except RpcError as error:
            return _json({"detail": str(error)}, 503)
        except ClientDisconnect:
            return Response(status_code=400)

    return reply


def _always(value: Any) -> Endpoint:
    async def endpoint(request: Request) -> Any:
        del request
        return value

    return endpoint


async def _body(request: Request) -> bytes | None:
    """The body, or None as soon as it exceeds the limit; a larger one is never held in memory."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_MESSAGE:
            return None
    return bytes(body)


async def _object(request: Request) -> dict[str, Any]:
    body = await _body(request)
    if body is None:
        raise FrameError("VALIDATION_ERROR", f"The request exceeds the limit of {MAX_MESSAGE} bytes.")
    return json_object(body or b"{}")


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
