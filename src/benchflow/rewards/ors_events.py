"""Reward events of an ORS episode: created from tool outputs, written and read as JSON lines.

A tool output is the answer of an ORS environment to a call, bare or wrapped (`{"output": {...}}`); an event is its flat
record. `reward_event` reads both; a null reward means an event without a reward.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, Literal

from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.rewards.numbers import UNIT, RewardRange, shown
from benchflow.rewards.reward_errors import RewardError
from benchflow.rewards.verdict import Granularity, RewardEvent, granularity, space

RecordFormat = Literal["auto", "json", "jsonl"]
DEFAULT_SOURCE: Final = "ors-tool-output"

_WRAPPERS: Final = ("tool_output", "output", "result")


def tool_output_events(
    outputs: Iterable[object], *, source: str = DEFAULT_SOURCE, reward_range: RewardRange = UNIT
) -> tuple[RewardEvent, ...]:
    """The events of an episode's tool outputs, in order; an output that does not finish the episode is a step."""
    return tuple(
        reward_event(output, index, default="step", source=source, reward_range=reward_range)
        for index, output in enumerate(outputs, start=1)
    )


def reward_event(
    record: object,
    index: int,
    *,
    default: Granularity = "terminal",
    source: str = DEFAULT_SOURCE,
    reward_range: RewardRange = UNIT,
) -> RewardEvent:
    """One event from a record or tool output; raises `RewardError` with its position in the episode.

    `default` is the granularity of an event that neither finishes the episode nor states its type. An event that
    finishes the episode is terminal and must not state anything else. `index` counts from 1 and is used as the step of
    a tool output without one.
    """
    where = f"event {index}"
    if not isinstance(record, Mapping):
        raise RewardError(f"{where} must be an object, not {shown(record)}")
    inner: Mapping[str, Any] = next((record[key] for key in _WRAPPERS if isinstance(record.get(key), Mapping)), {})
    finished = _finished(record, inner, where)
    kind, grain = _kind(record, finished, default, where)
    step = record.get("step", index if default == "step" else None)
    if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
        raise RewardError(f"{where}: step must be an integer, not {shown(step)}", path="step")
    place = "action" if default == "step" and not finished else "output"
    return RewardEvent(
        type=kind,
        reward=_reward(record, inner, where, reward_range),
        source=_text(record, ("source", "tool_name", "tool"), where) or source,
        step=step,
        space=space(record.get("space", place), f"{where}: space"),
        granularity=grain,
        timestamp=_timestamp(record, where),
        tool_call_id=_text(record, ("tool_call_id", "toolCallId"), where),
        finished=finished is True,
    )


def render_events(events: Iterable[RewardEvent]) -> str:
    """The events as JSON lines, the format of `trajectory/ors-rewards.jsonl`, which `reward_event` reads."""
    lines = []
    for event in events:
        record = {key: value for key, value in asdict(event).items() if value is not None and value is not False}
        lines.append(json.dumps({"reward": None, **record}, ensure_ascii=False, allow_nan=False) + "\n")
    return "".join(lines)


def parse_records(data: bytes, *, name: str, form: RecordFormat = "auto") -> tuple[Mapping[str, Any], ...]:
    """The records in an evidence file: one object per line, or one JSON object or list of objects.

    `auto` means lines for names that end in `.jsonl`. Raises `RewardError` for invalid content or no records.
    """
    lines = form == "jsonl" or (form == "auto" and name.endswith(".jsonl"))
    records = _lines(data, name) if lines else _document(data, name)
    if not records:
        raise RewardError(f"{name} contains no reward records", code="reward-missing", file=name)
    for place, record in records:
        if not isinstance(record, Mapping):
            raise RewardError(f"{name}, {place}: a record must be an object, not {shown(record)}", file=name)
    return tuple(record for _, record in records)


def _lines(data: bytes, name: str) -> list[tuple[str, Any]]:
    records: list[tuple[str, Any]] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                records.append((f"line {number}", parse_json(line)))
            except StrictJSONError as error:
                raise RewardError(f"{name}, line {number} {error}", file=name, line=number) from error
    return records


def _document(data: bytes, name: str) -> list[tuple[str, Any]]:
    try:
        value = parse_json(data)
    except StrictJSONError as error:
        raise RewardError(f"{name} {error}", file=name) from error
    return [(f"record {index}", item) for index, item in enumerate(value if isinstance(value, list) else [value])]


def _finished(record: Mapping[str, Any], inner: Mapping[str, Any], where: str) -> bool | None:
    """Whether the record ends the episode; None if it does not say."""
    said = [holder[key] for holder in (record, inner) for key in ("finished", "done") if key in holder]
    if not all(isinstance(value, bool) for value in said):
        raise RewardError(f"{where}: finished must be true or false", path="finished")
    return any(said) if said else None


def _kind(
    record: Mapping[str, Any], finished: bool | None, default: Granularity, where: str
) -> tuple[str, Granularity]:
    kind = _text(record, ("type",), where)
    grain = granularity(record["granularity"], f"{where}: granularity") if "granularity" in record else None
    if finished:
        if kind not in (None, "terminal") or grain not in (None, "terminal"):
            raise RewardError(f"{where} finishes the episode, so it must be terminal", path="type")
        return "terminal", "terminal"
    if kind is None:
        grain = grain or ("step" if finished is False else default)
        return ("terminal" if grain == "terminal" else "dense"), grain
    return kind, grain or ("terminal" if kind == "terminal" else "step")


def _reward(record: Mapping[str, Any], inner: Mapping[str, Any], where: str, reward_range: RewardRange) -> float | None:
    holder = record if "reward" in record else inner
    if "reward" not in holder:
        if record.get("ok") is False:
            return None
        raise RewardError(f"{where} has no reward", path="reward")
    value = holder["reward"]
    if isinstance(value, Mapping):
        value = value.get("reward")
    return None if value is None else reward_range.take(value, f"{where}: reward")


def _text(record: Mapping[str, Any], keys: tuple[str, ...], where: str) -> str | None:
    for key in keys:
        value = record.get(key)
        if value is not None:
            if not isinstance(value, str) or not value:
                raise RewardError(f"{where}: {key} must be a string, not {shown(value)}", path=key)
            return value
    return None


def _timestamp(record: Mapping[str, Any], where: str) -> str | float | None:
    value = record.get("timestamp", record.get("ts"))
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    raise RewardError(f"{where}: timestamp must be a string or a number, not {shown(value)}", path="timestamp")
