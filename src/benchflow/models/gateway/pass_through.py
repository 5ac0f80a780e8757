"""The way of one call: token, route, policy, limits, then the upstream, unchanged; and at its end the record.

Streams are passed on piece by piece as they come. Before the first byte went to the caller, what fails is tried again;
afterwards never, for the caller would see two answers. Whatever happens, a call that was let in is recorded once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import httpx

from benchflow.errors import UsageError
from benchflow.models.gateway.answers import Answer, is_first_error, read_answer
from benchflow.models.gateway.call_failures import (
    CallFailure,
    asked_wait,
    failure_of,
    may_retry,
    named,
    pause_before,
    status_code,
)
from benchflow.models.gateway.call_limits import LimitReached
from benchflow.models.gateway.call_prices import cost_of, price_of
from benchflow.models.gateway.endpoints import (
    Family,
    Route,
    error_body,
    named_upstream,
    passed_headers,
    passed_query,
    returned_headers,
    route,
    shown_tokens,
)
from benchflow.models.gateway.grants import Access
from benchflow.models.gateway.upstreams import Upstream
from benchflow.record.model_calls import CallPlace, CallRetry
from benchflow.record.trajectory import timestamp

if TYPE_CHECKING:
    from benchflow.models.gateway.model_gateway import Gateway

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_REQUEST: Final = 32 << 20
MAX_ANSWER: Final = 64 << 20
_ERROR: Final = 400
_CHARACTERS_PER_TOKEN: Final = 3
"""Where a server does not count: rather too many than too few."""


class Refused(Exception):
    """A request that is not sent on; the caller gets this error in its own dialect."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Gone(Exception):
    """The caller does not wait any more."""


@dataclass(slots=True)
class Call:
    """What is known of a call so far."""

    access: Access
    place: CallPlace
    route: Route
    method: str
    began: float
    time: str
    model: str | None = None
    stream: bool = False
    request: Any = None
    provider: str = ""
    content: bytes = b""
    retries: list[CallRetry] = field(default_factory=list)
    removed: tuple[str, ...] = ()
    timing: dict[str, float] = field(default_factory=dict)
    status: int | None = None
    content_type: str | None = None
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    last_try: CallFailure | None = None
    """How the last try failed."""

    def since(self) -> float:
        return time.perf_counter() - self.began

    @property
    def family(self) -> Family:
        return self.route.endpoint.family


