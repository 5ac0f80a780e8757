"""`A2APeer`: somebody's A2A server, called over one kept connection; of A2A 1.x or 0.3, over JSON-RPC or REST.

A peer may be hostile: an answer is bounded in bytes, events and time, redirects are not followed, compressed
answers are refused, and a card leads to no other machine than the one that was named.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, Final, Self
from urllib.parse import quote

import anyio
import httpx

from benchflow.arena.a2a_cards import CARD_PATHS, Route, choose_route, plain_url
from benchflow.arena.a2a_dialects import render_message
from benchflow.arena.a2a_exchange import Exchange, PeerLimits
from benchflow.arena.a2a_types import (
    INTERRUPTED,
    TERMINAL,
    ArtifactEvent,
    Event,
    Message,
    MessageEvent,
    Part,
    PeerFailure,
    State,
    StatusEvent,
    parts_of,
    text_of,
)

CONNECT_SEC: Final = 10.0
CARD_SEC: Final = 15.0
MAX_CARD: Final = 1 << 20
CANCEL_SEC: Final = 2.0
POLL_SEC: Final = 0.2
_METHODS: Final[Mapping[str, Mapping[str, str]]] = {
    "1.0": {"send": "SendMessage", "stream": "SendStreamingMessage", "get": "GetTask", "cancel": "CancelTask"},
    "0.3": {"send": "message/send", "stream": "message/stream", "get": "tasks/get", "cancel": "tasks/cancel"},
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: its parts in order, and the state in which the task ended (None for a bare message)."""

    parts: tuple[Part, ...]
    context_id: str | None
    state: State | None = None
    task_id: str | None = None

    @property
    def text(self) -> str:
        return text_of(self.parts)


