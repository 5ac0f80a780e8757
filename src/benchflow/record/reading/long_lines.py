"""Lines of files of any size: from an offset forwards, back to where earlier lines begin, and by pages.

A line that was not written to its end is left out. Of one that is too long nothing is kept in memory. A page of a file
of any size costs no more than the page; a place in the file is an offset at which a line begins, and the number of that
line from 1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

from benchflow.files.bounded import RefusedFileError, open_below

MAX_LINE: Final = 16 << 20
"""A longer line is not read: what is written here is far shorter."""
_BLOCK: Final = 1 << 16
_BUDGET: Final = 16 << 20
"""Bytes that are read for one page, and then to the end of the line."""
_SEQ: Final = re.compile(rb'\{"seq":([0-9]{1,15}),')
Place = tuple[int, int]


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


class NumberedLine(NamedTuple):
    """A line and its place."""

    place: Place
    line: LongLine


class LinePage(NamedTuple):
    """Some lines, and where those before and after them are."""

    lines: tuple[NumberedLine, ...]
    at: Place
    next: Place | None
    previous: Place | None
    total: int | None
    """The number of the last line, which begins with `seq`; None if there is none, or it cannot be read."""


def line_page(stream: IO[bytes], offset: int, number: int, *, limit: int) -> LinePage:
    """The lines from a place on; a place beyond the end is the beginning."""
    end = whole_end(stream)
    if not 0 < offset < end:
        offset, number = 0, 1
    lines: list[NumberedLine] = []
    following = None
    for line in lines_from(stream, offset):
        here = (line.offset, number + len(lines))
        if len(lines) == limit or line.offset - offset > _BUDGET:
            following = here
            break
        lines.append(NumberedLine(here, line))
    start, walked = lines_back(stream, offset, limit, most=_BUDGET)
    previous = (start, max(1, number - walked)) if walked else None
    return LinePage(tuple(lines), (offset, number), following, previous, last_number(stream, end))


def last_number(stream: IO[bytes], end: int) -> int | None:
    """The `seq` of the last line, from its beginning."""
    start, walked = lines_back(stream, end, 1, most=MAX_LINE)
    if not walked:
        return None
    stream.seek(start)
    found = _SEQ.match(stream.read(32))
    return int(found[1]) if found else None


@contextmanager
def opened_below(folder: Path, name: str) -> Iterator[IO[bytes] | None]:
    """A file; None if there is none that can be read. Links are not followed, and pipes are not waited for."""
    try:
        descriptor = open_below(folder, name)
    except (OSError, RefusedFileError):
        yield None
        return
    with os.fdopen(descriptor, "rb") as stream:
        yield stream
