"""What was said in an arena, by pages and in order of time: messages, with the tool calls and rewards between them.

The pages are those of the messages. A tool call or a reward stands after the last message before it. All texts are as
peers wrote them: escape them before showing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Final, TypeVar

from benchflow.record.arena_record import ArenaMessage, RoleToolCall
from benchflow.record.codec import read
from benchflow.record.layout import RolloutFolder
from benchflow.record.reading.long_lines import (
    LinePage,
    LongLine,
    last_number,
    line_page,
    lines_from,
    opened_below,
    whole_end,
)
from benchflow.record.trajectory import RewardLine

PAGE: Final = 50
_MOST_BYTES: Final = 64 << 20
"""Bytes of a file that are read to the end of what is between two messages, or to count who talks to whom."""
_MOST_BETWEEN: Final = 2_000
"""Tool calls and rewards of one page."""
_Line = TypeVar("_Line", ArenaMessage, RoleToolCall, RewardLine)


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened; all but one of the three are None. A line that cannot be read has none."""

    place: tuple[int, int]
    """Of a message: the offset of its line, and its number."""
    message: ArenaMessage | None = None
    call: RoleToolCall | None = None
    reward: RewardLine | None = None


@dataclass(frozen=True, slots=True)
class ExchangePage:
    """Some of what happened, and where that before and after it is."""

    entries: tuple[Entry, ...] = ()
    next: tuple[int, int] | None = None
    previous: tuple[int, int] | None = None
    total: int | None = None
    """All messages; None if there is none, or the last cannot be read."""
    left_out: int = 0
    """Tool calls and rewards of this page that are too many."""


def exchange_page(folder: RolloutFolder, offset: int = 0, number: int = 1, *, limit: int = PAGE) -> ExchangePage:
    """What happened from a place on; a place beyond the end is the beginning."""
    with _messages(folder) as stream:
        found = (
            LinePage((), (0, 1), None, None, None) if stream is None else line_page(stream, offset, number, limit=limit)
        )
        following = None if stream is None or found.next is None else next(lines_from(stream, found.next[0]), None)
    messages = [Entry(place, message=_read(ArenaMessage, line)) for place, line in found.lines]
    first = _moment(messages[0].message.time) if found.previous and messages and messages[0].message else 0.0
    after = _read(ArenaMessage, following) if following is not None else None
    until = _moment(after.time) if after is not None else None
    between = sorted(_between(folder, first, until), key=lambda pair: pair[0])
    entries = _merged(messages, between[:_MOST_BETWEEN])
    left_out = max(0, len(between) - _MOST_BETWEEN)
    return ExchangePage(tuple(entries), found.next, found.previous, found.total, left_out)


def _between(folder: RolloutFolder, first: float, until: float | None) -> Iterator[tuple[float, Entry]]:
    """The tool calls and rewards of a span of time."""
    with opened_below(folder.path, f"{folder.a2a.name}/{folder.a2a_tool_calls.name}") as stream:
        for call in _all(RoleToolCall, stream):
            at = _moment(call.time)
            if first <= at and (until is None or at < until):
                yield at, Entry((0, call.seq), call=call)
    with opened_below(folder.path, folder.rewards.name) as stream:
        for number, reward in enumerate(_all(RewardLine, stream), 1):
            at = _moment(reward.ts)
            if first <= at and (until is None or at < until):
                yield at, Entry((0, number), reward=reward)


def _merged(messages: Iterable[Entry], between: Iterable[tuple[float, Entry]]) -> Iterator[Entry]:
    waiting = list(reversed(list(between)))
    for entry in messages:
        at = _moment(entry.message.time) if entry.message is not None else 0.0
        while waiting and waiting[-1][0] < at:
            yield waiting.pop()[1]
        yield entry
    yield from (entry for _, entry in reversed(waiting))


def message_at(folder: RolloutFolder, offset: int) -> ArenaMessage | None:
    """The message whose line begins at an offset; None if there is none."""
    with _messages(folder) as stream:
        line = None if stream is None else next(lines_from(stream, offset), None)
    return None if line is None else _read(ArenaMessage, line)


def count_messages(folder: RolloutFolder) -> int | None:
    """How many messages there are, by the number of the last one."""
    with _messages(folder) as stream:
        return None if stream is None else last_number(stream, whole_end(stream))


@dataclass(frozen=True, slots=True)
class Talk:
    """Who talks to whom: messages and answers by sender and receiver, updates left out."""

    messages: Mapping[tuple[str, str], int] = field(default_factory=dict)
    whole: bool = True
    """Whether all messages were counted."""

    @property
    def peers(self) -> tuple[str, ...]:
        """In the order in which they first spoke or were spoken to."""
        return tuple(dict.fromkeys(peer for edge in self.messages for peer in edge))


def read_talk(folder: RolloutFolder) -> Talk:
    """Count the messages of a rollout."""
    found: dict[tuple[str, str], int] = {}
    with _messages(folder) as stream:
        for line in () if stream is None else lines_from(stream, 0):
            if line.offset > _MOST_BYTES:
                return Talk(found, whole=False)
            message = _read(ArenaMessage, line)
            if message is not None and message.kind in ("message", "artifact"):
                edge = (message.sender, message.receiver)
                found[edge] = found.get(edge, 0) + 1
    return Talk(found)


def _messages(folder: RolloutFolder) -> AbstractContextManager[IO[bytes] | None]:
    return opened_below(folder.path, f"{folder.a2a.name}/{folder.a2a_messages.name}")


def _all(kind: type[_Line], stream: IO[bytes] | None) -> Iterator[_Line]:
    for line in () if stream is None else lines_from(stream, 0):
        if line.offset > _MOST_BYTES:
            return
        found = _read(kind, line)
        if found is not None:
            yield found


def _read(kind: type[_Line], line: LongLine) -> _Line | None:
    try:
        return None if line.data is None else read(kind, json.loads(line.data))
    except (ValueError, RecursionError):
        return None


def _moment(text: str) -> float:
    """Seconds of a time stamp; 0 for what is not one."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):  # of a year that clocks do not have
        return 0.0
