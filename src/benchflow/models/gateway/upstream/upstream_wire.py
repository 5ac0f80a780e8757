"""One connection to an upstream: HTTP/1.1 on asyncio and h11, a request at a time.

A general client costs more than everything else that the gateway does with a piece of a stream, and its pool looks at
every connection for every call. Here whatever arrives at once is one piece, and one timer watches a whole answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

import h11

_MAX_HEAD: Final = 100 << 10
_MAX_UNREAD: Final = 256 << 10
"""Bytes that arrived and were not asked for; then nothing is read from the socket until they are."""


class WireError(Exception):
    """The upstream could not be reached, or what it sent is not HTTP, or ended too early."""


class WireSetupError(WireError):
    """The way to the upstream is set up wrongly: no retry helps."""


class WireTimeout(WireError):
    """The upstream kept the gateway waiting for too long."""


class Connection(asyncio.Protocol):
    """A connection. `ask`, then `piece` until it is empty; `reusable` tells whether another request may follow."""

    def __init__(self, patience_sec: float) -> None:
        """`patience_sec`: for the next bytes of an answer, the first included."""
        self._loop = asyncio.get_running_loop()
        self._patience = patience_sec
        self._http = h11.Connection(h11.CLIENT, _MAX_HEAD)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._last = 0.0
        """When the wait began, or bytes arrived."""
        self._unread = 0
        self._paused = False
        self._over = True
        """Whether the last answer was read to its end."""
        self._failed: WireError | None = None
        self._cause: Exception | None = None
        """Why the connection was lost."""
        self._lost = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._unread += len(data)
        self._last = self._loop.time()
        if self._unread > _MAX_UNREAD and not self._paused:
            self._paused = True
            self._sockets().pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    @property
    def reusable(self) -> bool:
        """Whether the answer is over and both sides keep the connection open."""
        return self._http.our_state is h11.IDLE and not self._lost and not self._http.trailing_data[0]

    async def ask(self, method: str, target: str, headers: Mapping[str, str], content: bytes) -> Head:
        """Send a request; the head of its answer."""
        try:
            shown = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
            request = h11.Request(method=method, target=target, headers=shown)
            sent = self._http.send(request) or b""
            sent += self._http.send(h11.Data(content)) or b"" if content else b""
            sent += self._http.send(h11.EndOfMessage()) or b""
        except (h11.LocalProtocolError, UnicodeEncodeError) as error:
            raise WireError(f"the request cannot be written as HTTP: {error}") from error
        self._sockets().write(sent)
        self._over = False
        self._last = self._loop.time()
        self._watch = self._loop.call_later(self._patience, self._look)
        while True:
            event = self._event()
            if event is h11.NEED_DATA:
                await self._more()
            elif type(event) is h11.Response:
                return Head(event)
            elif type(event) is not h11.InformationalResponse:
                raise WireError("the connection was closed before an answer came")

    async def piece(self) -> bytes:
        """Everything of the answer that has arrived, as soon as there is something; empty at its end."""
        found: list[bytes] = []
        while not self._over:
            try:
                event = self._event()
            except WireError:
                if found:  # what came before is passed on first; the next piece raises
                    break
                raise
            if type(event) is h11.Data:
                found.append(bytes(event.data))
            elif event is h11.NEED_DATA:
                if found:
                    break
                await self._more()
            elif type(event) is h11.EndOfMessage:
                self._finish()
            else:
                raise WireError("the connection was closed in the middle of an answer")
        return found[0] if len(found) == 1 else b"".join(found)

    def release(self) -> None:
        """Wait for nothing any more; what follows on the connection is not an answer."""
        self._over = True
        if self._watch is not None:
            self._watch.cancel()

    def close(self) -> None:
        """At once, whatever is under way; idempotent."""
        self._lost = True
        self.release()
        if self._transport is not None:
            self._transport.abort()

    def _event(self) -> Any:
        if self._failed is not None:
            raise self._failed
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._failed = WireError(str(self._cause or error))
            raise self._failed from error

    def _finish(self) -> None:
        """The answer is whole."""
        self.release()
        self._read_on()
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()

    async def _more(self) -> None:
        """Wait until something arrives."""
        self._read_on()
        self._last = self._loop.time()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _read_on(self) -> None:
        self._unread = 0
        if self._paused and not self._lost:
            self._sockets().resume_reading()
        self._paused = False

    def _look(self) -> None:
        """Whether the upstream is still in time. Nobody waits while a caller is slow: then it is not its fault."""
        now = self._loop.time()
        left = self._last + self._patience - now if self._waiter is not None else self._patience
        if left > 0:
            self._watch = self._loop.call_later(left, self._look)
            return
        self._failed = WireTimeout(f"nothing came for {self._patience:g} s")
        self._wake()

    def _end(self, cause: Exception | None) -> None:
        """The other side sends no more."""
        if self._lost:
            return
        self._lost, self._cause = True, cause
        self._http.receive_data(b"")  # what came before it is still read
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _sockets(self) -> asyncio.Transport:
        if self._transport is None or self._lost:
            raise WireError("the connection is closed")
        return self._transport


class Head:
    """Status and headers of an answer; names in lower case, repeated ones joined."""

    def __init__(self, response: h11.Response) -> None:
        self.status: Final = response.status_code
        self.headers: Final[dict[str, str]] = {}
        for raw, value in response.headers:
            name, text = raw.decode("latin-1"), value.decode("latin-1")
            self.headers[name] = f"{self.headers[name]}, {text}" if name in self.headers else text