class A2APeer:
    """A peer; `async with` reads its card and keeps the connection.

    `timeout` limits each exchange from the request to the last event.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float = 300.0,
        limits: PeerLimits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`transport` carries the requests, for peers that no socket of this machine reaches."""
        self.url: Final = url.rstrip("/")
        self._timeout: Final = timeout
        self._limits: Final = limits or PeerLimits()
        self._token: Final = token
        self._transport: Final = transport
        self._ids: Final = count(1)
        self._route: Route | None = None
        self._http: httpx.AsyncClient | None = None

    @property
    def card(self) -> Mapping[str, Any]:
        """The card, as the peer wrote it."""
        return self._to().raw

    async def __aenter__(self) -> Self:
        problem = plain_url(self.url)
        if problem is not None:
            raise PeerFailure("unreachable", f"The address of a peer, {self.url[:200]!r}, {problem}.")
        headers = {"Accept-Encoding": "identity"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        # The environment's proxies are not for peers: an address means the machine that it names.
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=CONNECT_SEC),
            trust_env=False,
            follow_redirects=False,
            transport=self._transport,
            verify=_certificates(),
        )
        try:
            self._route = await self._discover()
        except BaseException:
            await self._http.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._http is not None:
            with anyio.CancelScope(shield=True):
                await self._http.aclose()

    async def send(
        self,
        text: str | None,
        data: Any = None,
        *,
        context_id: str | None = None,
        task_id: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Event]:
        """Send a message and yield what comes back, until a message or a state that ends the exchange.

        A reader that stops early closes the generator (`contextlib.aclosing`).
        """
        message = Message(parts_of(text, data), context_id=context_id, task_id=task_id)
        async with aclosing(self.exchange(message, timeout)) as events:
            async for event in events:
                yield event

    async def exchange(self, message: Message, timeout: float | None = None) -> AsyncGenerator[Event]:
        """Send a message as it is, and yield what comes back as `send` does."""
        route, deadline = self._to(), anyio.current_time() + (self._timeout if timeout is None else timeout)
        exchange = Exchange(self.url, self._limits, deadline)
        body = {"message": render_message(message, route.version), "configuration": _configuration(route)}
        stream = self._events("stream" if route.streaming else "send", body, exchange)
        async with aclosing(stream):
            async for event in stream:
                yield event
                if _ends(event):
                    return
        async with aclosing(self._polled(exchange)) as polled:
            async for event in polled:
                yield event

    async def ask(
        self,
        text: str | None,
        data: Any = None,
        *,
        context_id: str | None = None,
        task_id: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Send a message and wait for the whole answer: its artifacts, then the message at its end.

        A task that is given up, by its limits or because the caller is cancelled, is cancelled at the peer too.
        """
        answer = _Gathered(context_id)
        try:
            async with aclosing(
                self.send(text, data, context_id=context_id, task_id=task_id, timeout=timeout)
            ) as events:
                async for event in events:
                    answer.take(event)
        except BaseException:
            if answer.task_id is not None:
                with anyio.move_on_after(CANCEL_SEC, shield=True), suppress(PeerFailure):
                    await self.cancel(answer.task_id)
            raise
        return answer.whole()

    async def cancel(self, task_id: str) -> None:
        """Ask the peer to end a task; one that has ended already, or cannot be cancelled, is left alone."""
        exchange = Exchange(self.url, self._limits, anyio.current_time() + CARD_SEC)
        try:
            async with aclosing(self._events("cancel", {"id": task_id}, exchange)) as events:
                async for _ in events:
                    return
        except PeerFailure as error:
            if error.problem != "refused":
                raise

    def _to(self) -> Route:
        if self._route is None:
            raise RuntimeError("the peer is used outside of `async with`")
        return self._route

    async def _discover(self) -> Route:
        for path in CARD_PATHS:
            exchange = Exchange(self.url, PeerLimits(MAX_CARD), anyio.current_time() + CARD_SEC)
            async with self._request("GET", f"{self.url}{path}", None, exchange) as answer:
                if answer.status_code == httpx.codes.NOT_FOUND:
                    continue
                exchange.require_success(answer)
                card = exchange.json(await exchange.read(answer))
            if not isinstance(card, dict):
                raise exchange.failure("protocol", "has a card that is not a JSON object")
            route = choose_route(card, self.url)
            if isinstance(route, str):
                raise exchange.failure("protocol", f"cannot be called: {route}")
            return route
        raise PeerFailure("protocol", f"The peer at {self.url} has no agent card at {' or '.join(CARD_PATHS)}.")

    async def _polled(self, exchange: Exchange) -> AsyncGenerator[Event]:
        """What becomes of a task whose answer came before its end."""
        if exchange.task_id is None:
            raise exchange.failure("protocol", "ended its answer without saying anything")
        while True:
            with exchange.time():
                await anyio.sleep(POLL_SEC)
            known = set(exchange.artifacts)
            async with aclosing(self._events("get", {"id": exchange.task_id}, exchange)) as events:
                seen = [event async for event in events]
            if _ends(seen[-1]):
                for event in seen:
                    if not isinstance(event, ArtifactEvent) or event.artifact_id not in known:
                        yield event
                return
            exchange.artifacts = known

    async def _events(self, verb: str, params: Mapping[str, Any], exchange: Exchange) -> AsyncGenerator[Event]:
        """The events of one request."""
        route = self._to()
        if route.binding == "JSONRPC":
            method = _METHODS[route.version][verb]
            body: Any = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
            target = ("POST", route.url, body)
        else:
            target = _rest_request(route.url.rstrip("/"), verb, params)
        async with self._request(*target, exchange) as answer:
            if answer.headers.get("content-type", "").partition(";")[0].strip() == "text/event-stream":
                exchange.require_success(answer)
                async with aclosing(exchange.sent_events(answer)) as texts:
                    async for text in texts:
                        for event in exchange.events(text, route):
                            yield event
                return
            text = await exchange.read(answer)
            if answer.status_code >= httpx.codes.BAD_REQUEST and route.binding != "JSONRPC":
                raise exchange.failure("refused", f"answered with status {answer.status_code}: {_shown(text)}")
            if not text.lstrip().startswith(b"{"):
                exchange.require_success(answer)
            for event in exchange.events(text, route):
                yield event

    @asynccontextmanager
    async def _request(self, method: str, url: str, body: Any, exchange: Exchange) -> AsyncIterator[httpx.Response]:
        assert self._http is not None, "the peer is used outside of `async with`"  # noqa: S101 - told by _to
        version = None if self._route is None else self._route.version
        headers: dict[str, str] = {"A2A-Version": version} if version == "1.0" else {}
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        if content is not None:
            headers |= {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        with exchange.guarded(), exchange.time():
            request = self._http.build_request(method, url, content=content, headers=headers)
            answer = await self._http.send(request, stream=True)
            _acknowledge(answer)
        try:
            with exchange.guarded():
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise exchange.failure("protocol", "compresses its answers, although the request forbids it")
                yield answer
        finally:
            with anyio.CancelScope(shield=True):
                await answer.aclose()


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    """The authorities that are trusted; reading them takes longer than a message, so that clients share them."""
    return httpx.create_ssl_context()


def _acknowledge(answer: httpx.Response) -> None:
    """Acknowledge the head of an answer at once.

    Many a server sends head and body apart and waits for this in between, which takes the kernel some 40 ms by itself.
    """
    stream = answer.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is not None and hasattr(socket, "TCP_QUICKACK"):
        with suppress(OSError):  # a socket of another family
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _configuration(route: Route) -> dict[str, Any]:
    modes = {"acceptedOutputModes": ["text/plain", "application/json"]}
    return modes if route.version == "1.0" else {**modes, "blocking": True}


def _rest_request(base: str, verb: str, params: Mapping[str, Any]) -> tuple[str, str, Any]:
    if verb in ("send", "stream"):
        return "POST", f"{base}/message:{verb}", params
    task = f"{base}/tasks/{quote(str(params['id']), safe='')}"
    return ("GET", task, None) if verb == "get" else ("POST", f"{task}:cancel", {})


def _ends(event: Event) -> bool:
    return isinstance(event, MessageEvent) or (isinstance(event, StatusEvent) and event.state in TERMINAL | INTERRUPTED)


def _shown(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split())[:300]


class _Gathered:
    """The events of an exchange as one answer."""

    def __init__(self, context_id: str | None) -> None:
        self._context = context_id
        self._artifacts: Final[dict[str, list[Part]]] = {}
        self._last: tuple[Part, ...] = ()
        self._state: State | None = None
        self.task_id: str | None = None

    def take(self, event: Event) -> None:
        self._context = event.context_id or self._context
        if isinstance(event, MessageEvent):
            self._last = event.message.parts
            return
        self.task_id = event.task_id
        if isinstance(event, StatusEvent):
            self._state = event.state
            self._last = () if event.message is None else event.message.parts
            return
        kept = self._artifacts.setdefault(event.artifact_id, [])
        if not event.append:
            kept.clear()
        kept += event.parts

    def whole(self) -> Answer:
        made = tuple(part for kept in self._artifacts.values() for part in kept)
        return Answer((*made, *self._last), self._context, self._state, self.task_id)
