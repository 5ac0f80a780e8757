"""The model calls of a rollout by pages, one by one, and all together."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import IO, Any, Final

from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.record.codec import read
from benchflow.record.layout import RolloutFolder
from benchflow.record.model_calls import PART, CallOutcome, ModelCall
from benchflow.record.reading.long_lines import LongLine, last_number, line_page, lines_from, opened_below, whole_end

PAGE: Final = 50
MAX_PART: Final = 80 << 20
"""A larger part is not read: the gateway passes less."""
_FREE: Final = ("models", "openai-count", "anthropic-count", "gemini-count")
"""Calls that cost no tokens."""
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
        found = line_page(stream, offset, number, limit=limit)
        lines = tuple(CallLine(*place, _shown(line)) for place, line in found.lines)
        return CallsPage(lines, found.at, found.next, found.previous, found.total)


def _shown(line: LongLine) -> ModelCall | None:
    call = _call(line)
    return call if call is None else replace(call, request=None)


def count_calls(folder: RolloutFolder) -> int | None:
    """How many calls there are, by the number of the last one; None if there is none, or it cannot be read."""
    with _opened(folder) as stream:
        return None if stream is None else last_number(stream, whole_end(stream))


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


def _opened(folder: RolloutFolder) -> AbstractContextManager[IO[bytes] | None]:
    return opened_below(folder.path, folder.model_calls.name)


def _call(line: LongLine) -> ModelCall | None:
    try:
        return None if line.data is None else read(ModelCall, json.loads(line.data))
    except (ValueError, RecursionError):
        return None
