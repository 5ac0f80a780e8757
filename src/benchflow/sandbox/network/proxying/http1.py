"""HTTP/1 message heads and framing, strictly: what two parsers could read in two ways is refused.

Pure functions over bytes. The proxy judges a request by what is parsed here and forwards a head that is
written anew from it, so that the server cannot see another request than the one that was judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from benchflow.sandbox.network.host_rules import InvalidHostError, normalize_host

Headers = tuple[tuple[str, str], ...]
Body = int | Literal["chunked", "until-close"]

MAX_HEADERS: Final = 200
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TEXT: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(r"[\x21-\x7e\x80-\xff]+")
_STATUS: Final = re.compile(r"[1-5][0-9]{2}")
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_VERSIONS: Final = frozenset({"HTTP/1.0", "HTTP/1.1"})
_CONNECTION_HEADERS: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "proxy-authorization", "proxy-authenticate"),
        *("te", "trailer", "upgrade", "http2-settings", "transfer-encoding", "content-length"),
    }
)
_WEBSOCKET: Final = ["Connection: Upgrade", "Upgrade: websocket"]


class ProtocolError(Exception):
    """A message that is not plain HTTP/1."""


@dataclass(frozen=True, slots=True)
class Target:
    """A host in normal form and a port."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """As it stands in a `Host` header of plain HTTP."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Request:
    """A request's head. Header names are in lower case."""

    method: str
    target: str
    version: str
    headers: Headers

    @property
    def body(self) -> Body:
        """How the body is framed; a `ProtocolError` when that is ambiguous."""
        framing = _framing(self.headers)
        if framing == "chunked" and self.version == "HTTP/1.0":
            raise ProtocolError("a chunked request in HTTP/1.0")
        return 0 if framing is None else framing

    @property
    def keep_alive(self) -> bool:
        """Whether the client wants to send another request."""
        options = _options(self.headers, "connection") | _options(self.headers, "proxy-connection")
        return "close" not in options if self.version == "HTTP/1.1" else "keep-alive" in options

    @property
    def wants_websocket(self) -> bool:
        upgrades = "upgrade" in _options(self.headers, "connection")
        return upgrades and _options(self.headers, "upgrade") == {"websocket"}


@dataclass(frozen=True, slots=True)
class Response:
    """A response's head."""

    status: int
    reason: str
    version: str
    headers: Headers

    def body(self, method: str) -> Body:
        """How the body is framed when it answers a request of that method."""
        if method == "HEAD" or self.status < 200 or self.status in {204, 304}:
            return 0
        framing = _framing(self.headers)
        return "until-close" if framing is None else framing

    @property
    def keep_alive(self) -> bool:
        """Whether the server leaves the connection open."""
        options = _options(self.headers, "connection")
        return "close" not in options if self.version == "HTTP/1.1" else "keep-alive" in options


def parse_request(head: bytes) -> Request:
    """The head up to and with its empty line; a `ProtocolError` unless it is well-formed in every byte."""
    line, headers = _split(head)
    match line.split(" "):
        case [method, target, version] if _TOKEN.fullmatch(method) and _TARGET.fullmatch(target):
            if version in _VERSIONS:
                return Request(method, target, version, headers)
            raise ProtocolError("not HTTP/1.0 or HTTP/1.1")
    raise ProtocolError("not an HTTP request")


def parse_response(head: bytes) -> Response:
    """The head of a response; a `ProtocolError` unless it is well-formed."""
    line, headers = _split(head)
    version, _, rest = line.partition(" ")
    status, _, reason = rest.partition(" ")
    if version not in _VERSIONS or not _STATUS.fullmatch(status):
        raise ProtocolError("not an HTTP response")
    return Response(int(status), reason, version, headers)


def parse_authority(text: str, default_port: int | None) -> Target:
    """`host:port` of a CONNECT, a URL or a `Host` header; no user names, no empty ports."""
    host, colon, port = ("", "", "") if text.endswith("]") else text.rpartition(":")
    if not colon:
        host, port = text, "" if default_port is None else str(default_port)
    bare_v6 = ":" in host and not host.startswith("[")
    if bare_v6 or not _DIGITS.fullmatch(port) or not 0 < int(port) < 1 << 16:
        raise ProtocolError(f"{text[:80]!r} is not HOST:PORT")
    try:
        return Target(normalize_host(host), int(port))
    except InvalidHostError as error:
        raise ProtocolError(str(error)) from None


