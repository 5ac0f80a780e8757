"""Accepts connections on sockets that were opened elsewhere, a bounded number at a time.

Closing ends every connection at once: no connection outlives the policy under which it was made.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from benchflow.sandbox.network.proxying.connection import ProtocolError, Stream

Handler = Callable[[Stream], Awaitable[None]]

_ACCEPTED_PER_TURN: Final = 16
_PAUSE_SECONDS: Final = 0.1


class ConnectionServer:
    """The listening sockets and the connections of one sandbox."""

    def __init__(self, *, max_connections: int, timeout: float) -> None:
        """More clients wait in the backlog, and connections whose clients send no more give way to them; `timeout` is
        the patience for each message of a connection.
        """
        self._max = max_connections
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._listening: dict[socket.socket, Handler] = {}
        self._shut: dict[socket.socket, Callable[[], None]] = {}
        self._connections: dict[asyncio.Task[None], Stream] = {}
        self._resuming: asyncio.TimerHandle | None = None

    def serve(self, sock: socket.socket, handler: Handler, shut: Callable[[], None] = lambda: None) -> None:
        """Give every connection to `handler` from now on; the socket belongs to this object.

        `shut` is called when it was closed because it was shut down from inside the sandbox.
        """
        sock.setblocking(False)
        self._listening[sock] = handler
        self._shut[sock] = shut
        self._loop.add_reader(sock, self._accept, sock)

    async def close(self) -> None:
        """Close the sockets and end every connection; idempotent."""
        if self._resuming is not None:
            self._resuming.cancel()
        for sock in self._listening:
            self._loop.remove_reader(sock)
            sock.close()
        self._listening.clear()
        self._shut.clear()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        if connections:
            await asyncio.wait(connections)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            if len(self._connections) >= self._max:
                self._make_room()
                return self._pause()
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return None
            except OSError as error:
                if error.errno == errno.EINVAL:  # it was shut down from inside the sandbox
                    return self._drop(sock)
                return self._pause()  # out of descriptors or memory: the sandbox waits, the driver continues
            self._handle(Stream(accepted, timeout=self._timeout), self._listening[sock])
        return None

    def _drop(self, sock: socket.socket) -> None:
        """Close a listening socket; its connections continue."""
        self._loop.remove_reader(sock)
        del self._listening[sock]
        sock.close()
        self._shut.pop(sock)()

    def _handle(self, client: Stream, handler: Handler) -> None:
        async def run() -> None:
            with suppress(OSError, ProtocolError):  # a client that broke off, fell silent or spoke nonsense
                await handler(client)

        def ended(task: asyncio.Task[None]) -> None:
            client.close()  # here, for a task may be cancelled before it has begun
            del self._connections[task]

        task = self._loop.create_task(run())
        self._connections[task] = client
        task.add_done_callback(ended)

    def _make_room(self) -> None:
        """End the oldest connections whose clients send no more: a server that never closes would hold all of them."""
        ended = [task for task, client in self._connections.items() if client.ended]
        for task in ended[:_ACCEPTED_PER_TURN]:
            task.cancel()

    def _pause(self) -> None:
        for sock in self._listening:
            self._loop.remove_reader(sock)
        self._resuming = self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        for sock in self._listening:
            self._loop.add_reader(sock, self._accept, sock)
