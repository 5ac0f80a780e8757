"""How a source `task.toml` spelled what an export would write in other words: old keys, implied values, other types.

`spelling_of` finds those parts of the source; a migration keeps them as TOML text in `benchflow.compat.spelling`.
`respelled` puts them into an exported `task.toml`, each only while it still means what the package says, so that an
author who edits `task.md` wins over the source.
"""

from __future__ import annotations

import copy
import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from benchflow.task.config.parsed_record import Record
from benchflow.task.config.task_config import (
    AgentConfig,
    EnvironmentConfig,
    OracleConfig,
    TaskConfig,
    VerifierConfig,
)

Model = type[Record] | None
Step = str | int

_TOGETHER: Final[Mapping[tuple[Model, str], str]] = {
    (EnvironmentConfig, "memory"): "memory_mb",
    (EnvironmentConfig, "storage"): "storage_mb",
    (EnvironmentConfig, "allow_internet"): "network_mode",
    **dict.fromkeys(
        ((model, "allowed_hosts") for model in (AgentConfig, EnvironmentConfig, VerifierConfig)), "network_mode"
    ),
    (VerifierConfig, "isolation"): "environment_mode",
}
"""Fields that are read together, so that one cannot be respelled without the other."""
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")


class Meaning(NamedTuple):
    """What a package says, however it is spelled: declared settings by canonical name, and preserved foreign keys."""

    declared: Mapping[str, Any]
    extra: Mapping[str, Any]
    valid: bool = True
    """False if something could not be read; then a setting without a meaning says nothing."""


Read = Callable[[dict[str, Any]], Meaning]


def same(one: Any, other: Any) -> bool:
    """Whether two TOML values are equal, their types included; unlike `==`, `nan` equals itself and 1 is not 1.0."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, float | dt.datetime):
        return repr(one) == repr(other) if isinstance(one, float) else one.isoformat() == other.isoformat()
    return bool(one == other)


def spelling_of(source: Mapping[str, Any], exported: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a source `task.toml` that differ in an export of it, with their nesting."""
    return _differing(TaskConfig, source, exported)


def respelled(exported: Mapping[str, Any], spelling: Mapping[str, Any], package: Meaning, read: Read) -> dict[str, Any]:
    """The exported mapping in the spelling of its source, where that still means what the package says."""
    attempt = _Attempt(package, frozenset())
    data = attempt.apply(exported, spelling)
    meaning = read(data)
    refused = frozenset(place for place in attempt.places if not place.agrees(meaning, package))
    return _Attempt(package, refused).apply(exported, spelling) if refused else data


def _family(model: Model, key: str) -> str:
    """The name that all spellings of a setting share."""
    if model is None:
        return key
    item = model.KEYS.get(key)
    if item is None:  # variables directly in the oracle's section belong to its `env`
        return "env" if model is OracleConfig and _VARIABLE.fullmatch(key) else key
    return _TOGETHER.get((model, item.name), item.name)


def _families(model: Model, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for key, value in table.items():
        found.setdefault(_family(model, key), {})[key] = value
    return found


def _inner(model: Model, key: str, shape: str) -> Model:
    """The record behind a key, if it holds one (`one`) or several (`list`)."""
    item = model.KEYS.get(key) if model is not None else None
    return item.kind.model if item is not None and item.kind.shape == shape else None


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


def _differing(model: Model, source: Mapping[str, Any], exported: Mapping[str, Any]) -> dict[str, Any]:
    theirs = _families(model, exported)
    found: dict[str, Any] = {}
    for family, mine in _families(model, source).items():
        other = theirs.get(family, {})
        if same(mine, other):
            continue
        key = next(iter(mine))
        if len(mine) == 1 and mine.keys() == other.keys():
            one, two = mine[key], other[key]
            if isinstance(one, Mapping) and isinstance(two, Mapping):
                found[key] = _differing(_inner(model, key, "one"), one, two)
                continue
            rows = _inner(model, key, "list")
            if rows is not None and _are_tables(one) and _are_tables(two) and len(one) == len(two):
                found[key] = _without_last_empty([_differing(rows, *pair) for pair in zip(one, two, strict=True)])
                continue
        found.update(mine)
    return found


def _without_last_empty(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    while rows and not rows[-1]:
        rows.pop()
    return rows


class _Table(NamedTuple):
    """A table under way: its record, and its location by canonical names and as written."""

    model: Model = TaskConfig
    named: tuple[Step, ...] = ()
    written: tuple[Step, ...] = ()

    def below(self, model: Model, key: str, *row: int) -> _Table:
        item = self.model.KEYS.get(key) if self.model is not None else None
        name = item.key if item is not None else key
        return _Table(model, (*self.named, name, *row), (*self.written, key, *row))


class _Place(NamedTuple):
    """A setting of a table."""

    table: _Table
    family: str

    def agrees(self, spelled: Meaning, package: Meaning) -> bool:
        """Whether the setting means what the package says."""
        found = self._of(spelled)
        return found == self._of(package) and (spelled.valid or any(found))

    def _of(self, meaning: Meaning) -> tuple[Any, Any]:
        return (
            self._part(_at(meaning.declared, self.table.named)),
            self._part(_at(meaning.extra, self.table.written)),
        )

    def _part(self, table: Any) -> Any:
        if not isinstance(table, Mapping):
            return None
        part = {key: value for key, value in table.items() if _family(self.table.model, key) == self.family}
        return _comparable(part)


def _comparable(value: Any) -> Any:
    """The value, with everything in it that `==` would confuse as text."""
    if isinstance(value, Mapping):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    return value if isinstance(value, str) else (type(value), repr(value))


def _at(value: Any, path: tuple[Step, ...]) -> Any:
    """The value at a path, or None."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list | tuple) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


@dataclass(slots=True)
class _Attempt:
    """One pass over an exported mapping; `places` are the settings that were respelled."""

    package: Meaning
    refused: frozenset[_Place]
    places: list[_Place] = field(default_factory=list)

    def apply(self, exported: Mapping[str, Any], spelling: Mapping[str, Any]) -> dict[str, Any]:
        data: dict[str, Any] = copy.deepcopy(dict(exported))
        self._respell(data, spelling, _Table())
        return data

    def _respell(self, data: dict[str, Any], spelling: Mapping[str, Any], table: _Table) -> None:
        for family, mine in _families(table.model, spelling).items():
            place = _Place(table, family)
            if place in self.refused:
                continue
            present = [key for key in data if _family(table.model, key) == family]
            if len(mine) == 1 and present in ([], list(mine)):
                key, value = next(iter(mine.items()))
                if self._respell_inside(data, key, value, table):
                    continue
            for key in present:
                del data[key]
            data.update(copy.deepcopy(mine))
            self.places.append(place)

    def _respell_inside(self, data: dict[str, Any], key: str, value: Any, table: _Table) -> bool:
        """Respell a table, or a list of tables, setting by setting; False if the value is neither."""
        there = data.get(key)
        if isinstance(value, Mapping) and (key not in data or isinstance(there, dict)):
            inner = table.below(_inner(table.model, key, "one"), key)
            if self._exists(inner):
                self._respell(data.setdefault(key, {}), value, inner)
            return True
        rows = _inner(table.model, key, "list")
        if rows is None or not _are_tables(value) or not _are_tables(there) or len(value) > len(data[key]):
            return False
        for index, row in enumerate(value):
            self._respell(data[key][index], row, table.below(rows, key, index))
        return True

    def _exists(self, table: _Table) -> bool:
        return _at(self.package.declared, table.named) is not None or _at(self.package.extra, table.written) is not None
