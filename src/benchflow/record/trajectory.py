"""The events of a rollout: one JSON line each, stamped and redacted, and read one at a time, for any number of them.

A `Trajectory` is the event sink of agents and is appended to as it happens; `context` adds where in the rollout an
event belongs. Agents that work at the same time have an `EventLine` of it each. `rewards.jsonl` has one line per judged
item and step, then the terminal one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Final, Self, TypedDict, cast

from benchflow.files.redaction import Redactor
from benchflow.record.codec import JsonLines, plain, read, read_lines
from benchflow.rewards import Scored, Verdict

MAX_TEXT: Final = 1 << 18
"""Longer texts are cut in the middle; agents keep their whole output under `agent/`."""


class _Stamped(TypedDict):
    seq: int
    """Counts from 1."""
    time: str
    type: str
    """`user_message`, `agent_message`, `agent_thought`, `tool_call`, `tool_result`, `usage`, `oracle`, `agent_timeout`,
    `verification`, `error`, or a kind of the agent's own."""


class Event(_Stamped, total=False):
    """One event. Agents may add further keys."""

    scene: str
    role: str
    round: int
    step: str
    branch: str
    text: str
    tool: str
    title: str
    kind: str
    arguments: Any
    tool_call_id: str
    output: Any
    content: Any
    usage: Any
    reward: float
    error: str
    category: str
    code: str
    message: str
    reason: str
    timeout_sec: float
    exit_code: int


def timestamp() -> str:
    """Now, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class EventLine:
    """One line of work in a trajectory: an event sink with a context and listeners of its own."""

    def __init__(self, write: Callable[[str, Mapping[str, Any], Mapping[str, Any]], Event]) -> None:
        """`write` gets the type, the context and the fields of an event, and gives it as it was written."""
        self._write = write
        self._context: dict[str, Any] = {}
        self._listeners: list[Callable[[Event], None]] = []

    def __call__(self, event: str, /, **fields: Any) -> None:
        """Write one event; fields that are None are left out."""
        written = self._write(event, self._context, fields)
        for listener in self._listeners:
            listener(written)

    @contextmanager
    def context(self, **fields: Any) -> Iterator[None]:
        """Add fields (scene, role, round, step, branch) to every event of the block."""
        before = self._context
        self._context = {**before, **{name: value for name, value in fields.items() if value is not None}}
        try:
            yield
        finally:
            self._context = before

    @contextmanager
    def collected(self) -> Iterator[list[Event]]:
        """The events of the block, as they were written."""
        events: list[Event] = []
        with self.heard(events.append):
            yield events

    @contextmanager
    def heard(self, listener: Callable[[Event], None]) -> Iterator[None]:
        """Pass every event of the block to a listener, as it was written."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)


class Trajectory(EventLine):
    """Appends events to one file. The file appears with the first event."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        super().__init__(self._append)
        self.counts: Counter[str] = Counter()
        """How many events of each type there were."""
        self.calls: Counter[frozenset[str]] = Counter()
        """How often tools were called, by all the names that a call goes by; calls in branches are not counted."""
        self._redactor = redactor
        self._lines = JsonLines(path)
        self._sequence = 0

    def line(self) -> EventLine:
        """A line for one of several that work at the same time; its events have the context of that line only."""
        return EventLine(self._append)

    def _append(self, event: str, context: Mapping[str, Any], fields: Mapping[str, Any]) -> Event:
        self._sequence += 1
        line: dict[str, Any] = {"seq": self._sequence, "time": timestamp(), "type": event, **context}
        for name, value in fields.items():
            if value is not None and name not in ("seq", "time", "type"):
                line[name] = _bounded(self._redactor.data(_plain(value)))
        self.counts[event] += 1
        if event == "tool_call" and "branch" not in line:
            self.calls[tool_names(line)] += 1
        self._lines.append(line)
        return cast("Event", line)

    def close(self) -> None:
        """Idempotent."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_trajectory(path: Path) -> Iterator[Event]:
    """The events of a trajectory, one at a time; lines that are torn or not events are left out."""
    for line in read_lines(path):
        if isinstance(line.get("type"), str):
            yield cast("Event", {"seq": 0, "time": "", **line})


_NAMES: Final = ("tool", "name", "function", "kind", "title")


def tool_names(event: Mapping[str, Any]) -> frozenset[str]:
    """All the names that a tool call goes by: tool, kind, title and the title's first word."""
    names = {event[key] for key in _NAMES if isinstance(event.get(key), str)}
    first = str(event.get("title") or "").partition(" ")[0].rstrip(":")
    return frozenset(name for name in (*names, first) if name)


def tool_name(event: Mapping[str, Any]) -> str:
    """What a tool call is called: its tool, else its kind, else its title."""
    named = (event.get(key) for key in _NAMES)
    return next((name for name in named if isinstance(name, str) and name not in ("", "other")), "unknown")


def _plain(value: Any) -> Any:
    """A value as JSON has it; what JSON has no form for becomes text."""
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_TEXT:
        half = MAX_TEXT // 2
        return f"{value[:half]}\n[{len(value) - 2 * half:,} characters from the middle were dropped]\n{value[-half:]}"
    if isinstance(value, dict):
        return {key: _bounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_bounded(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class RewardLine:
    """One reward, and what it was given for."""

    ts: str
    type: str
    """`terminal` for the reward of the rollout, else `process`."""
    source: str
    value: float
    tag: str
    space: str
    granularity: str
    meta: Mapping[str, Any]


def write_rewards(
    path: Path, verdict: Verdict, redactor: Redactor, *, step: str | None = None, final: bool = True
) -> None:
    """Append the events of one verification; of one without a score there are none."""
    if isinstance(verdict, Scored):
        with closing(JsonLines(path)) as lines:
            for line in reward_lines(verdict, step=step, final=final):
                lines.append(redactor.data(plain(line)))


def read_rewards(path: Path) -> Iterator[RewardLine]:
    """The events of a file, one at a time; lines that are torn or not rewards are left out."""
    for line in read_lines(path):
        try:
            yield read(RewardLine, line)
        except ValueError:
            continue


def reward_lines(scored: Scored, *, step: str | None = None, final: bool = True) -> Iterator[RewardLine]:
    """The events of one verification; `final` when its reward is the rollout's."""
    now = timestamp()
    common: dict[str, Any] = {"step": step} if step is not None else {}
    for item in scored.items:
        meta: dict[str, Any] = {"reason": item.reason} if item.reason else {}
        yield RewardLine(now, "process", "verifier_rubric", item.score, item.name, item.space, "step", meta | common)
    for event in scored.events:
        if event.reward is not None:
            at = event.timestamp if isinstance(event.timestamp, str) else now
            index: dict[str, Any] = {"step_index": event.step} if event.step is not None else {}
            meta = index | common
            yield RewardLine(
                at, "process", event.source, event.reward, event.type, event.space, event.granularity, meta
            )
    kind, granularity = ("terminal", "terminal") if final else ("process", "step")
    metrics: dict[str, Any] = {"metrics": dict(scored.metrics)} if scored.metrics else {}
    yield RewardLine(now, kind, "verifier", scored.reward, step or "reward", "output", granularity, metrics | common)
