"""Forwards plain HTTP requests, each checked separately, each on its own connection to the server.

A server never sees two requests of one client connection, so nothing can be smuggled behind a judged one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import h11

from benchflow.sandbox.network.attempt_log import Channel
from benchflow.sandbox.network.proxying.connection import ProtocolError, Stream, relay
from benchflow.sandbox.network.proxying.dialer import Outbound, RefusedError, UnreachableError
from benchflow.sandbox.network.proxying.http1 import (
    Peer,
    Target,
    onward_request,
    onward_response,
    request_target,
)

_LINGER_SECONDS: Final = 2.0
_LINGER_BYTES: Final = 1 << 20
_SERVER_ERROR: Final = 500
_FORBIDDEN: Final = 403
_PHRASES: Final = {
    400: "Bad Request",
    403: "Forbidden",
    407: "Proxy Authentication Required",
    502: "Bad Gateway",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came in, and the client that waits for its answer."""

    request: h11.Request
    client: Peer


async def read_request(client: Stream) -> Asked | None:
    """The next request of a client; None when it is done."""
    peer = Peer(client, h11.SERVER)
    head = await peer.receive_head()
    return Asked(head, peer) if isinstance(head, h11.Request) else None


async def answer_errors(client: Stream, outbound: Outbound, channel: Channel, work: Awaitable[None]) -> None:
    """Wait for `work`; its failure is reported to the client in place of the server."""
    try:
        await work
    except ProtocolError as error:
        outbound.malformed(channel, str(error))
        await reply(client, 400, str(error))
    except RefusedError as error:
        await reply(client, 403, str(error))
    except UnreachableError as error:
        await reply(client, 502, str(error))


async def reply(client: Stream, status: int, text: str, *headers: str) -> None:
    """Answer in the server's stead, as the last thing on this connection."""
    body = text.encode() + b"\n"
    phrase = _PHRASES[status]
    if status == _FORBIDDEN:  # all that most programs show of a refused tunnel is this line
        phrase += f" ({re.sub(r'[^ -~]', '?', text)})"
    head = [f"HTTP/1.1 {status} {phrase}", "Content-Type: text/plain; charset=utf-8", *headers]
    head += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    await client.write("\r\n".join(head).encode("latin-1") + body)
    client.end_writing()
    with suppress(TimeoutError):  # unread bytes would make the kernel take the answer back
        async with asyncio.timeout(_LINGER_SECONDS):
            left = _LINGER_BYTES
            while left > 0 and (data := await client.read()):
                left -= len(data)


class Forwarder:
    """The requests of one client connection."""

    def __init__(
        self, client: Stream, outbound: Outbound, channel: Channel, *, idle: float, only: Target | None = None
    ) -> None:
        """`only` is the one target that requests may name, where the connection was made to it."""
        self._client = client
        self._outbound = outbound
        self._channel = channel
        self._idle = idle
        self._only = only

    async def serve(self, asked: Asked, server: Stream | None = None) -> None:
        """Forward a request, over `server` where it is connected already, and all that follow it."""
        following: Asked | None = asked
        while following is not None and await self.forward(following, server):
            server = None
            following = await read_request(self._client)

    async def forward(self, asked: Asked, server: Stream | None = None) -> bool:
        """Forward one request and its answer; whether the client may send another.

        `ProtocolError`, `RefusedError` and `UnreachableError` come before anything was answered.
        """
        target, path = self._target(asked.request)
        with server or await self._outbound.connect(self._channel, target) as connection:
            onward = onward_request(asked.request, target, path)
            try:
                await self._exchange(asked, onward, Peer(connection, h11.CLIENT), target)
            except UnreachableError as error:
                self._outbound.failed(self._channel, target, str(error))
                raise
        return asked.client.may_continue

    def _target(self, request: h11.Request) -> tuple[Target, str]:
        target, path = request_target(request, default_port=self._only.port if self._only else 80)
        if self._only is not None and target != self._only:
            raise self._outbound.refused(self._channel, target, f"the connection was made to {self._only.host}")
        return target, path

    async def _exchange(self, asked: Asked, onward: h11.Request, server: Peer, target: Target) -> None:
        """Send the request and pass on the answer; a server may answer before the body has ended."""
        sending = asyncio.create_task(_send(asked.client, onward, server))
        try:
            response = await _response(asked, server)
            if response.status_code >= _SERVER_ERROR:  # logged before the client can act on it
                self._outbound.failed(self._channel, target, f"answered with status {response.status_code}")
            await self._answer(asked, response, server)
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def _answer(self, asked: Asked, response: h11.InformationalResponse | h11.Response, server: Peer) -> None:
        await asked.client.send(onward_response(response))
        if isinstance(response, h11.InformationalResponse):
            await relay(self._client, server.stream, idle=self._idle)
            return None
        try:
            return await asked.client.send_body_of(server)
        except ProtocolError as error:
            raise ConnectionResetError(str(error)) from None  # too late for words: the client sees it end


async def _send(client: Peer, onward: h11.Request, server: Peer) -> None:
    """Send the request; if it cannot be sent completely, end the stream to the server."""
    try:
        await server.send(onward)
        await server.send_body_of(client)
    except (ProtocolError, OSError):
        server.stream.end_writing()


async def _response(asked: Asked, server: Peer) -> h11.InformationalResponse | h11.Response:
    """The final answer, or the one that switches protocols, which h11 refuses unless it was asked for."""
    try:
        while not isinstance(response := await server.receive_head(), h11.Response):
            if not isinstance(response, h11.InformationalResponse):
                raise ProtocolError("no answer")
            if response.status_code == 101:
                break
            if asked.request.http_version == b"1.1":
                await asked.client.send(onward_response(response))
    except (ProtocolError, OSError):
        raise UnreachableError("the server gave no valid answer") from None
    return response
