"""Asks an upstream, as often as it takes, and passes its answer on unchanged.

Streams are passed on piece by piece as they come. Before the first byte went to the caller, what fails is tried again;
afterwards never, for the caller would see two answers. Loaded with the first call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from benchflow.models.gateway.call_failures import (
    CallFailure,
    asked_wait,
    failure_of,
    may_retry,
    named,
    pause_before,
    status_code,
)
from benchflow.models.gateway.endpoints import error_body, returned_headers
from benchflow.models.gateway.exchange import ERROR, Exchange
from benchflow.models.gateway.upstream.upstream_pool import Answering
from benchflow.models.gateway.upstream.upstream_wire import WireError, WireSetupError, WireTimeout
from benchflow.models.gateway.upstreams import Upstream
from benchflow.models.gateway.wire_answers import Answer, is_first_error, read_answer
from benchflow.record.model_calls import CallRetry

if TYPE_CHECKING:
    from benchflow.models.gateway.model_gateway import Gateway

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_ANSWER: Final = 64 << 20


class UpstreamCalls:
    """The calls of a gateway to its upstreams."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway: Final = gateway
        self._secrets: Final = tuple(key.encode() for key in gateway.keys)
        self._longest: Final = max((len(key) for key in self._secrets), default=1)

    async def answer(
        self, call: Exchange, upstream: Upstream, query: str, headers: Mapping[str, str], send: Send
    ) -> None:
        """Answer a call; at the end it is recorded."""
        target = f"{call.route.path}?{query}" if query else call.route.path
        shown = {**headers, "accept-encoding": "identity", **upstream.headers()}
        while True:
            try:
                asked = self._gateway.pool.asked(call.method, upstream.base_url, target, shown, call.content)
                async with asked as response:
                    if await self._passed_on(call, response, send):
                        return
            except WireError as error:
                if call.status is not None:
                    what = f"{named(call.provider, call.model)} broke off in the middle of an answer"
                    call.end("failed", CallFailure("infrastructure", "stream-cut", f"{what}: {_words(error)}"))
                    return  # the caller sees its connection end, as with the provider itself
                final = isinstance(error, WireSetupError)
                if final or not await self._again(call, _code(error), None, None, _words(error)):
                    await self._unreachable(call, error, send)
                    return

    async def _passed_on(self, call: Exchange, response: Answering, send: Send) -> bool:
        """Pass an answer on; False if the call is to be tried again, and nothing was passed on yet."""
        status = response.status
        if status < ERROR and call.stream:
            return await self._streamed(call, response, send)
        body = await _whole(response)
        said: Answer | None = None
        if status >= ERROR:
            if may_retry(status, response.headers, body):
                wait = asked_wait(response.headers, body)
                if await self._again(call, status_code(status), status, wait, body=body):
                    return False
        else:
            said = read_answer(call.route.endpoint.dialect, body, stream=False)
            if said.error is not None and await self._again(call, "bad-answer", status, None, said.error):
                return False
        self._require_no_key(body)
        call.begin_answer(status, response.headers.get("content-type"))
        call.take(body)
        await respond(send, status, returned_headers(response.headers.items()), body)
        settle(call, said, body)
        return True

    async def _streamed(self, call: Exchange, response: Answering, send: Send) -> bool:
        piece = await response.piece()
        if not piece or is_first_error(piece):
            said = piece.decode(errors="replace")[:300] or "the stream was empty"
            if await self._again(call, "model-unreachable", response.status, None, said):
                return False
        self._require_no_key(piece)
        call.begin_answer(response.status, response.headers.get("content-type"))
        headers = returned_headers(response.headers.items())
        await send({"type": "http.response.start", "status": call.status, "headers": headers})
        tail = b""
        while piece:
            self._require_no_key(tail + piece)
            tail = piece[-self._longest :]
            call.take(piece)
            if call.size > MAX_ANSWER:
                raise WireError("the answer is too large")
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            piece = await response.piece()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        body = b"".join(call.pieces)
        settle(call, read_answer(call.route.endpoint.dialect, body, stream=True), body)
        return True

    def _require_no_key(self, data: bytes) -> None:
        """No key enters a box, not even where a server repeats it: then the answer ends here."""
        if any(key in data for key in self._secrets):
            raise WireError("the answer contained the key of the provider")

    async def _again(
        self, call: Exchange, code: str, status: int | None, asked: float | None, said: str = "", body: bytes = b""
    ) -> bool:
        """Wait, and tell whether to try once more."""
        failure = failure_of(call.provider, call.model, status, body) if status is not None and body else None
        call.last_try = failure or CallFailure(
            "infrastructure", code, f"{named(call.provider, call.model)} could not be reached: {said}"
        )
        pause = pause_before(self._gateway.patience, len(call.retries) + 1, asked)
        if pause is None:
            return False
        call.retries.append(CallRetry(code, status, round(pause, 3)))
        await asyncio.sleep(pause)
        return True

    async def _unreachable(self, call: Exchange, error: Exception, send: Send) -> None:
        """Nobody answered at last."""
        code = _code(error)
        what = f"{named(call.provider, call.model)} could not be reached: {_words(error)}"
        status = 504 if code == "model-timeout" else 502
        call.begin_answer(status, "application/json")
        call.end("failed", CallFailure("infrastructure", code, what))
        body = error_body(call.family, status, code, what)
        await respond(send, status, [(b"content-type", b"application/json")], body)


def settle(call: Exchange, said: Answer | None, body: bytes) -> None:
    """What an answer that was passed on means; `said` is None for an error."""
    if said is None:
        failure = failure_of(call.provider, call.model, call.status or 0, body)
        call.end("failed" if failure is not None else "answered", failure)
    elif said.whole:
        call.end("answered", None, said)
    else:
        what = said.error or "the stream ended before its end"
        code = "bad-answer" if said.error_code == "bad-answer" else "stream-cut"
        message = f"{named(call.provider, call.model)} gave no whole answer: {what}"
        call.end("failed", CallFailure("infrastructure", code, message), said)


async def _whole(response: Answering) -> bytes:
    pieces, size = [], 0
    while piece := await response.piece():
        size += len(piece)
        if size > MAX_ANSWER:
            raise WireError("the answer is too large")
        pieces.append(piece)
    return b"".join(pieces)


async def respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """A whole answer."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


def _code(error: Exception) -> str:
    return "model-timeout" if isinstance(error, WireTimeout) else "model-unreachable"


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
