"""One TCP connection with a small read buffer, and the loop that relays bytes between two of them.

Works on bare non-blocking sockets: large blocks, few copies, no memory held while a connection is idle. Every
wait is bounded, and every block gives the event loop a turn, so that no connection starves the others.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Final, Self

BLOCK: Final = 1 << 17
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class ProtocolError(Exception):
    """The other side does not follow the protocol; the text says how."""


class Stream:
    """A connected socket; closed by `close` or at the end of `with`."""

    def __init__(self, sock: socket.socket, *, timeout: float | None) -> None:
        """`timeout` bounds the seconds without progress of every read and write."""
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout = timeout
        self.ended = False
        """Whether the other side sends no more."""
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._at = 0

    async def read(self, limit: int = BLOCK) -> bytes:
        """The next bytes, at most `limit`; empty at the end."""
        if self._at == len(self._buffer):
            await self._fill()
        data = self._buffer[self._at : self._at + limit]
        self._at += len(data)
        if self._at == len(self._buffer):
            self._buffer, self._at = b"", 0
        return data

    def unread(self, data: bytes) -> None:
        """Return bytes that were read beyond a message."""
        self._buffer, self._at = data + self._buffer[self._at :], 0

    async def read_until(self, end: bytes, limit: int) -> bytes:
        """The bytes up to and with `end`; empty when the stream ends before the first byte.

        `ProtocolError` when it ends, or `limit` bytes have come, before `end`.
        """
        while (at := self._buffer.find(end, self._at, self._at + limit)) < 0:
            if len(self._buffer) - self._at >= limit:
                raise ProtocolError(f"no end within {limit} bytes")
            if not await self._fill():
                if self._at < len(self._buffer):
                    raise ProtocolError("the connection ended in the middle of a message")
                return b""
        return await self.read(at + len(end) - self._at)

    async def read_exactly(self, count: int) -> bytes:
        """`count` bytes; empty when the stream ends before the first, a `ProtocolError` when among them."""
        while len(self._buffer) - self._at < count:
            if not await self._fill():
                if self._at < len(self._buffer):
                    raise ProtocolError("the connection ended in the middle of a message")
                return b""
        return await self.read(count)

    async def peek(self, count: int) -> bytes:
        """All bytes that have come and are not yet read: at least `count` of them unless the stream ends."""
        while len(self._buffer) - self._at < count and await self._fill():
            pass
        return self._buffer[self._at :]

    async def _fill(self) -> bool:
        async with asyncio.timeout(self.timeout):
            data = await self._loop.sock_recv(self._sock, BLOCK)
        await asyncio.sleep(0)
        self._buffer = self._buffer[self._at :] + data if self._at < len(self._buffer) else data
        self._at = 0
        self.ended = not data
        return bool(data)

    async def write(self, data: bytes) -> None:
        """Send everything."""
        async with asyncio.timeout(self.timeout):
            await self._loop.sock_sendall(self._sock, data)

    def end_writing(self) -> None:
        """Tell the other side that nothing more comes."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket; idempotent."""
        self._sock.close()

    def abort(self) -> None:
        """Close the socket so that the other side sees a failure and no regular end; idempotent."""
        with suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._sock.close()

    @property
    def local_address(self) -> tuple[str, int]:
        """Address and port that the other side dialled."""
        host, port = self._sock.getsockname()[:2]
        return str(host), int(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def relay(one: Stream, other: Stream, *, idle: float) -> bool:
    """Copy both ways until both sides have ended, one breaks off, or both were silent for `idle` seconds; whether both
    have ended."""
    one.timeout = other.timeout = None
    loop = asyncio.get_running_loop()
    last, whole = loop.time(), False

    async def one_way(source: Stream, target: Stream) -> None:
        nonlocal last
        while data := await source.read():
            last = loop.time()
            await target.write(data)
        target.end_writing()

    async def watch() -> None:
        while (left := last + idle - loop.time()) > 0:  # noqa: ASYNC110 - it is the time that is waited for
            await asyncio.sleep(left)
        raise TimeoutError

    try:
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(watch())
            await asyncio.wait([tasks.create_task(one_way(one, other)), tasks.create_task(one_way(other, one))])
            watcher.cancel()
        whole = True
    except* OSError:
        pass  # one side broke off or both fell silent: both are closed by the caller
    return whole
