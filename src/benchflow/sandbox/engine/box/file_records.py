"""Files as a stream of records, the language between the driver and the anchor inside a container. Pure.

A record is a fixed header, the path, and as many bytes of data as the header says; `anchor.c` documents the fields.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Literal, cast

from benchflow.errors import SandboxFailure

RecordType = Literal["d", "f", "l", "i", "x", "m", "s", "-"]
_HEADER: Final = struct.Struct("<cxHIIIQqq")
_TYPES: Final = frozenset("dfls-")


@dataclass(frozen=True, slots=True)
class Record:
    """One file, folder or link. `size` is the number of data bytes that follow."""

    type: RecordType
    path: str
    size: int = 0
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    target: str | None = None
    """The target of a link, if requested."""

    def header(self) -> bytes:
        """The record as the anchor reads it, without its data."""
        path = self.path.encode("utf-8", "surrogateescape")
        seconds, rest = divmod(self.mtime_ns, 1_000_000_000)
        return (
            _HEADER.pack(self.type.encode(), len(path), self.mode, self.uid, self.gid, self.size, seconds, rest) + path
        )


class RecordReader:
    """Reads records and their data from chunks as they arrive; holds no more than a chunk and a header."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._pending = b""

    async def next(self) -> Record | None:
        """The next record, or None at the end of the stream. Data must have been read before."""
        first = await self._take(_HEADER.size, at_end=b"")
        if not first:
            return None
        kind, length, mode, uid, gid, size, seconds, rest = _HEADER.unpack(first)
        name = kind.decode("latin-1")
        if name not in _TYPES:
            raise SandboxFailure("The sandbox sent an invalid file stream.", code="transfer-failed")
        path = (await self._take(length)).decode("utf-8", "surrogateescape")
        return Record(cast("RecordType", name), path, size, mode, uid, gid, seconds * 1_000_000_000 + rest)

    async def data(self, size: int) -> AsyncIterator[bytes]:
        """The data of the record that was read last."""
        left = size
        while left:
            if not self._pending:
                self._pending = await self._chunk()
            part, self._pending = self._pending[:left], self._pending[left:]
            left -= len(part)
            yield part

    async def take(self, size: int) -> bytes:
        """The data of the record that was read last, whole."""
        return await self._take(size)

    async def _take(self, size: int, *, at_end: bytes | None = None) -> bytes:
        while len(self._pending) < size:
            more = await anext(self._source, None)
            if more is None:
                if at_end is not None and not self._pending:
                    return at_end
                raise SandboxFailure("The sandbox ended a file stream too early.", code="transfer-failed")
            self._pending += more
        part, self._pending = self._pending[:size], self._pending[size:]
        return part

    async def _chunk(self) -> bytes:
        more = await anext(self._source, None)
        if more is None:
            raise SandboxFailure("The sandbox ended a file stream too early.", code="transfer-failed")
        return more
