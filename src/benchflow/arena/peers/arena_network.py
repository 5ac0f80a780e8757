"""Ways between peers that need no port of this machine: to an application of this process, and to a program in a box.

Both are transports of `httpx`, for an `A2APeer`. `serve_in` is the way back: an application of this process on a
listening socket that was opened on the loopback of a box.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.abc
import httpcore
import httpx

from benchflow.errors import SandboxFailure
from benchflow.models.gateway.gateway_socket import Listening, http_protocols
from benchflow.sandbox.protocol import Sandbox

HOST: Final = "127.0.0.1"
ANY_PORT: Final = 0
_PIECES: Final = 16
"""How many pieces of an answer wait for their reader; the application waits with the next one."""

App = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class AppTransport(httpx.AsyncBaseTransport):
    """Requests to an ASGI application of this process; its answers are passed on as they come."""

    def __init__(self, app: App) -> None:
        self._app: Final = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = _Call(await request.aread())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "server": (request.url.host, request.url.port),
            "client": (HOST, 1),
        }
        call.begin(self._app, scope)
        try:
            status, headers = await call.started
        except BaseException:
            await call.aclose()
            raise
        return httpx.Response(status, headers=headers, stream=call)


class _Call(httpx.AsyncByteStream):
    """One request to an application: a task that ends with its reader."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._pieces: Final[asyncio.Queue[bytes | None]] = asyncio.Queue(_PIECES)
        self._gone: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.started: Final[asyncio.Future[tuple[int, Any]]] = asyncio.get_running_loop().create_future()

    def begin(self, app: App, scope: Mapping[str, Any]) -> None:
        self._task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: App, scope: Mapping[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - its caller sees a broken connection
            if not self.started.done():
                self.started.set_exception(httpx.RemoteProtocolError(f"the application failed: {error}"))
        finally:
            if not self.started.done():
                self.started.set_exception(httpx.RemoteProtocolError("the application did not answer"))
            if not self._gone.is_set():
                await self._pieces.put(None)

    async def _receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.started.set_result((message["status"], message.get("headers", [])))
        elif (piece := message.get("body")) and not self._gone.is_set():
            await self._pieces.put(piece)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def aclose(self) -> None:
        self._gone.set()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        if self.started.done() and not self.started.cancelled():
            self.started.exception()  # looked at, so that nobody reports it as forgotten


class BoxTransport(httpx.AsyncBaseTransport):
    """Requests to a program that listens on a port inside a box, whatever host they name."""

    def __init__(self, sandbox: Sandbox, port: int) -> None:
        self._pool: Final = httpcore.AsyncConnectionPool(network_backend=_BoxBackend(sandbox, port))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        inner = httpcore.Request(
            request.method,
            httpcore.URL(scheme="http", host=request.url.raw_host, port=request.url.port, target=request.url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            answer = await self._pool.handle_async_request(inner)
        except httpcore.ConnectError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise httpx.RemoteProtocolError(f"{type(error).__name__}: {error}", request=request) from error
        return httpx.Response(answer.status, headers=answer.headers, stream=_Answer(answer))

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Answer(httpx.AsyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer: Final = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._answer.aiter_stream():
                yield piece
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise httpx.RemoteProtocolError(f"{type(error).__name__}: {error}") from error

    async def aclose(self) -> None:
        await self._answer.aclose()


class _BoxBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, sandbox: Sandbox, port: int) -> None:
        self._sandbox: Final = sandbox
        self._port: Final = port

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        del host, port, local_address, socket_options
        try:
            with anyio.fail_after(timeout):
                sock = await self._sandbox.dial(self._port)
                stream = await anyio.abc.SocketStream.from_socket(sock)
        except (OSError, TimeoutError, SandboxFailure) as error:
            raise httpcore.ConnectError(str(error) or "nothing listens there") from error
        return _Stream(stream)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream: Final = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            with anyio.fail_after(timeout):
                return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        try:
            with anyio.fail_after(timeout):
                await self._stream.send(buffer)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(self._stream)

    def get_extra_info(self, info: str) -> Any:
        del info


async def free_port(sandbox: Sandbox) -> int:
    """A port that nothing listens on inside now, for a program that is about to be started."""
    listener = await sandbox.listen(ANY_PORT)
    try:
        port: int = listener.getsockname()[1]
    finally:
        listener.close()
    return port


@asynccontextmanager
async def serve_in(listener: socket.socket, app: App) -> AsyncIterator[None]:
    """Serve an application on a socket of a box; the socket and its connections end with the block."""
    listening = Listening(listener, None, http_protocols(app))
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await listening.close()
