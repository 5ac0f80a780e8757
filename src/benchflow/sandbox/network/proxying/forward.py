"""Forwards plain HTTP requests, each one judged by itself, each on a connection of its own to the server.

A server never sees two requests of one client connection, so nothing can be smuggled behind a judged one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from benchflow.sandbox.network.attempt_log import Channel
from benchflow.sandbox.network.proxying.connection import Stream, copy_all, copy_bytes, copy_chunked, relay
from benchflow.sandbox.network.proxying.dialer import RefusedError, UnreachableError
from benchflow.sandbox.network.proxying.http1 import (
    Body,
    ProtocolError,
    Request,
    Response,
    Target,
    parse_request,
    parse_response,
    render_request,
    render_response,
    request_target,
)
from benchflow.sandbox.network.proxying.outbound import Outbound

MAX_HEAD: Final = 1 << 15
_LINGER_SECONDS: Final = 2.0
_LINGER_BYTES: Final = 1 << 20
_PHRASES: Final = {
    400: "Bad Request",
    403: "Forbidden",
    407: "Proxy Authentication Required",
    502: "Bad Gateway",
}


async def read_request(client: Stream) -> Request | None:
    """The next request's head; None when the client is done."""
    head = await client.read_until(b"\r\n\r\n", MAX_HEAD)
    return parse_request(head) if head else None


async def answer_errors(client: Stream, outbound: Outbound, channel: Channel, work: Awaitable[None]) -> None:
    """Wait for `work`; what it could not do is told to the client in the server's stead."""
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
    head = [f"HTTP/1.1 {status} {_PHRASES[status]}", "Content-Type: text/plain; charset=utf-8", *headers]
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

    async def serve(self, request: Request, server: Stream | None = None) -> None:
        """Forward `request`, over `server` where it is connected already, and all that follow it."""
        following: Request | None = request
        while following is not None and await self.forward(following, server):
            server = None
            following = await read_request(self._client)

    async def forward(self, request: Request, server: Stream | None = None) -> bool:
        """Forward one request and its answer; whether the client may send another.

        `ProtocolError`, `RefusedError` and `UnreachableError` come before anything was answered.
        """
        target, path = self._target(request)
        head = render_request(request, target, path)
        with server or await self._outbound.connect(self._channel, target) as connection:
            return await self._exchange(request, head, connection)

    def _target(self, request: Request) -> tuple[Target, str]:
        target, path = request_target(request, default_port=self._only.port if self._only else 80)
        if self._only is not None and target != self._only:
            raise self._outbound.refused(self._channel, target, f"the connection was made to {self._only.host}")
        return target, path

    async def _exchange(self, request: Request, head: bytes, server: Stream) -> bool:
        """Send the request and pass on the answer; a server may answer before the body has ended."""
        sending = asyncio.create_task(self._send(request, head, server))
        try:
            response, body = await self._response(request, server)
            keep = await self._answer(request, response, body, server)
            return keep and sending.done() and sending.result()
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def _send(self, request: Request, head: bytes, server: Stream) -> bool:
        """Whether the whole request was sent; if not, the server is told that no more comes."""
        try:
            await server.write(head)
            await _copy_body(self._client, server, request.body)
        except (ProtocolError, OSError):
            server.end_writing()
            return False
        return True

    async def _response(self, request: Request, server: Stream) -> tuple[Response, Body]:
        """The head and framing of the final answer, or of the one that switches protocols."""
        try:
            while True:
                response = parse_response(await server.read_until(b"\r\n\r\n", MAX_HEAD))
                if response.status >= 200 or (response.status == 101 and request.wants_websocket):
                    return response, response.body(request.method)
                if response.status == 101:
                    raise ProtocolError("a switch of protocols that nobody asked for")
                if request.version == "HTTP/1.1":
                    await self._client.write(render_response(response, body=0, keep_alive=True))
        except (ProtocolError, OSError):
            raise UnreachableError("the server gave no valid answer") from None

    async def _answer(self, request: Request, response: Response, body: Body, server: Stream) -> bool:
        """Pass on the answer; whether it ended so that another request can follow."""
        decode = body == "chunked" and request.version == "HTTP/1.0"
        framing: Body = "until-close" if decode else body
        keep = request.keep_alive and framing != "until-close"
        await self._client.write(render_response(response, body=framing, keep_alive=keep))
        if response.status == 101:
            await relay(self._client, server, idle=self._idle)
            return False
        try:
            await _copy_body(server, self._client, body, decode=decode)
        except ProtocolError as error:
            raise ConnectionResetError(str(error)) from None  # too late for words: the client sees it end
        return keep


async def _copy_body(source: Stream, target: Stream, body: Body, *, decode: bool = False) -> None:
    if body == "chunked":
        await copy_chunked(source, target, decode=decode)
    elif body == "until-close":
        await copy_all(source, target)
    else:
        await copy_bytes(source, target, body)
