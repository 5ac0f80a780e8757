"""Frozen records parsed from mappings that an author wrote.

A `Record` subclass declares typed fields, each with the kind of value it takes. `parse` reads a mapping into a record
and reports every problem with its dotted path instead of stopping at the first. A record keeps what the author
declared; a missing field reads as the default on the class. The cost of parsing depends on the keys written, not on
the keys that exist.

An `IssueLog` belongs to one file: parsers report a code, a dotted path and a sentence; the log adds the file and the
line. Lines are looked up only when there is something to report, so a valid package does not pay for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from types import NoneType
from typing import Any, ClassVar, Final, NoReturn, Self, dataclass_transform

from benchflow.errors import Issue, Severity

MAX_ISSUES: Final = 200
"""Per file."""
MAX_SHOWN: Final = 500
Locate = Callable[[str], int | None]


class IssueLog:
    """Collects the issues of one file. `foreign` marks a lenient import, where unknown keys are only warnings."""

    __slots__ = ("_locate", "file", "foreign", "issues", "renames")

    def __init__(self, file: str | None = None, locate: Locate | None = None, *, foreign: bool = False) -> None:
        self.file = file
        self.foreign = foreign
        self.issues: list[Issue] = []
        self.renames: dict[str, str] = {}
        """Canonical path -> the shorthand the author wrote."""
        self._locate = locate

    def error(self, code: str, path: str, message: str, *, line: int | None = None) -> None:
        self._add(code, "error", path, message, line)

    def warning(self, code: str, path: str, message: str, *, line: int | None = None) -> None:
        self._add(code, "warning", path, message, line)

    def extend(self, issues: Iterable[Issue]) -> None:
        self.issues.extend(issues)

    def _add(self, code: str, severity: Severity, path: str, message: str, line: int | None) -> None:
        if len(self.issues) >= MAX_ISSUES:
            return
        path = self.renames.get(path, path)
        if line is None and self._locate is not None:
            line = self._locate(path)
        if len(self.issues) == MAX_ISSUES - 1:
            code, severity, path = "too-many-issues", "error", ""
            message = f"more than {MAX_ISSUES - 1} problems; the rest are not listed"
        self.issues.append(Issue(code, severity, shorten(path), shorten(message), self.file, line))


def shorten(text: str) -> str:
    """The text, cut to a length that fits a report."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


Parse = Callable[[Any, str, IssueLog], Any]


class InvalidValueError(ValueError):
    """A value that its kind rejects; the message continues a sentence that starts with the path."""

    def __init__(self, message: str, code: str = "invalid-value") -> None:
        super().__init__(message)
        self.code = code


