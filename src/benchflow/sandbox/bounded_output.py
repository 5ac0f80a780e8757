"""Output of a command kept within a bound: the beginning and the end stay, the middle goes.

One `BoundedOutput` serves both streams of a command; the bound holds for their sum.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Stream = Literal["stdout", "stderr"]


@dataclass(slots=True)
class _Kept:
    """The beginning of one stream, and what came after it as far as there is room."""

    head: bytearray = field(default_factory=bytearray)
    tail: deque[bytes] = field(default_factory=deque)
    tail_size: int = 0


class BoundedOutput:
    """Collects chunks of two streams; holds all up to `limit` bytes, then drops from the middle of the longer."""

    def __init__(self, limit: int) -> None:
        self._limit = max(limit, 0)
        self._head_room = self._limit // 4
        self._kept: dict[Stream, _Kept] = {"stdout": _Kept(), "stderr": _Kept()}
        self._size = 0
        self.dropped = 0

    def add(self, stream: Stream, data: bytes) -> None:
        kept = self._kept[stream]
        self._size += len(data)
        free = self._head_room - len(kept.head)
        if free > 0:
            kept.head += data[:free]
            data = data[free:]
        if data:
            kept.tail.append(data)
            kept.tail_size += len(data)
        while self._size > self._limit:
            self._drop_from(max(self._kept.values(), key=lambda one: one.tail_size))

    def kept(self, stream: Stream) -> bytes:
        """What is left of a stream: all of it, or its beginning and its end."""
        return bytes(self._kept[stream].head) + b"".join(self._kept[stream].tail)

    def _drop_from(self, kept: _Kept) -> None:
        first = kept.tail.popleft()
        surplus = min(self._size - self._limit, len(first))
        if surplus < len(first):
            kept.tail.appendleft(first[surplus:])
        kept.tail_size -= surplus
        self._size -= surplus
        self.dropped += surplus
