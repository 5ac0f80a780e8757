"""HTTP/1 messages as h11 reads and writes them, strictly: what two parsers could read in two ways is refused.

Bytes come in as a stream, events of h11 go out, and back. The proxy judges a request by its event and forwards one that
is rebuilt from it, so that the server sees exactly the request that was checked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import h11

from benchflow.sandbox.network.host_rules import InvalidHostError, normalize_host
from benchflow.sandbox.network.proxying.connection import ProtocolError, Stream

Head = h11.Request | h11.InformationalResponse | h11.Response

MAX_HEAD: Final = 1 << 15
MAX_HEADERS: Final = 200
# h11 accepts bare line feeds, folded lines and most control characters; servers disagree on what they mean.
_PLAIN: Final = re.compile(rb"(?:[^\x00-\x20\x7f][^\x00-\x08\x0a-\x1f\x7f]*\r\n)+\r\n")
_HOST_LINE: Final = re.compile(rb"\r\nhost:", re.IGNORECASE)
_HIGH: Final = re.compile(rb"[\x80-\xff]")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_CONNECTION_HEADERS: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate"),
        *(b"te", b"trailer", b"upgrade", b"http2-settings"),
    }
)
_WEBSOCKET: Final = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]


@dataclass(frozen=True, slots=True)
class Target:
    """A host in normal form and a port."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """As written in a `Host` header of plain HTTP."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"


