"""A trajectory as steps: a prompt, or what an agent thought, said and called until the next one, with what came back.

A file is read from any offset at which a step begins, one step at a time, so that a page of a trajectory of any size
costs no more than the page. A damaged or overlong line becomes a step that says so; a torn last one is left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from benchflow.record.reading.long_lines import MAX_LINE, LongLine, lines_from
from benchflow.record.trajectory import Event, tool_name

StepKind = Literal["prompt", "agent", "note", "damaged"]
PartKind = Literal["prompt", "thought", "message", "call", "result", "note"]

PAGE: Final = 100
CONTEXT: Final = ("scene", "role", "round", "step", "branch")
_OPENING: Final = frozenset({"agent_message", "agent_thought", "tool_call"})
_JOINING: Final = frozenset({"tool_result", "usage", "permission_request", "permission", "plan"})
_KINDS: Final[Mapping[str, PartKind]] = {
    "user_message": "prompt",
    "agent_message": "message",
    "agent_thought": "thought",
    "tool_call": "call",
    "tool_result": "result",
}
_TEXTS: Final = ("text", "output", "content", "result", "stdout", "message", "reason", "title", "command")
_ENVELOPE: Final = frozenset({"seq", "time", "type", *CONTEXT})
_HEAD: Final = re.compile(
    rb'\{"seq":[0-9]+,"time":"[^"\\]*","type":"([^"\\]*)"'
    rb'((?:,"(?:scene|role|step|branch)":"(?:[^"\\]|\\.)*"|,"round":[0-9]+)*)[,}]'
)
"""The beginning of a line as a `Trajectory` writes it: enough to find steps without parsing what was said."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing of a step, in the order it happened."""

    kind: PartKind
    name: str
    """The name of the tool; of a note the type of the event."""
    text: str = ""
    """What was said; of a call its title; of a note everything it says."""
    arguments: Any = None
    """Of a call."""
    output: str | None = None
    """Of a call: what came back in the same step; None if nothing did."""
    failed: bool = False
    """Whether the tool reported a failure."""
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Some lines of a trajectory that belong together."""

    number: int
    """Counts from 1."""
    kind: StepKind
    time: str
    offset: int
    """Where its first line begins, in bytes."""
    end: int
    """Where the next step begins."""
    context: Mapping[str, str | int]
    """Scene, role, round, step and branch, as far as they apply."""
    parts: tuple[Part, ...]
    usage: Mapping[str, float] = field(default_factory=dict)
    """What the calls of the model in this step used, where the agent reports it."""
    last_seq: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Some steps of a trajectory, and where the next ones begin."""

    steps: tuple[Step, ...]
    next_offset: int | None
    """None at the end of what is written so far."""
    next_number: int


