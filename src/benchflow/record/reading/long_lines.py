"""Lines of files of any size: from an offset forwards, and back to where earlier lines begin.

A line that was not written to its end is left out. Of one that is too long nothing is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Final, NamedTuple

MAX_LINE: Final = 16 << 20
"""A longer line is not read: what is written here is far shorter."""
_BLOCK: Final = 1 << 16


class LongLine(NamedTuple):
    """A line and where it is."""

    offset: int
    end: int
    data: bytes | None
    """None for a line that is too long to be read."""


def lines_from(stream: IO[bytes], offset: int) -> Iterator[LongLine]:
    """Every line that was written to its end, from an offset."""
    stream.seek(offset)
    while data := stream.readline(MAX_LINE):
        start, offset = offset, offset + len(data)
        kept: bytes | None = data
        while not data.endswith(b"\n"):
            data = stream.readline(MAX_LINE)
            if not data:
                return
            kept, offset = None, offset + len(data)
        yield LongLine(start, offset, kept)


def lines_back(stream: IO[bytes], end: int, lines: int, *, most: int) -> tuple[int, int]:
    """Where the line begins that is so many lines before `end`, and how many they are: fewer at the beginning of the
    file, and where more than `most` bytes would have to be read. `end` is where a line begins, or the last one ends.
    """
    start, walked, at = end, 0, end
    while at > 0 and walked < lines and end - at < most:
        low = max(0, at - _BLOCK)
        stream.seek(low)
        block = stream.read(at - low)
        right = min(len(block), end - 1 - low)  # the very last byte ends the line before
        while walked < lines and (hit := block.rfind(b"\n", 0, right)) >= 0:
            start, walked, right = low + hit + 1, walked + 1, hit
        at = low
    return (0, walked + 1) if at == 0 and walked < lines and end > 0 else (start, walked)


def whole_end(stream: IO[bytes]) -> int:
    """Where the last line that was written to its end ends; 0 if there is none."""
    at = stream.seek(0, 2)
    while at > 0:
        low = max(0, at - _BLOCK)
        stream.seek(low)
        hit = stream.read(at - low).rfind(b"\n")
        if hit >= 0:
            return low + hit + 1
        at = low
    return 0
