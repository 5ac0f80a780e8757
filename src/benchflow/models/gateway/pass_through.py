"""The application that the gateway serves: token, route, policy and limits of a call, then its upstream or a replay.

Whatever a box sends, it gets an answer in its own dialect, and a call that was let in is recorded exactly once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from benchflow.errors import UsageError
from benchflow.models.gateway.call_failures import CallFailure, named
from benchflow.models.gateway.call_limits import LimitReached
from benchflow.models.gateway.call_prices import price_of
from benchflow.models.gateway.endpoints import (
    Family,
    Route,
    error_body,
    named_upstream,
    passed_headers,
    passed_query,
    route,
    shown_tokens,
)
from benchflow.models.gateway.exchange import ERROR, Exchange
from benchflow.models.gateway.grants import Access
from benchflow.models.gateway.provider_tools import searching_model, without_tools
from benchflow.models.gateway.upstream.upstream_call import Send, UpstreamCalls, respond, settle
from benchflow.models.gateway.upstreams import Upstream
from benchflow.models.gateway.wire_answers import read_answer

if TYPE_CHECKING:
    from benchflow.models.gateway.model_gateway import Gateway
    from benchflow.models.gateway.replay_book import ReplayBook

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_REQUEST: Final = 32 << 20
MAX_HELD: Final = 4 * MAX_REQUEST
"""Of all requests of one role at a time: a box cannot fill the memory of the driver."""
_TOKEN_FIELDS: Final = {"logprobs": True, "return_token_ids": True}
"""What servers of chat completions are asked for, so that they give token ids."""
_LOGPROBS: Final = "message.output_text.logprobs"


class Refused(Exception):
    """A request that is not sent on; the caller gets this error in its own dialect."""

    def __init__(self, status: int, code: str, message: str, *, limit: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.limit = limit


class Gone(Exception):
    """The caller does not wait any more."""


class PassThrough:
    """The application, in the form that HTTP servers of Python call."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway: Final = gateway
        self._upstreams: Final = UpstreamCalls(gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        access: Access = scope["state"]["access"]
        path = scope["raw_path"].decode("latin-1")
        family = access.families.get(named_upstream(path) or "", "openai")
        call: Exchange | None = None
        try:
            _require_token(access, scope)
            found = route(scope["method"], path, access.families)
            if found is None:
                raise Refused(404, "unknown-endpoint", f"This gateway has nothing at {scope['method']} {path[:200]}.")
            call = Exchange(access, access.place, found, scope["method"], model=found.model)
            await _read(call, scope, receive)
            await self._admit(call, scope, receive, send)
        except Refused as refused:
            if call is not None:
                call.refuse("limited" if refused.limit else "refused", refused.status, refused.code, str(refused))
            await _tell(refused, family, send)
        except (Gone, ConnectionError):
            if call is not None:
                call.end("aborted")
        except asyncio.CancelledError:
            if call is not None:
                call.end("aborted")
            raise
        except Exception as error:  # the boundary: whatever fails here is no fault of the agent
            if call is not None:
                what = f"The gateway failed: {type(error).__name__}: {error}"
                call.end("failed", CallFailure("infrastructure", "gateway-failed", what[:500]))
            raise
        finally:
            if call is not None:
                access.held -= call.held

    async def _admit(self, call: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the call through what holds for its rollout, and answer it, unless its caller leaves."""
        book = call.access.grant.request.replay
        upstream = self._upstream(call, replays=book is not None)
        call.provider = upstream.name
        _keep_policy(call)
        _ask_for_tokens(call)
        if book is not None:
            _require_room(call, free=True)
            await _replay(call, book, send)
            return
        query = passed_query(scope["query_string"].decode("latin-1"))
        headers = passed_headers(scope["headers"])
        answering = asyncio.ensure_future(self._answer(call, upstream, query, headers, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise Gone
            await answering
        finally:
            gone.cancel()
            await _stop(answering)

    async def _answer(
        self, call: Exchange, upstream: Upstream, query: str, headers: Mapping[str, str], send: Send
    ) -> None:
        """Ask the upstream, once the call has its place among those at once and within the time that is left.

        It is counted with its place: those that wait are held to what the calls before them used.
        """
        meter = call.access.grant.meter
        _require_within(call, meter.reached())
        async with meter.place():
            if meter.queues:
                call.timing["queued"] = call.since()
            _require_room(call, free=False)
            left = meter.seconds_left()
            try:
                async with asyncio.timeout(left) as limit:
                    await self._upstreams.answer(call, upstream, query, headers, send)
            except TimeoutError:
                if left is None or not limit.expired():
                    raise
                _cut(call, left)

    def _upstream(self, call: Exchange, *, replays: bool) -> Upstream:
        """Who answers, with the model as it is called there."""
        try:
            upstream, model = self._gateway.upstreams.serving(call.route.upstream, call.model)
        except UsageError as error:
            raise Refused(400, error.code, str(error)) from error
        if model != call.model and not replays:
            if call.route.model is None:
                call.request = {**call.request, "model": model}
                call.content = json.dumps(call.request).encode()
            else:
                path = call.route.path.replace(f"/models/{call.model}", f"/models/{model}")
                call.route = Route(call.route.upstream, call.route.endpoint, path, model)
            call.model = model
        return upstream


def _require_token(access: Access, scope: Scope) -> None:
    shown = shown_tokens(scope["headers"], scope["query_string"].decode("latin-1"))
    if not shown or not all(access.knows(token) for token in shown):
        raise Refused(401, "token-refused", "This gateway does not know the token of the request.")
    if access.grant.closed or access.grant.suspended:
        raise Refused(403, "phase-over", "Models can be called in the agent phase only.")


async def _read(call: Exchange, scope: Scope, receive: Receive) -> None:
    """Take the body in, and what it asks for."""
    body, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        piece = message.get("body", b"")
        size += len(piece)
        call.held += len(piece)
        call.access.held += len(piece)
        if call.access.held > MAX_HELD:
            raise Refused(413, "requests-too-large", f"Requests have at most {MAX_HELD >> 20} MB at a time.")
        if size > MAX_REQUEST:
            raise Refused(413, "request-too-large", f"A request has at most {MAX_REQUEST >> 20} MB.")
        body.append(piece)
        more = message.get("more_body", False)
    if call.method == "GET":
        return
    call.content = b"".join(body)
    try:
        call.request = json.loads(call.content)
    except (ValueError, RecursionError):
        raise Refused(400, "invalid-json", "The body of the request is not valid JSON.") from None
    if not isinstance(call.request, dict):
        raise Refused(400, "invalid-json", "The body of the request is not a JSON object.")
    if call.model is None:
        asked = call.request.get("model")
        call.model = asked[:200] if isinstance(asked, str) else None
    if call.route.endpoint.dialect == "gemini-stream":
        call.stream = b"alt=sse" in scope["query_string"]
    else:
        call.stream = call.request.get("stream") is True


def _keep_policy(call: Exchange) -> None:
    """Take out tools of the provider that the package forbids."""
    forbidden = call.access.grant.request.forbidden_tools
    if not forbidden or call.request is None:
        return
    if searching_model(call.family, call.model, forbidden):
        raise Refused(403, "forbidden-tool", f"The model '{call.model}' searches, which this task forbids.")
    changed, call.removed = without_tools(call.family, call.request, forbidden)
    if changed is not None:
        call.request = changed
        call.content = json.dumps(changed).encode()


def _ask_for_tokens(call: Exchange) -> None:
    """Ask for token ids and log-probabilities where the user wants them and the dialect has them."""
    if not call.access.grant.request.token_ids or call.request is None:
        return
    asked: dict[str, Any] = call.request
    match call.route.endpoint.dialect:
        case "openai-chat":
            changed = {**_TOKEN_FIELDS, **asked}
        case "openai-responses":
            included = asked.get("include") or []
            changed = {**asked, "include": [*included, _LOGPROBS]} if _LOGPROBS not in included else asked
        case "gemini-generate" | "gemini-stream":
            changed = {**asked, "generationConfig": {"responseLogprobs": True, **(asked.get("generationConfig") or {})}}
        case _:
            return
    if changed != asked:
        call.request = changed
        call.content = json.dumps(changed).encode()


def _require_room(call: Exchange, *, free: bool) -> None:
    """Count the call, unless a limit is reached."""
    grant = call.access.grant
    if not call.generates:
        reached = grant.meter.reached()
    elif grant.meter.priced and not free and price_of(call.provider, call.model) is None:
        what = named(call.provider, call.model)
        message = f"The price of {what[0].lower()}{what[1:]} is unknown, so its cost cannot be limited."
        grant.ended(call.place, CallFailure("agent", "price-unknown", message))
        raise Refused(403, "price-unknown", message)
    else:
        reached = grant.meter.begin()
    _require_within(call, reached)
    call.counted = call.generates


def _require_within(call: Exchange, reached: LimitReached | None) -> None:
    """Refuse a call at a limit."""
    if reached is not None:
        call.access.grant.reach(reached)
        raise Refused(403, reached.name, str(reached), limit=True)


def _cut(call: Exchange, left: float) -> None:
    """End a call in the middle, because the time that was left for it is used up."""
    meter = call.access.grant.meter
    reached: LimitReached | None = meter.out_of_time(max(call.spent, left))
    if reached is None:
        call.end("aborted")
        return
    call.access.grant.reach(reached)
    if call.status is None:
        call.end("limited", code=reached.name, message=str(reached))
        raise Refused(403, reached.name, str(reached), limit=True)
    call.end("limited", code=reached.name, message=str(reached))


async def _replay(call: Exchange, book: ReplayBook, send: Send) -> None:
    """Answer from the record of another rollout, byte for byte."""
    endpoint = f"{call.method} {call.route.path}"
    found = call.access.grant.replayed(call.place, call.route.endpoint.dialect, endpoint, call.request)
    try:
        body = found.body() if found is not None else None
    except ValueError as error:
        raise Refused(400, "replay-damaged", f"The record that is replayed is damaged: {error}.") from error
    if found is None or body is None:
        message = f"The rollout that is replayed ({book.path.name}) has no answer to this request."
        if call.generates:
            call.access.grant.ended(call.place, CallFailure("agent", "replay-unknown", message))
        raise Refused(400, "replay-unknown", message)
    call.replayed = True
    call.begin_answer(found.status, found.content_type)
    call.take(body)
    await respond(send, found.status, [(b"content-type", found.content_type.encode("latin-1"))], body)
    is_error = found.status >= ERROR
    settle(call, None if is_error else read_answer(call.route.endpoint.dialect, body, stream=call.stream), body)


async def _tell(refused: Refused, family: Family, send: Send) -> None:
    """Answer in the dialect of the caller, with a header that asks clients not to retry."""
    headers = [(b"content-type", b"application/json"), (b"x-should-retry", b"false")]
    if refused.status in (401, 413):
        headers.append((b"connection", b"close"))
    await respond(send, refused.status, headers, error_body(family, refused.status, refused.code, str(refused)))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(task: asyncio.Future[None]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
