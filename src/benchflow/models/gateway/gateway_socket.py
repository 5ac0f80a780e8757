"""Serves HTTP on a listening socket of a box, a bounded number of connections at a time.

The protocol is uvicorn's; the sockets were opened inside a box, and nothing listens on this machine. Everything is
loaded when the first connection comes: most agents of a script never ask a model.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from benchflow.models.gateway.grants import Access

_CONNECTIONS: Final = 256
_ACCEPTED_PER_TURN: Final = 16
_PAUSE_SEC: Final = 0.1
_CLOSE_SEC: Final = 5.0
_QUIET: Final = logging.getLogger("benchflow.models.gateway.http")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False

Protocols = Callable[["Access | None", set[asyncio.Task[None]]], asyncio.Protocol]
"""Makes the protocol of one connection; its calls are tasks of the set."""


class Listening:
    """One listening socket and its connections."""

    def __init__(self, sock: socket.socket, access: Access | None, protocols: Protocols) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it, and answer at once
        self._sock = sock
        self._access = access
        self._protocols = protocols
        self._loop = asyncio.get_running_loop()
        self._transports: set[asyncio.BaseTransport] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._pausing: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            self._transports = {transport for transport in self._transports if not transport.is_closing()}
            if len(self._transports) + len(self._opening) >= _CONNECTIONS:
                return self._pause()
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return None
            except OSError as error:
                if error.errno == errno.EINVAL:  # it was shut down from inside the box
                    self._loop.remove_reader(self._sock)
                    return None
                return self._pause()  # out of descriptors or memory: the box waits, the driver continues
            task = self._loop.create_task(self._connect(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        return None

    async def _connect(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: self._protocols(self._access, self._calls), accepted
            )
        except BaseException:
            accepted.close()
            raise
        self._transports.add(transport)

    def _pause(self) -> None:
        self._loop.remove_reader(self._sock)
        self._pausing = self._loop.call_later(_PAUSE_SEC, self._resume)

    def _resume(self) -> None:
        self._loop.add_reader(self._sock, self._accept)

    async def close(self) -> None:
        """Close the socket and every connection, and wait until the calls under way are recorded."""
        if self._pausing is not None:
            self._pausing.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()
        for task in tuple(self._opening):
            task.cancel()
        for transport in self._transports:
            transport.abort()  # type: ignore[attr-defined] # transports of sockets have it
        calls = tuple(self._calls)
        for task in calls:
            task.cancel()
        if calls:
            await asyncio.wait(calls, timeout=_CLOSE_SEC)


def http_protocols(app: Any) -> Protocols:
    """The protocols of connections whose requests `app` answers; `app` finds its access in the scope's state."""
    from uvicorn import Config
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState

    config = Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
    )
    config.load()

    def make(access: Access | None, calls: set[asyncio.Task[None]]) -> asyncio.Protocol:
        state = ServerState()
        state.tasks = calls
        made = H11Protocol(config, state, {"access": access})
        made.logger = _QUIET  # what an agent sends is recorded, not printed
        return made

    return make
