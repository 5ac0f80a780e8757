"""The filtering proxy: what a sandbox sends to it, or is led to it, is judged and then forwarded or refused.

Explicit: absolute-form HTTP requests and CONNECT. Transparent: TLS by its server name, HTTP by its Host
header, on addresses that the name service handed out. Under an allowlist nothing but TLS and HTTP passes, and
what a connection says of itself must agree with where it goes.
"""

from __future__ import annotations

import base64
import hmac
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

import h11

from benchflow.sandbox.network.egress_plan import FAKE_NETWORK, PROXY_USER
from benchflow.sandbox.network.host_rules import InvalidHostError, as_address, normalize_host
from benchflow.sandbox.network.proxying.clienthello import (
    MAX_HELLO,
    UNRECOGNIZED_NAME,
    IncompleteError,
    NotTLSError,
    server_name,
)
from benchflow.sandbox.network.proxying.connection import ProtocolError, Stream, relay
from benchflow.sandbox.network.proxying.dialer import Outbound, RefusedError, UnreachableError
from benchflow.sandbox.network.proxying.dns import FakeNames
from benchflow.sandbox.network.proxying.forward import Forwarder, answer_errors, read_request, reply
from benchflow.sandbox.network.proxying.http1 import Target, parse_authority, request_target, values

_TLS_HANDSHAKE: Final = 0x16


class Proxy:
    """Handles the connections of one sandbox under one policy."""

    def __init__(self, outbound: Outbound, names: FakeNames, *, idle: float, secret: str | None = None) -> None:
        self._outbound = outbound
        self._names = names
        self._idle = idle
        self._credentials = None if secret is None else _basic(secret)

    async def explicit(self, client: Stream) -> None:
        """Serve a client that knows it speaks to a proxy."""
        await answer_errors(client, self._outbound, "proxy", self._explicit(client))

    async def transparent(self, client: Stream) -> None:
        """Serve a client that believes it speaks to the server itself."""
        address, port = client.local_address
        host = self._names.name_of(address)
        if host is None and ip_address(address) not in FAKE_NETWORK:
            host = address
        if host is None or self._outbound.inspects:
            return await self._inspected(client, host, port)
        with suppress(RefusedError, UnreachableError):  # logged; an unknown protocol has no words
            await self._raw(client, Target(host, port))
        return None

    async def _raw(self, client: Stream, target: Target) -> None:
        with await self._outbound.connect("raw", target) as server:
            await relay(client, server, idle=self._idle)

    async def _explicit(self, client: Stream) -> None:
        forwarder = Forwarder(client, self._outbound, "proxy", idle=self._idle)
        more = True
        while more and (asked := await read_request(client)) is not None:
            request = asked.request
            if not self._authorized(request):
                more = False
                self._outbound.malformed("proxy", "without the secret of this sandbox's proxy")
                demand = f'Proxy-Authenticate: Basic realm="{PROXY_USER}"'
                await reply(client, 407, "this proxy belongs to a sandbox", demand)
            elif request.method == b"CONNECT":
                more = False
                await self._tunnel(client, request)
            elif request.target.startswith(b"/"):
                raise ProtocolError("this is a proxy: request a full URL")
            else:
                more = await forwarder.forward(asked)

    async def _tunnel(self, client: Stream, request: h11.Request) -> None:
        target = parse_authority(request.target.decode(), None)
        named = values(request, b"host")[0].decode("latin-1")
        has_body = values(request, b"transfer-encoding") or values(request, b"content-length") not in ([], [b"0"])
        if has_body or (named and parse_authority(named, target.port).host != target.host):
            raise ProtocolError("a CONNECT that names two hosts or has a body")
        with await self._outbound.connect("connect", target) as server:
            await client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            if self._outbound.inspects:
                await self._inspected(client, target.host, target.port, server)
            else:
                await relay(client, server, idle=self._idle)

    async def _inspected(self, client: Stream, host: str | None, port: int, server: Stream | None = None) -> None:
        """Let pass TLS or HTTP that is meant for `host`, or for whom it says where that is not known."""
        first = await client.peek(1)
        if first[:1] == bytes([_TLS_HANDSHAKE]):
            await self._tls(client, host, port, server)
        elif first:
            await answer_errors(client, self._outbound, "http", self._http(client, host, port, server))

    async def _tls(self, client: Stream, host: str | None, port: int, server: Stream | None) -> None:
        try:
            target = Target(await self._tls_host(client, host, port), port)
            server = server or await self._outbound.connect("tls", target)
        except RefusedError:
            await client.write(UNRECOGNIZED_NAME)
        except (NotTLSError, InvalidHostError):
            self._outbound.malformed("tls", "not a TLS client's first message")
        except UnreachableError:
            return  # the client sees the connection end, as with a server that is down
        else:
            with server:
                await relay(client, server, idle=self._idle)

    async def _tls_host(self, client: Stream, host: str | None, port: int) -> str:
        """The server name, checked against the host that the connection was made to."""
        name = await _read_server_name(client)
        if name is None:
            if host is not None and as_address(host) is not None:
                return host
            raise self._outbound.refused("tls", Target(host or "", port), "TLS without a server name")
        asked = normalize_host(name)
        if host not in {None, asked}:
            raise self._outbound.refused("tls", Target(asked, port), f"the connection was made to {host}")
        return asked

    async def _http(self, client: Stream, host: str | None, port: int, server: Stream | None) -> None:
        asked = await read_request(client)
        if asked is None:
            return
        only = Target(host or request_target(asked.request, default_port=port)[0].host, port)
        forwarder = Forwarder(client, self._outbound, "http", idle=self._idle, only=only)
        await forwarder.serve(asked, server)

    def _authorized(self, request: h11.Request) -> bool:
        if self._credentials is None:
            return True
        shown = values(request, b"proxy-authorization")
        return len(shown) == 1 and hmac.compare_digest(shown[0], self._credentials)


async def _read_server_name(client: Stream) -> str | None:
    data = await client.peek(1)
    while True:
        try:
            return server_name(data)
        except IncompleteError:
            size = len(data)
            data = await client.peek(size + 1)
            if len(data) == size or size > MAX_HELLO:
                raise NotTLSError from None


def _basic(secret: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{PROXY_USER}:{secret}".encode())
