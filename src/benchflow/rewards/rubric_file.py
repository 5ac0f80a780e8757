"""Rubric and criteria files, in TOML or JSON: `[[criterion]]` entries with an optional `[judge]` and `[scoring]`.

In: a file. Out: a frozen `Rubric`, or a `PackageError` that names the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchflow.errors import PackageError
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.rewards.aggregate import AggregatePolicy, parse_policy
from benchflow.rewards.numbers import finite, shown
from benchflow.rewards.rubric import MODES, TYPES, Criterion, JudgeSettings, Rubric
from benchflow.rewards.verdict import SPACES

MAX_BYTES: Final = 1 << 20
_MOST_LEVELS: Final = 10


def load_rubric(path: Path, *, file: str | None = None) -> Rubric:
    """The rubric in a file: JSON if it is named `.json`, otherwise TOML. `file` names it in errors.

    Raises `PackageError` (`invalid-rubric`) with the invalid key.
    """
    name = file or path.name
    try:
        data = read_regular(path, max_bytes=MAX_BYTES)
    except RefusedFileError as error:
        raise PackageError(f"{name} {error}", code="invalid-rubric", file=name) from error
    except OSError as error:
        raise PackageError(f"{name} cannot be read: {error.strerror}", code="missing-rubric", file=name) from error
    return parse_rubric(data, json=path.suffix == ".json", file=name)


def parse_rubric(data: bytes, *, json: bool = False, file: str = "rubric.toml") -> Rubric:
    """The rubric in a file's bytes; raises `PackageError` (`invalid-rubric`)."""
    reader = _Reader(file)
    value = _json(data, reader) if json else _toml(data, reader)
    if not isinstance(value, Mapping):
        raise reader.wrong("", "must contain an object")
    reader.require_known(value, {"title", "criterion", "criteria", "judge", "scoring", "metadata"}, "")
    if "criterion" in value and "criteria" in value:
        raise reader.wrong("criteria", "has both `criterion` and `criteria`")
    key = "criterion" if "criterion" in value else "criteria"
    entries = value.get(key)
    if not isinstance(entries, list) or not entries:
        raise reader.wrong(key, "needs at least one criterion")
    criteria = tuple(_criterion(entry, f"{key}[{index}]", reader) for index, entry in enumerate(entries))
    ids = [criterion.id for criterion in criteria]
    for index, name in enumerate(ids):
        if name in ids[:index]:
            raise reader.wrong(f"{key}[{index}]", f"has two criteria named {name!r}")
    return Rubric(
        criteria=criteria,
        policy=_scoring(reader.table(value, "scoring"), criteria, reader),
        judge=_judge(reader.table(value, "judge"), reader),
        title=reader.text(value, "title", ""),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Typed access to one file; errors are a `PackageError` with the key."""

    file: str

    def wrong(self, path: str, message: str) -> PackageError:
        where = f"{self.file}: {path} " if path else f"{self.file} "
        return PackageError(where + message, code="invalid-rubric", path=path, file=self.file)

    def require_known(self, value: Mapping[str, Any], known: set[str], path: str) -> None:
        for key in value:
            if key not in known:
                raise self.wrong(f"{path}{key}", f"is not a known key; known keys are {', '.join(sorted(known))}")

    def table(self, value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        found = value.get(key, {})
        if not isinstance(found, Mapping):
            raise self.wrong(key, "must be a table")
        return found

    def text(self, value: Mapping[str, Any], key: str, path: str) -> str | None:
        found = value.get(key)
        if found is not None and (not isinstance(found, str) or not found.strip()):
            raise self.wrong(f"{path}{key}", f"must be a string, not {shown(found)}")
        return found

    def number(self, value: Mapping[str, Any], key: str, path: str, default: float) -> float:
        found = finite(value.get(key, default))
        if found is None:
            raise self.wrong(f"{path}{key}", f"must be a finite number, not {shown(value[key])}")
        return found

    def flag(self, value: Mapping[str, Any], key: str, path: str) -> bool:
        found = value.get(key, False)
        if not isinstance(found, bool):
            raise self.wrong(f"{path}{key}", f"must be true or false, not {shown(found)}")
        return found

    def names(self, value: Mapping[str, Any], key: str, path: str) -> tuple[str, ...]:
        found = value.get(key, [])
        if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
            raise self.wrong(f"{path}{key}", "must be a list of names")
        return tuple(found)


_CRITERION_KEYS: Final = {
    *("id", "name", "title", "description", "match_criteria", "type", "points", "min", "max", "weight"),
    *("files", "space", "metadata", "levels", "negate", "optional", "annotations"),
}


def _criterion(entry: object, path: str, reader: _Reader) -> Criterion:
    if not isinstance(entry, Mapping):
        raise reader.wrong(path, "must be a table")
    inside = f"{path}."
    reader.require_known(entry, _CRITERION_KEYS, inside)
    names = [reader.text(entry, key, inside) for key in ("name", "id", "title")]
    texts = [reader.text(entry, key, inside) for key in ("description", "match_criteria", "title")]
    description = next((text for text in texts if text), None)
    if description is None:
        raise reader.wrong(path, "has no description")
    kind = entry.get("type", "binary")
    if kind not in TYPES:
        raise reader.wrong(f"{inside}type", f"must be one of {', '.join(TYPES)}, not {shown(kind)}")
    place = entry.get("space", "output")
    if place not in SPACES:
        raise reader.wrong(f"{inside}space", f"must be one of {', '.join(SPACES)}, not {shown(place)}")
    points = entry.get("points", 5)
    if isinstance(points, bool) or not isinstance(points, int) or not 2 <= points <= 1000:
        raise reader.wrong(f"{inside}points", f"must be an integer from 2 to 1000, not {shown(points)}")
    low, high = reader.number(entry, "min", inside, 0.0), reader.number(entry, "max", inside, 100.0)
    if finite(high - low) is None or not low < high:
        raise reader.wrong(f"{inside}min", f"must be less than max, but {low:g} is not less than {high:g}")
    weight = reader.number(entry, "weight", inside, 1.0)
    if weight < 0:
        raise reader.wrong(f"{inside}weight", f"must be at least 0, not {weight:g}")
    levels = reader.names(entry, "levels", inside)
    if (kind == "rubric") != (2 <= len(levels) <= _MOST_LEVELS):
        raise reader.wrong(
            f"{inside}levels", f"must be 2 to {_MOST_LEVELS} strings for the type rubric, and empty for other types"
        )
    return Criterion(
        id=next((name for name in names if name), description[:40]),
        description=description,
        type=kind,
        points=points,
        min=low,
        max=high,
        levels=levels,
        weight=weight,
        negate=reader.flag(entry, "negate", inside),
        optional=reader.flag(entry, "optional", inside),
        files=reader.names(entry, "files", inside),
        space=place,
    )


def _scoring(table: Mapping[str, Any], criteria: tuple[Criterion, ...], reader: _Reader) -> AggregatePolicy:
    """The policy for exactly these criteria; `mean` is the weighted mean, since every criterion has a weight."""
    reader.require_known(table, {"aggregation", "method", "threshold"}, "scoring.")
    if "aggregation" in table and "method" in table:
        raise reader.wrong("scoring.method", "means the same as `aggregation`; use only one of them")
    method = table.get("aggregation", table.get("method", "weighted_mean"))
    required = method in ("required_pass", "required-pass")
    declared = {
        "method": "weighted_mean" if method == "mean" else method,
        "weights": {item.id: item.weight if not required else float(not item.optional) for item in criteria},
        "threshold": table.get("threshold"),
        "criteria": [criterion.id for criterion in criteria],
    }
    policy = parse_policy(declared, path="scoring", file=reader.file)
    if required and all(item.optional for item in criteria):
        raise reader.wrong("scoring", "is required_pass, which needs at least one criterion that is not optional")
    if policy.method in ("weighted_mean", "threshold") and not any(item.weight for item in criteria):
        raise reader.wrong("scoring", "needs at least one criterion with a weight above 0")
    return policy


def _judge(table: Mapping[str, Any], reader: _Reader) -> JudgeSettings:
    mode = table.get("mode", "individual")
    if mode not in MODES:
        raise reader.wrong("judge.mode", f"must be one of {', '.join(MODES)}, not {shown(mode)}")
    timeout = reader.number(table, "timeout", "judge.", 120.0)
    if timeout <= 0:
        raise reader.wrong("judge.timeout", f"must be more than 0 seconds, not {timeout:g}")
    known = ("model", "mode", "files", "timeout")
    return JudgeSettings(
        model=reader.text(table, "model", "judge."),
        mode=mode,
        files=reader.names(table, "files", "judge."),
        timeout_sec=timeout,
        options=MappingProxyType({key: value for key, value in table.items() if key not in known}),
    )


def _toml(data: bytes, reader: _Reader) -> object:
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise reader.wrong("", f"is not UTF-8 (byte {error.start})") from error
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise reader.wrong("", f"is not TOML: {shown(str(error))}") from error


def _json(data: bytes, reader: _Reader) -> object:
    try:
        value: object = parse_json(data)
    except StrictJSONError as error:
        raise reader.wrong("", str(error)) from error
    return value