class PassThrough:
    """The application that the gateway serves."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway: Final = gateway
        self._secrets: Final = tuple(key.encode() for key in gateway.upstreams.keys)
        self._longest: Final = max((len(key) for key in self._secrets), default=1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        access: Access = scope["state"]["access"]
        path = scope["raw_path"].decode("latin-1")
        families = access.families
        upstream = named_upstream(path)
        family: Family = families.get(upstream or "", "openai")
        call: Call | None = None
        try:
            self._require_token(access, scope)
            found = route(scope["method"], path, families)
            if found is None:
                raise Refused(404, "unknown-endpoint", f"This gateway has nothing at {scope['method']} {path[:200]}.")
            call = Call(access, access.place, found, scope["method"], time.perf_counter(), timestamp(), found.model)
            await self._read(call, scope, receive)
            await self._admitted(call, scope, receive, send)
        except Refused as refused:
            await self._refuse(access, call, refused, family, send)
        except (Gone, ConnectionError):
            if call is not None:
                self._finish(call, "aborted", None)
        except asyncio.CancelledError:
            if call is not None:
                self._finish(call, "aborted", None)
            raise

    def _require_token(self, access: Access, scope: Scope) -> None:
        shown = shown_tokens(scope["headers"], scope["query_string"].decode("latin-1"))
        if not shown or not all(access.knows(token) for token in shown):
            raise Refused(401, "token-refused", "This gateway does not know the token of the request.")
        if access.grant.closed or access.grant.suspended:
            raise Refused(403, "phase-over", "Models can be called in the agent phase only.")

    async def _read(self, call: Call, scope: Scope, receive: Receive) -> None:
        """Take the body in, and what it asks for."""
        body, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            piece = message.get("body", b"")
            size += len(piece)
            if size > MAX_REQUEST:
                raise Refused(413, "request-too-large", f"A request has at most {MAX_REQUEST >> 20} MB.")
            body.append(piece)
            more = message.get("more_body", False)
        call.content = b"".join(body)
        if call.method == "GET":
            return
        try:
            call.request = json.loads(call.content)
        except (ValueError, RecursionError):
            raise Refused(400, "invalid-json", "The body of the request is not valid JSON.") from None
        if not isinstance(call.request, dict):
            raise Refused(400, "invalid-json", "The body of the request is not a JSON object.")
        if call.model is None:
            named_model = call.request.get("model")
            call.model = named_model[:200] if isinstance(named_model, str) else None
        dialect = call.route.endpoint.dialect
        if dialect == "gemini-stream":
            call.stream = b"alt=sse" in scope["query_string"]
        else:
            call.stream = call.request.get("stream") is True

    async def _admitted(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the call through what holds for its rollout, and answer it."""
        access, gateway = call.access, self._gateway
        upstream, model = self._upstream(call)
        call.provider = upstream.name
        self._limit(call, model)
        gone = asyncio.ensure_future(_disconnected(receive))
        answering = asyncio.ensure_future(self._answer(call, upstream, scope, send))
        try:
            async with asyncio.timeout(access.grant.meter.seconds_left()) as limit:
                await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    raise Gone
                await answering
        except TimeoutError:
            if not limit.expired():
                raise
            reached = access.grant.meter.reached() or _out_of_time(access)
            await self._stop(answering)
            self._cut(call, reached)
            if call.status is None:
                raise Refused(403, reached.name, str(reached)) from None
        finally:
            gone.cancel()
            await self._stop(answering)
        del gateway

    def _cut(self, call: Call, reached: LimitReached) -> None:
        call.access.grant.reach(reached)
        if call.status is not None:
            self._finish(call, "limited", None, code=reached.name, message=str(reached))

    async def _stop(self, task: asyncio.Future[None]) -> None:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})

    def _upstream(self, call: Call) -> tuple[Upstream, str | None]:
        try:
            upstream, model = self._gateway.upstreams.serving(call.route.upstream, call.model)
        except UsageError as error:
            raise Refused(400, error.code, str(error)) from error
        if model != call.model and isinstance(call.request, dict):
            if call.route.model is None:
                call.request = {**call.request, "model": model}
                call.content = json.dumps(call.request).encode()
            else:
                path = call.route.path.replace(f"/models/{call.model}", f"/models/{model}")
                call.route = Route(call.route.upstream, call.route.endpoint, path, model)
        return upstream, model

    def _limit(self, call: Call, model: str | None) -> None:
        """Count the call, unless a limit is reached."""
        grant = call.access.grant
        if call.route.endpoint.kind != "generate":
            reached = grant.meter.reached()
        elif grant.meter.priced and price_of(call.provider, model) is None:
            message = f"The price of {named(call.provider, model)[4:]} is unknown, so its cost cannot be limited."
            grant.ended(call.place, CallFailure("agent", "price-unknown", message))
            raise Refused(403, "price-unknown", message)
        else:
            reached = grant.meter.begin()
        if reached is not None:
            grant.reach(reached)
            raise Refused(403, reached.name, str(reached))

    async def _refuse(self, access: Access, call: Call | None, refused: Refused, family: Family, send: Send) -> None:
        """Answer in the dialect of the caller; what was refused is recorded."""
        body = error_body(family, refused.status, refused.code, str(refused))
        headers = [(b"content-type", b"application/json"), (b"x-should-retry", b"false")]
        close = refused.status in (401, 413)
        if call is not None:
            known = {"code": refused.code, "message": str(refused), "status": refused.status}
            limited = refused.code.startswith("max_")
            access.grant.record(
                refused=True, request=call.request, **self._known(call, "limited" if limited else "refused") | known
            )
        await _respond(send, refused.status, headers + ([(b"connection", b"close")] if close else []), body)

    async def _answer(self, call: Call, upstream: Upstream, scope: Scope, send: Send) -> None:
        """Ask the upstream, as often as it takes, and pass its answer on."""
        async with self._slots(call):
            url = f"{upstream.base_url}{call.route.path}"
            if query := passed_query(scope["query_string"].decode("latin-1")):
                url = f"{url}?{query}"
            headers = {**passed_headers(scope["headers"]), "accept-encoding": "identity", **upstream.headers()}
            while True:
                try:
                    async with self._asked(call, url, headers) as response:
                        if await self._passed_on(call, response, send):
                            return
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    if call.status is not None:
                        await self._broken(call, error)
                        return
                    if not await self._again(call, _code(error), None, None, _words(error)):
                        await self._unreachable(call, error, send)
                        return

    @asynccontextmanager
    async def _slots(self, call: Call) -> AsyncIterator[None]:
        """A place among the calls that may run at once, of the rollout and of the job."""
        async with AsyncExitStack() as stack:
            for slots in (call.access.grant.slots, self._gateway.slots):
                if slots is not None:
                    await stack.enter_async_context(slots)
            if (waited := call.since()) > 0.001:
                call.timing["queued"] = waited
            yield

    @asynccontextmanager
    async def _asked(self, call: Call, url: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        client = self._gateway.client
        request = client.build_request(call.method, url, headers=headers, content=call.content or None)
        response = await client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    async def _passed_on(self, call: Call, response: httpx.Response, send: Send) -> bool:
        """Pass an answer on; False if the call is to be tried again, and nothing was passed on yet."""
        is_stream = response.status_code < _ERROR and call.stream
        if is_stream:
            return await self._streamed(call, response, send)
        body = await _whole(response)
        status = response.status_code
        said: Answer | None = None
        if status >= _ERROR:
            if may_retry(status, response.headers, body) and await self._again(
                call, status_code(status), status, asked_wait(response.headers, body), body=body
            ):
                return False
        else:
            said = read_answer(call.route.endpoint.dialect, body, stream=False)
            if said.error is not None and await self._again(call, "bad-answer", status, None, said.error):
                return False
        call.status, call.content_type = status, response.headers.get("content-type")
        call.timing["first_byte"] = call.since()
        call.pieces, call.size = [body], len(body)
        self._require_no_key(call, body)
        await _respond(send, status, returned_headers(response.headers.items()), body)
        self._settle(call, said, body)
        return True

    async def _streamed(self, call: Call, response: httpx.Response, send: Send) -> bool:
        pieces = response.aiter_raw()
        first = await anext(pieces, b"")
        if is_first_error(first) or not first:
            said = first.decode(errors="replace")[:300] or "the stream was empty"
            if await self._again(call, "model-unreachable", response.status_code, None, said):
                return False
        call.status, call.content_type = response.status_code, response.headers.get("content-type")
        call.timing["first_byte"] = call.since()
        await send(
            {
                "type": "http.response.start",
                "status": call.status,
                "headers": returned_headers(response.headers.items()),
            }
        )
        tail = b""
        piece = first
        while piece:
            self._require_no_key(call, tail + piece)
            tail = piece[-self._longest :]
            call.pieces.append(piece)
            call.size += len(piece)
            if call.size > MAX_ANSWER:
                raise httpx.ReadError("the answer is too large")
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            piece = await anext(pieces, b"")
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        body = b"".join(call.pieces)
        self._settle(call, read_answer(call.route.endpoint.dialect, body, stream=True), body)
        return True

    def _require_no_key(self, call: Call, data: bytes) -> None:
        """No key enters a box, not even where a server repeats it: then the answer ends here."""
        if any(key in data for key in self._secrets):
            call.pieces.clear()
            raise httpx.ReadError("the answer contained the key of the provider")

    async def _again(
        self, call: Call, code: str, status: int | None, asked: float | None, said: str = "", body: bytes = b""
    ) -> bool:
        """Wait and tell whether to try once more."""
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

    async def _unreachable(self, call: Call, error: Exception, send: Send) -> None:
        """Nobody answered at last."""
        code = _code(error)
        status = 504 if code == "model-timeout" else 502
        failure = CallFailure(
            "infrastructure", code, f"{named(call.provider, call.model)} could not be reached: {_words(error)}"
        )
        call.status = status
        await _respond(
            send,
            status,
            [(b"content-type", b"application/json")],
            error_body(call.family, status, code, failure.message),
        )
        self._finish(call, "failed", failure)

    async def _broken(self, call: Call, error: Exception) -> None:
        """The stream ended before its end; the caller sees its connection end, as with the provider itself."""
        message = f"{named(call.provider, call.model)} broke off in the middle of an answer: {_words(error)}"
        self._finish(call, "failed", CallFailure("infrastructure", "stream-cut", message))

    def _settle(self, call: Call, said: Answer | None, body: bytes) -> None:
        """What an answer that was passed on means."""
        status = call.status or 0
        if said is None:
            failure = failure_of(call.provider, call.model, status, body)
            self._finish(call, "failed" if failure is not None else "answered", failure)
        elif said.whole:
            self._finish(call, "answered", None, said)
        else:
            what = said.error or "the stream ended before its end"
            code = "bad-answer" if said.error_code == "bad-answer" else "stream-cut"
            message = f"{named(call.provider, call.model)} gave no whole answer: {what}"
            self._finish(call, "failed", CallFailure("infrastructure", code, message), said)

    def _finish(
        self,
        call: Call,
        outcome: str,
        failure: CallFailure | None,
        said: Answer | None = None,
        *,
        code: str | None = None,
        message: str | None = None,
    ) -> None:
        """Count, note and record a call, once."""
        if "total" in call.timing:
            return
        call.timing["total"] = call.since()
        grant, body = call.access.grant, b"".join(call.pieces)
        if said is None and body and outcome in ("aborted", "limited", "failed") and (call.status or 0) < _ERROR:
            said = read_answer(call.route.endpoint.dialect, body, stream=call.stream)
        usage, estimated = self._usage(call, said, body)
        if call.route.endpoint.kind == "generate":
            grant.meter.end(usage, call.timing["total"])
            if outcome == "aborted":
                failure = call.last_try if call.status is None else None
                if failure is not None:
                    grant.ended(call.place, failure)
            elif outcome != "limited":
                grant.ended(call.place, failure)
        known = self._known(call, outcome) | {
            "status": call.status,
            "usage": usage,
            "estimated": estimated,
            "code": code or (failure.code if failure is not None else None),
            "message": message or (failure.message if failure is not None else None),
            "finish_reason": said.finish_reason if said is not None else None,
        }
        answered = {"body": body, "content_type": call.content_type, "pieces": len(call.pieces)} if call.status else {}
        grant.record(request=call.request, **known, **answered)

    def _usage(self, call: Call, said: Answer | None, body: bytes) -> tuple[dict[str, float], bool]:
        """Tokens and cost; where the server does not count and a limit must hold, an estimate."""
        if call.route.endpoint.kind != "generate" or (said is None and not body):
            return {}, False
        usage = dict(said.usage) if said is not None else {}
        estimated = False
        counts = {"input_tokens", "output_tokens"} - usage.keys()
        if counts and call.access.grant.meter.counted and (call.status or 0) < _ERROR and body:
            sizes = {"input_tokens": len(call.content), "output_tokens": len(body)}
            usage |= {name: -(-sizes[name] // _CHARACTERS_PER_TOKEN) for name in counts}
            estimated = True
        cost = cost_of(call.provider, call.model, usage)
        return (usage if cost is None else {**usage, "cost_usd": cost}), estimated

    def _known(self, call: Call, outcome: str) -> dict[str, Any]:
        return {
            "time": call.time,
            "place": call.place,
            "dialect": call.route.endpoint.dialect,
            "provider": call.provider or call.route.upstream,
            "model": call.model,
            "endpoint": f"{call.method} {call.route.path}",
            "outcome": outcome,
            "status": call.status,
            "usage": {},
            "timing": {name: round(seconds, 6) for name, seconds in call.timing.items()},
            "stream": call.stream,
            "retries": tuple(call.retries),
            "removed_tools": call.removed,
        }


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _whole(response: httpx.Response) -> bytes:
    pieces, size = [], 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > MAX_ANSWER:
            raise httpx.ReadError("the answer is too large")
        pieces.append(piece)
    return b"".join(pieces)


async def _respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


def _code(error: Exception) -> str:
    return "model-timeout" if isinstance(error, httpx.TimeoutException) else "model-unreachable"


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _out_of_time(access: Access) -> LimitReached:
    limits = access.grant.meter.limits
    seconds = limits.max_seconds
    if seconds is not None:
        return LimitReached("max_model_time", "rollout", seconds, seconds)
    above = access.grant.meter.above
    whole = (above.limits.max_seconds if above is not None else None) or 0.0
    return LimitReached("max_model_time", "job", whole, whole)
