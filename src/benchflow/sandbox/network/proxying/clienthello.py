"""The server name that a TLS client asks for, read from its first message (RFC 8446, RFC 6066).

Pure and strict: `server_name` says that more bytes are needed, gives the name, or refuses what is not a
ClientHello.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_HELLO: Final = 1 << 15
"""More than any client sends, with post-quantum keys and session tickets."""
UNRECOGNIZED_NAME: Final = bytes.fromhex("15030100020270")
"""A fatal alert that tells the client why it is turned away."""
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_MAX_RECORD: Final = 1 << 14
_MAX_RECORDS: Final = 16
"""Clients use one or a few; a message in crumbs would only cost time."""


class NotTLSError(Exception):
    """Bytes that do not start a TLS connection."""


class IncompleteError(Exception):
    """A beginning that needs more bytes."""


class _Cursor:
    """Reads fields from bytes; running over the end is an error of the given kind."""

    def __init__(self, data: bytes, on_end: type[Exception]) -> None:
        self._data = data
        self._at = 0
        self._on_end = on_end

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise self._on_end
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> bytes:
        """A field with its length in front."""
        return self.take(self.number(size))

    def left(self) -> bool:
        return self._at < len(self._data)


def server_name(data: bytes) -> str | None:
    """The name in the ClientHello that `data` starts with; None when it names no server.

    Raises `IncompleteError` until the whole message is there, `NotTLSError` when it cannot become one.
    """
    records = _Cursor(data, IncompleteError)
    message = b""
    for _ in range(_MAX_RECORDS):
        message += _record(records)
        if message[0] != _CLIENT_HELLO:
            raise NotTLSError
        if len(message) >= 4:
            length = int.from_bytes(message[1:4])
            if length > MAX_HELLO or len(message) > 4 + length:
                raise NotTLSError
            if len(message) == 4 + length:
                return _name_in(message[4:])
    raise NotTLSError


def _record(records: _Cursor) -> bytes:
    """The content of one handshake record; the versions in its head all start with a 3."""
    if records.number(1) != _HANDSHAKE or records.number(1) != 3:
        raise NotTLSError
    records.take(1)
    size = records.number(2)
    if not 0 < size <= _MAX_RECORD:
        raise NotTLSError
    return records.take(size)


def _name_in(hello: bytes) -> str | None:
    fields = _Cursor(hello, NotTLSError)
    fields.take(2 + 32)
    for size in (1, 2, 1):
        fields.vector(size)
    if not fields.left():
        return None
    extensions = fields.vector(2)
    if fields.left():
        raise NotTLSError
    names = [content for kind, content in _extensions(extensions) if kind == 0]
    if len(names) > 1:
        raise NotTLSError
    return _single_name(names[0]) if names else None


def _extensions(data: bytes) -> Iterator[tuple[int, bytes]]:
    fields = _Cursor(data, NotTLSError)
    while fields.left():
        yield fields.number(2), fields.vector(2)


def _single_name(extension: bytes) -> str:
    outer = _Cursor(extension, NotTLSError)
    inner = _Cursor(outer.vector(2), NotTLSError)
    kind, name = inner.number(1), inner.vector(2)
    if kind != 0 or inner.left() or outer.left() or not name:
        raise NotTLSError
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise NotTLSError from None
