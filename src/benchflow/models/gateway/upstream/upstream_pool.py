"""Connections to upstreams, kept open between calls: who is dialled, through which proxy, with which certificates.

Proxies are those of the machine's variables (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`), never for loopback:
HTTP proxies and SOCKS5.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from benchflow.models.gateway.call_failures import Patience
from benchflow.models.gateway.upstream.socks_proxy import through_socks
from benchflow.models.gateway.upstream.upstream_wire import Connection, Head, WireError, WireSetupError, WireTimeout
from benchflow.models.proxy_kinds import SOCKS, unsupported

_IDLE: Final = 64
"""Connections that are kept for each server."""
_IDLE_SEC: Final = 30.0
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS: Final = {"http": 80, "https": 443}
_FIRST: Final = {"accept": "*/*", "user-agent": "benchcube"}
"""Headers that servers expect; the caller's own replace them."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A server, as it is reached."""

    scheme: str
    host: str
    port: int
    proxy: str | None

    @property
    def tunnelled(self) -> bool:
        """Whether an HTTP proxy is asked to connect: it sees nothing of what passes."""
        return self.proxy is not None and self.scheme == "https"

    @property
    def forwarded(self) -> bool:
        """Whether an HTTP proxy sends the request on."""
        return self.proxy is not None and not self.tunnelled and urlsplit(self.proxy).scheme not in SOCKS


@dataclass(frozen=True, slots=True)
class Answering:
    """An answer whose head has come."""

    head: Head
    connection: Connection

    @property
    def status(self) -> int:
        return self.head.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self.head.headers

    async def piece(self) -> bytes:
        """What has arrived; empty at the end. A `WireError` if the answer breaks off."""
        return await self.connection.piece()


class UpstreamPool:
    """All connections of a gateway."""

    def __init__(self, patience: Patience) -> None:
        self._patience: Final = patience
        self._idle: Final[dict[_Place, list[Connection]]] = {}
        self._parsed: Final[dict[str, tuple[_Place, SplitResult]]] = {}
        self._tls: ssl.SSLContext | None = None

    @asynccontextmanager
    async def asked(
        self, method: str, base: str, target: str, headers: Mapping[str, str], content: bytes
    ) -> AsyncIterator[Answering]:
        """Send a request below a base URL; its answer is closed at the end, and the connection kept if it can be."""
        place, url = self._place(base)
        connection = self._kept(place) or await self._dial(place)
        try:
            yield Answering(
                await connection.ask(method, *self._shown(place, url, target, headers, content)), connection
            )
        finally:
            self._keep(place, connection)

    def close(self) -> None:
        """Close what is idle; what is under way is closed by those who use it."""
        for kept in self._idle.values():
            for connection in kept:
                connection.close()
        self._idle.clear()

    def _place(self, base: str) -> tuple[_Place, SplitResult]:
        if (known := self._parsed.get(base)) is None:
            try:
                url = urlsplit(base)
                host = url.hostname or ""
                port = url.port or _PORTS[url.scheme]
                host.encode("idna")
            except (ValueError, KeyError) as error:
                raise WireError(f"{base!r} is not the URL of a server") from error
            known = self._parsed[base] = (_Place(url.scheme, host, port, _proxy_for(url.scheme, host)), url)
        return known

    def _kept(self, place: _Place) -> Connection | None:
        kept = self._idle.get(place)
        oldest = asyncio.get_running_loop().time() - _IDLE_SEC
        while kept:
            connection = kept.pop()
            if connection.reusable and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    def _keep(self, place: _Place, connection: Connection) -> None:
        kept = self._idle.setdefault(place, [])
        if not connection.reusable or len(kept) >= _IDLE:
            connection.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        kept.append(connection)

    def _shown(
        self, place: _Place, url: SplitResult, target: str, headers: Mapping[str, str], content: bytes
    ) -> tuple[str, dict[str, str], bytes]:
        """Target, headers and body of a request to a place."""
        host = url.netloc.rpartition("@")[2]
        shown = {"host": host.encode("idna").decode(), **_FIRST, **headers}
        if url.username is not None and "authorization" not in shown:
            shown["authorization"] = _basic(url)
        if content:
            shown["content-length"] = str(len(content))
        path = f"{url.path}{target}"
        if place.proxy is not None and place.forwarded:  # a proxy wants to know where a plain request goes
            path = f"http://{host}{path}"
            if (proxy := urlsplit(place.proxy)).username is not None:
                shown["proxy-authorization"] = _basic(proxy)
        return path, shown, content

    async def _dial(self, place: _Place) -> Connection:
        proxy = urlsplit(place.proxy) if place.proxy is not None else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._patience.connect_sec):
                scheme, host, port = place.scheme, place.host, place.port
                if proxy is not None and proxy.scheme in SOCKS:
                    return await self._behind_socks(place, proxy)
                if proxy is not None:
                    scheme, host, port = proxy.scheme, proxy.hostname or "", proxy.port or _PORTS.get(proxy.scheme, 0)
                if scheme not in _PORTS:
                    raise WireSetupError(unsupported(scheme))
                tls = self._context() if scheme == "https" else None
                transport, connection = await loop.create_connection(
                    lambda: Connection(self._patience.answer_sec), host, port, ssl=tls, happy_eyeballs_delay=0.25
                )
                if proxy is not None and place.tunnelled:
                    connection = await self._tunnel(place, proxy, transport, connection)
                return connection
        except TimeoutError as error:
            raise WireTimeout(f"no connection within {self._patience.connect_sec:g} s") from error
        except (OSError, UnicodeError) as error:
            raise WireError(str(error) or type(error).__name__) from error

    async def _behind_socks(self, place: _Place, proxy: SplitResult) -> Connection:
        tls = self._context() if place.scheme == "https" else None
        sock = await through_socks(proxy, place.host, place.port)
        name = place.host if tls is not None else None
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self._patience.answer_sec), sock=sock, ssl=tls, server_hostname=name
            )
        except BaseException:
            sock.close()
            raise
        return connection

    async def _tunnel(
        self, place: _Place, proxy: SplitResult, transport: asyncio.Transport, through: Connection
    ) -> Connection:
        """TLS to the place, through a proxy."""
        target = f"[{place.host}]:{place.port}" if ":" in place.host else f"{place.host}:{place.port}"
        headers = {"host": target} | ({"proxy-authorization": _basic(proxy)} if proxy.username is not None else {})
        try:
            head = await through.ask("CONNECT", target, headers, b"")
            if head.status // 100 != 2:
                raise WireError(f"the proxy {proxy.hostname} refused with status {head.status}")
            through.release()
            connection = Connection(self._patience.answer_sec)
            upgraded = await asyncio.get_running_loop().start_tls(
                transport, connection, self._context(), server_hostname=place.host
            )
        except BaseException:
            transport.abort()
            raise
        if upgraded is None:
            raise WireError("the proxy closed the connection")
        connection.connection_made(upgraded)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            import httpx

            self._tls = httpx.create_ssl_context()
        return self._tls


def _proxy_for(scheme: str, host: str) -> str | None:
    if host in _LOOPBACK or proxy_bypass(host):
        return None
    proxies = getproxies()
    found = proxies.get(scheme) or proxies.get("all")
    return found if not found or "://" in found else f"http://{found}"


def _basic(url: SplitResult) -> str:
    shown = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
    return f"Basic {base64.b64encode(shown.encode()).decode()}"
