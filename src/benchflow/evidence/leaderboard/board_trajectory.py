"""The trajectory of a rollout against its result: whatever both of them state must agree. Pure.

`events` reads chunks of a file as one event at a time, of bounded length; `contradictions` compares.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

from benchflow.files.strict_json import parse_json
from benchflow.record import Result

MAX_LINE: Final = 64 << 20
"""Bytes of one event. Texts in events are cut at a fraction of this."""
CLOCKS_SEC: Final = 5.0
"""By how much times may contradict each other: clocks are adjusted while a rollout runs."""
_ORACLE: Final = "oracle"
_MODEL: Final = "model"


class MissingEventError(ValueError):
    """The events do not count from 1 without a gap."""


def events(chunks: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    """The events of a trajectory; raises `ValueError` for the first line that is not the next one."""
    number = 0
    for number, line in enumerate(filter(None, _lines(chunks)), 1):
        try:
            event = parse_json(line)
        except ValueError as error:
            raise ValueError(f"event {number} {error}") from error
        if not isinstance(event, dict) or event.get("seq") != number or isinstance(event["seq"], bool):
            raise MissingEventError(f"event {number} is missing or was added")
        if not isinstance(event.get("type"), str):
            raise ValueError(f"event {number} has no type")
        yield event
    if not number:
        raise ValueError("it has no events")


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []
    held = 0
    for chunk in chain(chunks, (b"\n",)):
        first, *more = chunk.split(b"\n")
        parts.append(first)
        held += len(first)
        if held > MAX_LINE:
            raise ValueError(f"it has a line of more than {MAX_LINE:,} bytes")
        if more:
            yield b"".join(parts)
            yield from more[:-1]
            parts, held = [more[-1]], len(more[-1])


def contradictions(found: Iterable[Mapping[str, Any]], result: Result) -> Iterator[str]:
    """What the events say otherwise than the result, in sentences; all of them are read."""
    begin, end = moment(result.started_at), moment(result.finished_at)
    seen = _Seen()
    outside: Mapping[str, Any] | None = None
    for event in found:
        seen.add(event)
        if outside is None and not _between(begin, moment(event.get("time")), end):
            outside = event
    if outside is not None:
        ran = f"the rollout ran from {result.started_at} to {result.finished_at}"
        yield f"event {outside['seq']} is of {outside.get('time')}, and {ran}"
    others = list(result.arena.roles.values()) if result.arena is not None else []
    agents = {result.agent.name, *(role.agent for role in others)}
    if seen.kinds[_ORACLE] and _ORACLE not in agents:
        yield f"the oracle worked in it, and the result is of the agent {result.agent.name}"
    if seen.models and result.agent.model is not None and result.agent.model not in seen.models:
        yield f"it is of the model {', '.join(sorted(seen.models))}, and the result of {result.agent.model}"
    if result.error is None and seen.kinds["agent_timeout"] and not result.agent.timed_out:
        yield "the agent reached its time limit in it, and in the result it did not"
    for name, value in seen.usage():
        stated = result.usage.get(name)
        if stated is not None and stated < value and not math.isclose(stated, value, rel_tol=1e-6):
            yield f"it adds up to {value:g} {name}, and the result states {stated:g}"


@dataclass(slots=True)
class _Seen:
    """What a trajectory amounts to. Branches are not part of the result, and are left out."""

    kinds: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    agents: set[object] = field(default_factory=set)
    models: set[str] = field(default_factory=set)

    def add(self, event: Mapping[str, Any]) -> None:
        if "branch" in event:
            return
        self.kinds[event["type"]] += 1
        if event["type"] == "usage":
            self.used.update({name: value for name, value in event.items() if _is_number(value)})
        if event["type"] == "agent_started":
            self.agents.add(event.get("agent"))
            if isinstance(event.get("model"), str):
                self.models.add(event["model"])

    def usage(self) -> Iterator[tuple[str, float]]:
        """What was used, where every agent reports what each of its calls used."""
        if self.agents == {_MODEL}:
            yield from sorted({**self.used, "tool_calls": self.kinds["tool_call"]}.items())


def moment(text: object) -> datetime | None:
    """The time in a record; None if it is not one."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _between(begin: datetime | None, at: datetime | None, end: datetime | None) -> bool:
    if begin is None or at is None or end is None:
        return False
    return (begin - at).total_seconds() <= CLOCKS_SEC and (at - end).total_seconds() <= CLOCKS_SEC


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