class Peer:
    """One side of one exchange over a stream, which is left where the message ended."""

    def __init__(self, stream: Stream, role: type[h11.CLIENT | h11.SERVER]) -> None:
        """`role` is what this process is to the other side."""
        self.stream = stream
        self._http = h11.Connection(role, max_incomplete_event_size=MAX_HEAD)

    async def receive_head(self) -> Head | None:
        """The next head; None when the stream ends before it."""
        head = await self.stream.read_until(b"\r\n\r\n", MAX_HEAD)
        return parse_head(self._http, head) if head else None

    async def receive_body(self) -> AsyncIterator[bytes]:
        """The blocks of the body; a `ProtocolError` when it is malformed or ends early."""
        try:
            while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    yield event.data
                else:
                    self._http.receive_data(await self.stream.read())
        except h11.RemoteProtocolError as error:
            raise ProtocolError(str(error)[:200]) from None
        self.stream.unread(self._http.trailing_data[0])

    async def send(self, event: h11.Event) -> None:
        """Write a head, a block or the end of a body."""
        parts = self._http.send_with_data_passthrough(event) or []
        if parts:  # a block that stands alone is not copied
            await self.stream.write(parts[0] if len(parts) == 1 else b"".join(parts))

    async def send_body_of(self, other: Peer) -> None:
        """Pass on a body with new framing, without extensions and trailers."""
        async for data in other.receive_body():
            await self.send(h11.Data(data=data))
            await asyncio.sleep(0)  # one block can hold thousands of tiny chunks: others get their turn
        await self.send(h11.EndOfMessage())

    @property
    def may_continue(self) -> bool:
        """Whether both messages have ended and another exchange can follow on the stream."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE


def parse_head(http: h11.Connection, head: bytes) -> Head:
    """The event of a head with its empty line; a `ProtocolError` unless it is well-formed in every byte."""
    if not _PLAIN.fullmatch(head):
        raise ProtocolError("a control character, a bare line feed or a folded header line")
    try:
        http.receive_data(_as_request(head) if http.our_role is h11.SERVER else head)
        event = http.next_event()
    except h11.RemoteProtocolError as error:
        raise ProtocolError(str(error)[:200]) from None
    if not isinstance(event, Head):
        raise ProtocolError("not an HTTP head")
    chunked = bool(values(event, b"transfer-encoding"))
    if event.http_version not in {b"1.0", b"1.1"}:
        raise ProtocolError("not HTTP/1.0 or HTTP/1.1")
    if len(event.headers) > MAX_HEADERS:
        raise ProtocolError("too many headers")
    if chunked and (values(event, b"content-length") or _is_old_request(event)):
        raise ProtocolError("ambiguous framing")
    return event


def _as_request(head: bytes) -> bytes:
    """What clients of a proxy leave out or do not encode, and what has one meaning only, as h11 wants it."""
    line, end, rest = head.partition(b"\r\n")
    line = _HIGH.sub(lambda byte: b"%%%02X" % byte[0][0], line)
    return line + end + (rest if _HOST_LINE.search(head) else b"Host:\r\n" + rest)


def _is_old_request(event: Head) -> bool:
    return isinstance(event, h11.Request) and event.http_version == b"1.0"


def values(head: Head, name: bytes) -> list[bytes]:
    """The values of all headers of a name, which is given in lower case."""
    return [value for header, value in head.headers if header == name]


def parse_authority(text: str, default_port: int | None) -> Target:
    """`host:port` of a CONNECT, a URL or a `Host` header; no user names, no empty ports."""
    host, colon, port = ("", "", "") if text.endswith("]") else text.rpartition(":")
    if not colon:
        host, port = text, "" if default_port is None else str(default_port)
    bare_v6 = ":" in host and not host.startswith("[")
    if bare_v6 or not _PORT.fullmatch(port) or not 0 < int(port) < 1 << 16:
        raise ProtocolError(f"{text[:80]!r} is not HOST:PORT")
    try:
        return Target(normalize_host(host), int(port))
    except InvalidHostError as error:
        raise ProtocolError(str(error)) from None


def request_target(request: h11.Request, *, default_port: int = 80) -> tuple[Target, str]:
    """Whom a request is for, and the path to ask there.

    URL and `Host` header must agree; a URL other than `http:` is refused.
    """
    host = values(request, b"host")[0].decode("latin-1")
    named = parse_authority(host, default_port) if host else None
    url = request.target.decode("latin-1")
    if url.startswith("/") or (url == "*" and request.method == b"OPTIONS"):
        if named is None:
            raise ProtocolError("no Host header")
        return named, url
    scheme, _, rest = url.partition("://")
    if scheme.lower() != "http":
        raise ProtocolError("only http:// URLs are forwarded; use CONNECT for others")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    path = rest[len(authority) :].partition("#")[0]
    asked = parse_authority(authority, 80)
    if named not in {None, asked}:
        raise ProtocolError("the Host header differs from the URL")
    return asked, path if path.startswith("/") else "/" + path


def wants_websocket(request: h11.Request) -> bool:
    """Whether a request asks for the one switch of protocols that is passed on."""
    return b"upgrade" in _options(request, b"connection") and _options(request, b"upgrade") == {b"websocket"}


def onward_request(request: h11.Request, target: Target, path: str) -> h11.Request:
    """The request for the server: one Host, one framing, nothing that concerns the client's connection."""
    headers = [(b"Host", target.authority.encode()), *_end_to_end(request)]
    headers += _WEBSOCKET if wants_websocket(request) else [(b"Connection", b"close")]
    return h11.Request(method=request.method, target=path, headers=headers)


def onward_response(response: h11.InformationalResponse | h11.Response) -> h11.InformationalResponse | h11.Response:
    """The response for the client; h11 frames it for the version that the client speaks."""
    headers = _end_to_end(response) + (_WEBSOCKET if response.status_code == 101 else [])
    return type(response)(status_code=response.status_code, reason=response.reason, headers=headers)


def _end_to_end(head: Head) -> list[tuple[bytes, bytes]]:
    """Without `Host`, which is rewritten, and without the headers that `Connection` names."""
    dropped = _CONNECTION_HEADERS | {b"host"} | _options(head, b"connection") - _FRAMING
    return [(name, value) for name, value in head.headers if name not in dropped]


def _options(head: Head, name: bytes) -> set[bytes]:
    return {option.strip().lower() for value in values(head, name) for option in value.split(b",")}