@dataclass(frozen=True, slots=True)
class StepIndex:
    """Where the pages of a trajectory begin: valid as long as the file has this size and time of change."""

    size: int
    mtime_ns: int
    steps: int
    page: int
    """Steps per page."""
    offsets: tuple[int, ...]
    """Where each page begins, in bytes."""
    counts: Mapping[str, int]
    """How many events of each type there are."""

    def start(self, number: int) -> tuple[int, int]:
        """The offset of the page that has this step, and the number of the first step there."""
        index = min(max(number - 1, 0) // self.page, len(self.offsets) - 1)
        return (self.offsets[index], index * self.page + 1) if self.offsets else (0, 1)


class ScannedLine(NamedTuple):
    """A line of a trajectory by its type; the rest of it is not parsed."""

    kind: str
    """The type of the event, or `damaged`."""
    end: int
    """Where the next line begins."""
    data: bytes | None
    """None for a line that is too long to be read."""


def read_steps(path: Path, offset: int = 0, number: int = 1) -> Iterator[Step]:
    """The steps of a trajectory from one that begins at `offset` and has this number. No file: no steps."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        gathering: _Gathering | None = None
        for line in lines_from(stream, offset):
            event = _event(line.data)
            kind, context = _head_of(event)
            if gathering is None or gathering.ends_before(kind, context):
                if gathering is not None:
                    yield gathering.step(number, line.offset)
                    number += 1
                gathering = _Gathering(line.offset, kind, context)
            gathering.add(event, line)
        if gathering is not None:
            yield gathering.step(number, gathering.end)


def steps_of(events: Iterable[Event]) -> Iterator[Step]:
    """The steps of events that are not in a file of ours; their offsets mean nothing."""
    gathering: _Gathering | None = None
    number = 1
    for event in events:
        kind, context = _head_of(event)
        if gathering is None or gathering.ends_before(kind, context):
            if gathering is not None:
                yield gathering.step(number, 0)
                number += 1
            gathering = _Gathering(0, kind, context)
        gathering.add(event, LongLine(0, 0, None))
    if gathering is not None:
        yield gathering.step(number, 0)


def scan_events(path: Path, offset: int = 0) -> Iterator[ScannedLine]:
    """The lines of a trajectory from an offset, for those who need only some of them. No file: no lines."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        for line in lines_from(stream, offset):
            yield ScannedLine(_quick_head(line.data)[0], line.end, line.data)


def parsed_event(data: bytes | None) -> Event | None:
    """The event of a line; None if it is damaged."""
    event = _event(data)
    return None if isinstance(event, str) else event


def steps_page(path: Path, offset: int = 0, number: int = 1, *, limit: int = PAGE) -> Page:
    """The next steps, at most `limit`, from the offset that the page before gave."""
    steps: list[Step] = []
    for step in read_steps(path, offset, number):
        if len(steps) == limit:
            return Page(tuple(steps), step.offset, step.number)
        steps.append(step)
    return Page(tuple(steps), None, number + len(steps))


def index_steps(path: Path, *, page: int = PAGE) -> StepIndex:
    """Where the pages of a trajectory begin; every line is looked at once, and hardly any is parsed."""
    offsets: list[int] = []
    counts: dict[str, int] = {}
    number = 0
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return StepIndex(0, 0, 0, page, (), {})
    with stream:
        state = _Boundary()
        for line in lines_from(stream, 0):
            kind, context = _quick_head(line.data)
            counts[kind] = counts.get(kind, 0) + 1
            if state.begins(kind, context):
                if number % page == 0:
                    offsets.append(line.offset)
                number += 1
        about = os.fstat(stream.fileno())
    return StepIndex(about.st_size, about.st_mtime_ns, number, page, tuple(offsets), counts)


def is_current(index: StepIndex, path: Path) -> bool:
    """Whether a file is still as it was when it was indexed."""
    try:
        about = path.stat()
    except OSError:
        return False
    return (about.st_size, about.st_mtime_ns) == (index.size, index.mtime_ns)


def prompt_of(path: Path) -> str | None:
    """The first prompt of a trajectory; None if it has none among its first steps."""
    for step in read_steps(path):
        if step.kind == "prompt":
            return step.parts[0].text
        if step.number >= PAGE:
            break
    return None


def event_text(event: Mapping[str, Any]) -> str:
    """What an event says: the first of its texts."""
    for key in _TEXTS:
        value = event.get(key)
        if isinstance(value, str):
            return value
        if value is not None:
            return json.dumps(value, ensure_ascii=False)
    return ""


def call_id(event: Mapping[str, Any]) -> str | None:
    """The id of a tool call or its result."""
    return next((str(event[key]) for key in ("tool_call_id", "id", "call_id") if event.get(key)), None)


def call_arguments(event: Mapping[str, Any]) -> Any:
    """The arguments of a tool call, by any of the names that agents give them."""
    return next((event[key] for key in ("arguments", "input", "raw_input") if event.get(key) is not None), None)


def usage_of(event: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a `usage` event."""
    inner = event.get("usage")
    values = inner if isinstance(inner, dict) else event
    return {
        name: value
        for name, value in values.items()
        if name not in _ENVELOPE and isinstance(value, int | float) and not isinstance(value, bool)
    }


def add_usage(totals: dict[str, float], event: Mapping[str, Any]) -> None:
    """Add a `usage` event to totals; one that reports the tokens in context is itself a total and replaces them."""
    used = usage_of(event)
    for name, value in used.items():
        totals[name] = value if "context_tokens" in used else totals.get(name, 0) + value


class _Boundary:
    """Where steps begin, from types and contexts alone."""

    def __init__(self) -> None:
        self._agent = False
        self._answered = False
        self._context: object = None

    def begins(self, kind: str, context: object) -> bool:
        """Take the next event; whether a step begins with it."""
        joins = self._agent and context == self._context
        opens = kind in _OPENING
        begins = not (joins and ((opens and not self._answered) or kind in _JOINING))
        if begins:
            self._agent = opens or kind in ("tool_result", "usage")
            self._answered = False
            self._context = context
        self._answered = self._answered or kind == "tool_result"
        return begins


class _Gathering:
    """The events of one step, until the next one begins."""

    def __init__(self, offset: int, kind: str, context: Mapping[str, str | int]) -> None:
        self.end = offset
        self._offset = offset
        self._boundary = _Boundary()
        self._boundary.begins(kind, context)
        self._first = kind
        self._context = context
        self._time = ""
        self._seq = 0
        self._parts: list[Part] = []
        self._usage: dict[str, float] = {}

    def ends_before(self, kind: str, context: Mapping[str, str | int]) -> bool:
        return self._boundary.begins(kind, context)

    def add(self, event: Event | str, line: LongLine) -> None:
        self.end = line.end
        if isinstance(event, str):
            self._parts.append(Part("note", "damaged", event))
            return
        self._time = self._time or event["time"]
        self._seq = event["seq"]
        if event["type"] == "usage":
            add_usage(self._usage, event)
        elif event["type"] == "tool_result":
            self._add_result(event)
        else:
            self._parts.append(_part(event))

    def _add_result(self, event: Event) -> None:
        found, failed = call_id(event), event.get("status") == "failed" or bool(event.get("error"))
        text = event_text(event)
        waiting = [index for index, part in enumerate(self._parts) if part.kind == "call" and part.output is None]
        ours = [index for index in waiting if found is None or self._parts[index].call_id == found]
        if not ours:
            self._parts.append(Part("result", tool_name(event), text, failed=failed, call_id=found))
            return
        call = self._parts[ours[0]]
        self._parts[ours[0]] = Part("call", call.name, call.text, call.arguments, text, failed, call.call_id)

    def step(self, number: int, end: int) -> Step:
        kind: StepKind = "note"
        if self._first == "user_message":
            kind = "prompt"
        elif self._first == "damaged":
            kind = "damaged"
        elif self._first in _OPENING or self._first in ("tool_result", "usage"):
            kind = "agent"
        return Step(
            number, kind, self._time, self._offset, end, self._context, tuple(self._parts), self._usage, self._seq
        )


def _part(event: Event) -> Part:
    kind = _KINDS.get(event["type"], "note")
    if kind == "call":
        return Part(
            "call", tool_name(event), str(event.get("title") or ""), call_arguments(event), call_id=call_id(event)
        )
    if kind != "note":
        return Part(kind, event["type"], event_text(event))
    rest = {key: value for key, value in event.items() if key not in _ENVELOPE}
    return Part("note", event["type"], event_text(event), rest)


def _event(data: bytes | None) -> Event | str:
    """The event of a line, or why there is none."""
    if data is None:
        return f"a line of more than {MAX_LINE >> 20} MiB was not read"
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return "a line of the trajectory is damaged"
    if not isinstance(found, dict) or not isinstance(found.get("type"), str):
        return "a line of the trajectory is not an event"
    seq, time = found.get("seq"), found.get("time")
    clean = {"seq": seq if isinstance(seq, int) else 0, "time": time if isinstance(time, str) else ""}
    return cast("Event", {**found, **clean})


def _head_of(event: Event | str) -> tuple[str, Mapping[str, str | int]]:
    if isinstance(event, str):
        return "damaged", {}
    known = cast("Mapping[str, Any]", event)
    return event["type"], {key: known[key] for key in CONTEXT if isinstance(known.get(key), str | int)}


def _quick_head(data: bytes | None) -> tuple[str, object]:
    """The type and the context of a line, both only to be compared."""
    found = _HEAD.match(data) if data is not None and data.endswith(b"}\n") else None
    if found is not None:
        return found[1].decode(errors="replace"), found[2]
    kind, context = _head_of(_event(data))
    return kind, b"".join(
        f',"{key}":{json.dumps(value, ensure_ascii=False)}'.encode() for key, value in context.items()
    )
