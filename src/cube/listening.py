"""Listens on sockets and serves applications on them, for every server of this project. Needs the extra `serve`.

A server stops on a signal that its owner handles, never by itself. A connection that sends a request too slowly is
closed, and so are connections beyond a limit, so that no client can block the others.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

BACKLOG: Final = 64
"""How many connections are accepted at a time, before any of them can be refused."""
HEADERS_SEC: Final = 20.0
"""How long the head of a request may take to arrive."""
MOST_CONNECTIONS: Final = 128
GATHERED: Final = 1 << 16
"""Maximum bytes that wait for the end of a turn of the event loop."""
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 selects a free one. Raises `OSError`."""
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    # Connections inherit it; asyncio sets it on sockets of an explicit protocol only. Without it the second part of an
    # answer waits until the client has acknowledged the first, some 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """The address of a listening socket, without a path."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """A server that leaves signals alone: uvicorn's own would end the process before the owner has cleaned up."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class GatheredTransport:
    """A transport that sends what is written in one turn of the event loop as one piece.

    Head, body and end of an answer are written one by one. Sent one by one they cost a system call each, and wake the
    client before there is anything that it can use.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.plain: Final = transport
        self._loop: Final = loop
        self._parts: Final[list[bytes]] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > GATHERED:  # the transport itself knows when a client reads too slowly
            self.flush()

    def flush(self) -> None:
        """Send what was written."""
        data = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if data and not self.plain.is_closing():
            self.plain.write(data)

    def close(self) -> None:
        self.flush()
        self.plain.close()


class BoundedConnection(H11Protocol):
    """A connection of which there are not too many, and whose requests do not take forever to arrive."""

    most: ClassVar[int] = MOST_CONNECTIONS
    _waiting: asyncio.TimerHandle | None = None
    _gathered: GatheredTransport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._gathered = GatheredTransport(transport, self.loop)
        self.transport = cast("asyncio.Transport", self._gathered)
        if len(self.connections) > self.most:
            transport.abort()
            return
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_protocol() is not self:
            return  # it has become a WebSocket
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, whatever uvicorn declares
        if cycle is not None and not cycle.response_complete:
            self._forget()  # the head is complete, and the application reads the rest
        elif self._waiting is None:
            self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._forget()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._forget()
        self._gathered.flush()
        self.transport = self._gathered.plain
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._waiting = self.loop.call_later(HEADERS_SEC, self.transport.abort)

    def _forget(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def make_server(app: ASGIApp, *, most: int = MOST_CONNECTIONS, **settings: Any) -> Server:
    """A server for at most that many connections; `settings` are uvicorn's."""
    http = type("BoundedConnection", (BoundedConnection,), {"most": most})
    fixed: dict[str, Any] = {
        "ws": "none",
        "backlog": BACKLOG,
        "log_level": "warning",
        "access_log": False,
        "timeout_graceful_shutdown": 2,
        "proxy_headers": False,
        "server_header": False,
    }
    return Server(uvicorn.Config(app, http=http, **{**fixed, **settings}))