def request_target(request: Request, *, default_port: int = 80) -> tuple[Target, str]:
    """Whom a request is for, and the path to ask there.

    URL and `Host` header must agree; a URL other than `http:` is refused.
    """
    hosts = [value for name, value in request.headers if name == "host"]
    if len(hosts) > 1:
        raise ProtocolError("more than one Host header")
    named = parse_authority(hosts[0], default_port) if hosts else None
    if request.target.startswith("/") or (request.target == "*" and request.method == "OPTIONS"):
        if named is None:
            raise ProtocolError("no Host header")
        return named, request.target
    scheme, _, rest = request.target.partition("://")
    if scheme.lower() != "http":
        raise ProtocolError("only http:// URLs are forwarded; use CONNECT for others")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    path = rest[len(authority) :].partition("#")[0]
    asked = parse_authority(authority, 80)
    if named not in {None, asked}:
        raise ProtocolError("the Host header names another host than the URL")
    return asked, path if path.startswith("/") else "/" + path


def render_request(request: Request, target: Target, path: str) -> bytes:
    """The head for the server: one request, one Host, one framing, nothing that concerns the connection."""
    lines = [f"{request.method} {path} HTTP/1.1", f"Host: {target.authority}"]
    lines += [f"{name}: {value}" for name, value in _end_to_end(request.headers) if name != "host"]
    has_length = any(name == "content-length" for name, _ in request.headers)
    lines += _framing_lines(request.body, explicit_zero=has_length)
    lines += _WEBSOCKET if request.wants_websocket else ["Connection: close"]
    return _render(lines)


def render_response(response: Response, *, body: Body, keep_alive: bool) -> bytes:
    """The head for the client; `body` is how the answer will be framed."""
    lines = [f"HTTP/1.1 {response.status} {response.reason}"]
    lines += [f"{name}: {value}" for name, value in _end_to_end(response.headers)]
    if response.status == 101:
        lines += _WEBSOCKET
    elif response.status >= 200:
        declared = _framing(response.headers) if body == 0 else body  # what a HEAD tells, for instance
        lines += _framing_lines(declared, explicit_zero=True)
        lines.append(f"Connection: {'keep-alive' if keep_alive else 'close'}")
    return _render(lines)


def parse_chunk_size(line: bytes) -> int:
    """The size in a chunk's first line (without its line end)."""
    match = _CHUNK.fullmatch(line)
    if match is None:
        raise ProtocolError("not a chunk size")
    return int(match[1], 16)


def _split(head: bytes) -> tuple[str, Headers]:
    if not head.endswith(b"\r\n\r\n"):
        raise ProtocolError("no end of the head")
    first, *rest = head[:-4].decode("latin-1").split("\r\n")
    if len(rest) > MAX_HEADERS:
        raise ProtocolError("too many headers")
    if not _TEXT.fullmatch(first):
        raise ProtocolError("control characters in the first line")
    headers = []
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _TEXT.fullmatch(value):
            raise ProtocolError("not a header line")
        headers.append((name.lower(), value.strip(" \t")))
    return first, tuple(headers)


def _framing(headers: Headers) -> int | Literal["chunked"] | None:
    codings = [value for name, value in headers if name == "transfer-encoding"]
    lengths = [value for name, value in headers if name == "content-length"]
    if codings:
        if lengths or len(codings) > 1 or codings[0].lower() != "chunked":
            raise ProtocolError("ambiguous framing")
        return "chunked"
    if not lengths:
        return None
    if len(lengths) > 1 or not _DIGITS.fullmatch(lengths[0]):
        raise ProtocolError("ambiguous Content-Length")
    return int(lengths[0])


def _framing_lines(body: Body | None, *, explicit_zero: bool) -> list[str]:
    if body == "chunked":
        return ["Transfer-Encoding: chunked"]
    if isinstance(body, int) and (body or explicit_zero):
        return [f"Content-Length: {body}"]
    return []


def _end_to_end(headers: Headers) -> list[tuple[str, str]]:
    dropped = _CONNECTION_HEADERS | (_options(headers, "connection") - {"host"})
    return [(name, value) for name, value in headers if name not in dropped]


def _options(headers: Headers, wanted: str) -> set[str]:
    values = (value for name, value in headers if name == wanted)
    return {option.strip().lower() for value in values for option in value.split(",")}


def _render(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
