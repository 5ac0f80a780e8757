"""The last lines of a command's output, for the message about its failure."""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

_LINES: Final = 20
_BYTES: Final = 4000


class Tail:
    """Keeps the end of what a command printed, both streams in the order they came; bounded."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        del stream
        self._chunks.append(data[-_BYTES:])
        self._size += len(self._chunks[-1])
        while self._size - len(self._chunks[0]) >= _BYTES:
            self._size -= len(self._chunks.popleft())

    def text(self) -> str:
        """At most the last twenty lines."""
        text = b"".join(self._chunks)[-_BYTES:].decode(errors="replace")
        return "\n".join(line.rstrip() for line in text.splitlines()[-_LINES:])