class FrozenMap(dict[str, Any]):
    """A read-only dictionary."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this mapping is read-only")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMap, (dict(self),)


class Secret(FrozenMap):
    """A mapping whose values are never shown: not in dumps, not by `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Secret({sorted(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (dict(self),)


class Kind:
    """What a field accepts: how to parse it, the record it contains, and in which shape (`one`, `list`, `map`).

    Values of type `exact` are used as they are, without parsing.
    """

    __slots__ = ("exact", "model", "parse", "shape")

    def __init__(
        self, parse: Parse, model: type[Record] | None = None, shape: str = "one", exact: type | None = None
    ) -> None:
        self.parse = parse
        self.model = model
        self.shape = shape
        self.exact = exact


class Field:
    """One declared field of a record."""

    __slots__ = ("aliases", "default", "hidden", "key", "kind", "name", "nullable", "required")

    def __init__(
        self, kind: Kind, default: Any, key: str, aliases: tuple[str, ...], required: bool, hidden: bool
    ) -> None:
        self.kind = kind
        self.default = default
        self.key = key
        self.aliases = aliases
        self.required = required
        self.hidden = hidden
        self.nullable = default is None and not required
        self.name = ""


_REQUIRED: Final = object()
_NEAR_LENGTH: Final = 40
_HINTS: Final = 10
"""How many unknown keys per file get a suggestion: searching for one is slow."""


def field(
    kind: Kind, *, default: Any = _REQUIRED, key: str = "", aliases: tuple[str, ...] = (), hidden: bool = False
) -> Any:
    """Declare a field. Without a default it is required; `key` is what authors write when it differs from the name;
    `hidden` keeps it out of every dump.
    """
    required = default is _REQUIRED
    return Field(kind, None if required else default, key, aliases, required, hidden)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Record:
    """Base of all parsed sections. Two records are equal when all their effective values are."""

    FIELDS: ClassVar[Mapping[str, Field]] = {}
    """By canonical name, in order of declaration."""
    KEYS: ClassVar[Mapping[str, Field]] = {}
    """By every spelling an author may use."""

    def __init_subclass__(cls) -> None:
        fields = dict(cls.FIELDS)
        for name, value in list(cls.__dict__.items()):
            if isinstance(value, Field):
                value.name = name
                value.key = value.key or name
                fields[name] = value
                if value.required:
                    delattr(cls, name)
                else:
                    setattr(cls, name, value.default)
        cls.FIELDS = fields
        cls.KEYS = {spelling: item for item in fields.values() for spelling in (item.key, *item.aliases)}
        cls.REQUIRED = tuple(item for item in fields.values() if item.required)
        cls._has_rules = cls.rules.__func__ is not Record.rules.__func__  # type: ignore[attr-defined]  # class methods have it

    REQUIRED: ClassVar[tuple[Field, ...]] = ()
    _has_rules: ClassVar[bool] = False

    def __init__(self, **values: Any) -> None:
        unknown = values.keys() - self.FIELDS.keys()
        missing = {item.name for item in self.REQUIRED} - values.keys()
        if unknown or missing:
            raise TypeError(f"{type(self).__name__}: unknown {sorted(unknown)}, missing {sorted(missing)}")
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]  # records hold mappings

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self.__dict__.items() if not self.FIELDS[name].hidden)
        return f"{type(self).__name__}({', '.join(shown)})"

    def replace(self, **changes: Any) -> Self:
        """A copy with some values changed."""
        return type(self)(**{**self.__dict__, **changes})

    def items(self) -> Iterator[tuple[Field, Any]]:
        """The declared fields, in the author's order, with their values."""
        for name, value in self.__dict__.items():
            yield self.FIELDS[name], value

    @property
    def declared(self) -> frozenset[str]:
        """Canonical names of the declared fields."""
        return frozenset(self.__dict__)

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> Self | None:
        """Read a mapping. Every problem goes to `problems`; None when no record can be made."""
        if not isinstance(value, dict):
            problems.error("invalid-type", path, f"{path or 'the document'} must be a mapping, not {describe(value)}")
            return None
        values = cls._parse_fields(value, path, problems)
        for item in cls.REQUIRED:
            if item.name not in values:
                if not any(spelling in value for spelling in (item.key, *item.aliases)):
                    problems.error("missing-key", join(path, item.key), f"{join(path, item.key)} is required")
                return None
        if cls._has_rules:
            cls.rules(values, path, problems)
        return cls.of(values)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """A record of values that are already parsed, by canonical name; it takes ownership of the dictionary."""
        record = cls.__new__(cls)
        object.__setattr__(record, "__dict__", values)
        return record

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        """Rules that involve several fields; may add to `values` before the record is made."""

    @classmethod
    def _parse_fields(cls, value: dict[str, Any], path: str, problems: IssueLog) -> dict[str, Any]:
        keys = cls.KEYS
        values: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for key, item in value.items():
            known = keys.get(key)
            where = f"{path}.{key}" if path else key
            if known is None:
                report_unknown(cls, key, where, problems)
                continue
            if known.aliases:
                if known.name in spelled:
                    both = f"'{spelled[known.name]}' and '{key}'"
                    problems.error("conflicting-keys", where, f"{path or 'the document'} cannot contain both {both}")
                    continue
                spelled[known.name] = key
            kind = known.kind
            if type(item) is kind.exact:
                values[known.name] = item
                continue
            if item is None and known.nullable:
                continue
            try:
                parsed = kind.parse(item, where, problems)
            except InvalidValueError as problem:
                problems.error(problem.code, where, f"{where} {problem}")
                continue
            if parsed is not None:
                values[known.name] = parsed
        return values

    def to_dict(self) -> dict[str, Any]:
        """All effective values under canonical names, as plain data, without nulls and hidden fields."""
        return {
            item.key: plain(value)
            for name, item in self.FIELDS.items()
            if not item.hidden and (value := getattr(self, name)) is not None
        }

    def to_declared_dict(self) -> dict[str, Any]:
        """What was declared, under canonical names, hidden fields included."""
        return {self.FIELDS[name].key: plain(value, declared=True) for name, value in self.__dict__.items()}


def join(path: str, key: str) -> str:
    """Dotted path of a key."""
    return f"{path}.{key}" if path else key


def describe(value: Any) -> str:
    """The type of a value, as written in messages."""
    if value is None:
        return "empty"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", dict: "a mapping", list: "a list"}
    return names.get(type(value), f"a {type(value).__name__}")


def plain(value: Any, *, declared: bool = False) -> Any:
    """Records, tuples and frozen maps as plain dictionaries and lists; secrets as their sorted keys."""
    if isinstance(value, Record):
        return value.to_declared_dict() if declared else value.to_dict()
    if isinstance(value, Secret) and not declared:
        return sorted(value)
    if isinstance(value, Mapping):
        return {key: plain(item, declared=declared) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, declared=declared) for item in value]
    if declared or isinstance(value, (str, int, NoneType)) or (isinstance(value, float) and isfinite(value)):
        return value
    return _as_text(value)


def _as_text(value: Any) -> str:
    """A value that JSON cannot represent: dates as ISO 8601, anything else as `str`."""
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def report_unknown(model: type[Record], key: str, where: str, problems: IssueLog) -> None:
    """Report an unknown key: an error natively, a warning in foreign imports; a similar known key is suggested."""
    near = _near(key, model) if len(problems.issues) < _HINTS and len(key) <= _NEAR_LENGTH else None
    hint = f"; did you mean '{near}'?" if near else ""
    if problems.foreign:
        problems.warning("unknown-key", where, f"{where} is not a known key; it is preserved but has no effect{hint}")
    else:
        problems.error("unknown-key", where, f"{where} is not a known key{hint}")


def _near(key: str, model: type[Record]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(key, list(model.KEYS), n=1, cutoff=0.75)), None)


def split_unknown(model: type[Record], data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a mapping into the keys the model knows and the rest, both nested as they were.

    List positions are kept: the unknown part has None for items without unknown keys.
    """
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in data.items():
        item = model.KEYS.get(key)
        if item is None:
            extra[key] = value
            continue
        known[key], rest = _split_value(item.kind, value)
        if rest:
            extra[key] = rest
    return known, extra


def _split_value(kind: Kind, value: Any) -> tuple[Any, Any]:
    model = kind.model
    if model is None:
        return value, None
    if kind.shape == "one" and isinstance(value, Mapping):
        return split_unknown(model, value)
    if kind.shape == "map" and isinstance(value, Mapping):
        pairs = {
            key: split_unknown(model, part) if isinstance(part, Mapping) else (part, {}) for key, part in value.items()
        }
        return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items() if p[1]}
    if kind.shape == "list" and isinstance(value, list):
        items = [split_unknown(model, part) if isinstance(part, Mapping) else (part, {}) for part in value]
        rest = [extra or None for _, extra in items]
        return [part for part, _ in items], rest if any(rest) else None
    return value, None


def walk_models(model: type[Record]) -> Iterator[type[Record]]:
    """A record type and every record type nested in it, each once."""
    seen: set[type[Record]] = set()
    queue = [model]
    while queue:
        current = queue.pop()
        if current in seen:
            continue
        seen.add(current)
        yield current
        queue.extend(item.kind.model for item in current.FIELDS.values() if item.kind.model is not None)
