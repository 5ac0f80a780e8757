"""The model calls of a rollout by pages: a page of a file of any size costs no more than the page.

A place in the file is an offset at which a line begins, and the number of that line from 1.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any, Final

from benchflow.files.bounded import RefusedFileError, open_below, read_regular
from benchflow.record.codec import read
from benchflow.record.layout import RolloutFolder
from benchflow.record.model_calls import PART, CallOutcome, ModelCall
from benchflow.record.reading.long_lines import MAX_LINE, LongLine, lines_back, lines_from, whole_end

PAGE: Final = 50
MAX_PART: Final = 80 << 20
"""A larger part is not read: the gateway passes less."""
_BUDGET: Final = 16 << 20
"""Bytes that are read for one page, and then to the end of the line."""
_FREE: Final = ("models", "openai-count", "anthropic-count", "gemini-count")
"""Calls that cost no tokens."""
_SEQ: Final = re.compile(rb'\{"seq":([0-9]{1,15}),')
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CallLine:
    """One line of the file."""

    offset: int
    number: int
    """From 1."""
    call: ModelCall | None
    """None if the line is damaged. On a page it has no request: those are read one at a time."""


@dataclass(frozen=True, slots=True)
class CallsPage:
    """Some calls, and where those before and after them are."""

    lines: tuple[CallLine, ...] = ()
    at: tuple[int, int] = (0, 1)
    next: tuple[int, int] | None = None
    previous: tuple[int, int] | None = None
    total: int | None = None
    """The number of the last call; None if there is none, or it cannot be read."""


def calls_page(folder: RolloutFolder, offset: int = 0, number: int = 1, *, limit: int = PAGE) -> CallsPage:
    """The calls from a place on; a place beyond the end is the beginning. No file: no calls."""
    with _opened(folder) as stream:
        if stream is None:
            return CallsPage()
        end = whole_end(stream)
        if not 0 < offset < end:
            offset, number = 0, 1
        lines: list[CallLine] = []
        following = None
        for line in lines_from(stream, offset):
            here = (line.offset, number + len(lines))
            if len(lines) == limit or line.offset - offset > _BUDGET:
                following = here
                break
            found = _call(line)
            lines.append(CallLine(*here, found if found is None else replace(found, request=None)))
        start, walked = lines_back(stream, offset, limit, most=_BUDGET)
        previous = (start, max(1, number - walked)) if walked else None
        return CallsPage(tuple(lines), (offset, number), following, previous, _last(stream, end))


def count_calls(folder: RolloutFolder) -> int | None:
    """How many calls there are, by the number of the last one; None if there is none, or it cannot be read."""
    with _opened(folder) as stream:
        return None if stream is None else _last(stream, whole_end(stream))


@dataclass(frozen=True, slots=True)
class CallTally:
    """All calls of a rollout together, those of judges and simulated users included."""

    outcomes: Mapping[CallOutcome, int]
    usage: Mapping[str, float]
    """Sums of what every answered call has: a sum that leaves out some is left out."""
    damaged: int = 0
    """Lines that cannot be read."""

    @property
    def calls(self) -> int:
        return sum(self.outcomes.values())


def tally_calls(folder: RolloutFolder) -> CallTally:
    """Count all calls; every line is read once."""
    outcomes: Counter[CallOutcome] = Counter()
    known: Counter[str] = Counter()
    sums: dict[str, float] = {}
    damaged = counted = 0
    with _opened(folder) as stream:
        for line in () if stream is None else lines_from(stream, 0):
            call = _call(line)
            if call is None:
                damaged += 1
                continue
            outcomes[call.outcome] += 1
            if call.outcome == "answered" and call.dialect not in _FREE:
                counted += 1
                for name, value in call.usage.items():
                    known[name] += 1
                    sums[name] = sums.get(name, 0) + value
    whole = {name: value for name, value in sums.items() if known[name] == counted and not damaged}
    return CallTally(outcomes, whole, damaged)


def call_at(folder: RolloutFolder, offset: int) -> ModelCall | None:
    """The call whose line begins at an offset, with its request; None if there is none."""
    with _opened(folder) as stream:
        line = None if stream is None else next(lines_from(stream, offset), None)
    return None if line is None else _call(line)


def part_name(value: Any) -> str | None:
    """The digest of the part that a value of a request stands for; None if it is the value itself."""
    name = value.get(PART) if isinstance(value, dict) and len(value) == 1 else None
    return name if isinstance(name, str) and _DIGEST.fullmatch(name) else None


def read_part(folder: RolloutFolder, name: str) -> bytes:
    """The bytes of a part; `ValueError` if it is missing, damaged or no regular file."""
    if not _DIGEST.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not a digest")
    digest = name.removeprefix("sha256:")
    try:
        data = read_regular(folder.model_call_parts / digest, max_bytes=MAX_PART)
    except RefusedFileError as error:
        raise ValueError(f"the part {name} {error}") from error
    except OSError as error:
        raise ValueError(f"the part {name} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"the part {name} is damaged")
    return data


@contextmanager
def _opened(folder: RolloutFolder) -> Iterator[IO[bytes] | None]:
    """The file; None if there is none that can be read. Links are not followed, and pipes are not waited for."""
    try:
        descriptor = open_below(folder.path, folder.model_calls.name)
    except (OSError, RefusedFileError):
        yield None
        return
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def _call(line: LongLine) -> ModelCall | None:
    try:
        return None if line.data is None else read(ModelCall, json.loads(line.data))
    except (ValueError, RecursionError):
        return None


def _last(stream: IO[bytes], end: int) -> int | None:
    """The number of the last call, from the beginning of its line."""
    start, walked = lines_back(stream, end, 1, most=MAX_LINE)
    if not walked:
        return None
    stream.seek(start)
    found = _SEQ.match(stream.read(32))
    return int(found[1]) if found else None
