"""Whether the arguments of an action fit its JSON schema, and where they do not: one sentence, for a model to read.

Nothing is converted: `"3"`, `3.0` and `true` are not integers. All assertions of JSON Schema are supported, except
references to other documents and `unevaluated…`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

SHOWN: Final = 60
"""Maximum characters of a value in a sentence."""

Schema = Mapping[str, Any] | bool
Check = Callable[[Any, Any, "_Place"], Iterator[str]]


def misfit(parameters: Mapping[str, Any], arguments: Mapping[str, Any], *, extra: bool = True) -> str | None:
    """Why the arguments do not fit, or None. Without `extra`, those that the schema does not name do not either."""
    known = parameters.get("properties")
    if not extra and isinstance(known, Mapping):
        for name in arguments:
            if name not in known:
                listed = f"; it takes {', '.join(map(repr, known))}" if known else "; it takes none"
                return f"unknown argument {_shown(name)}{listed}"
    try:
        return next(_problems(parameters, arguments, _Place(parameters)), None)
    except RecursionError:
        return "the arguments are nested too deeply"


class _Place:
    """Where a value is: the whole schema, which references point into, and the path to the value."""

    __slots__ = ("path", "references", "root")

    def __init__(self, root: Mapping[str, Any], path: str = "", references: tuple[str, ...] = ()) -> None:
        self.root: Final = root
        self.path: Final = path
        self.references: Final = references
        """Followed since the last step into the value: one that comes back would never end."""

    def member(self, name: object) -> _Place:
        return _Place(self.root, f"{self.path}.{name}" if self.path else str(name))

    def item(self, index: int) -> _Place:
        return _Place(self.root, f"{self.path}[{index}]")

    def __str__(self) -> str:
        return f"'{self.path}'" if self.path else "the arguments"


def _problems(schema: Schema, value: Any, place: _Place) -> Iterator[str]:
    if isinstance(schema, bool):
        if not schema:
            yield f"{place} is not allowed"
        return
    for keyword, expected in schema.items():
        check = _CHECKS.get(keyword)
        if check is not None:
            yield from check(expected, value, place)
    yield from _members(schema, value, place)
    yield from _items(schema, value, place)
    if "if" in schema:
        branch = schema.get("then" if _fits(schema["if"], value, place) else "else", True)
        yield from _problems(branch, value, place)


def _fits(schema: Schema, value: Any, place: _Place) -> bool:
    return next(_problems(schema, value, place), None) is None


_TYPES: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "string": ("a string", lambda value: isinstance(value, str)),
    "integer": ("an integer", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "number": ("a number", lambda value: _is_number(value) and (isinstance(value, int) or math.isfinite(value))),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "array": ("a list", lambda value: isinstance(value, list | tuple)),
    "object": ("an object", lambda value: isinstance(value, dict)),
    "null": ("null", lambda value: value is None),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _type(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    names = [expected] if isinstance(expected, str) else expected
    kinds = [_TYPES[name] for name in names if name in _TYPES]
    if kinds and not any(holds(value) for _, holds in kinds):
        yield f"{place} must be {' or '.join(words for words, _ in kinds)}, not {_shown(value)}"


def _equal(left: Any, right: Any) -> bool:
    """Equality of JSON: `1` is `1.0`, but neither is `true`."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return bool(left == right)


def _enum(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    if not any(_equal(value, one) for one in expected):
        yield f"{place} must be one of {', '.join(map(_shown, expected))}, not {_shown(value)}"


def _const(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    if not _equal(value, expected):
        yield f"{place} must be {_shown(expected)}, not {_shown(value)}"


def _reference(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    target: Any = place.root
    if not isinstance(expected, str) or not expected.startswith("#"):
        return  # another document, which is not here to be read
    if expected in place.references:
        return
    for part in expected[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, Mapping) else None
    if isinstance(target, Mapping | bool):
        yield from _problems(target, value, _Place(place.root, place.path, (*place.references, expected)))
    else:
        yield f"{place} cannot be checked, since the schema refers to {expected}, which it does not have"


def _all_of(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    for schema in expected:
        yield from _problems(schema, value, place)


def _any_of(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    found = [next(_problems(schema, value, place), None) for schema in expected]
    if None not in found:
        yield f"{place} matches none of its forms: {'; or '.join(str(problem) for problem in found)}"


def _one_of(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    fitting = sum(_fits(schema, value, place) for schema in expected)
    if fitting > 1:
        yield f"{place} fits {fitting} of its forms instead of one"
    elif not fitting:
        yield from _any_of(expected, value, place)


def _not(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    if _fits(expected, value, place):
        yield f"{place} must not be {_shown(value)}"


def _pattern(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    if isinstance(value, str) and not _matches(expected, value):
        yield f"{place} must match {_shown(expected)}"


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:  # a pattern of another dialect, which cannot be judged here
        return True


def _required(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{place.member(name)} is missing" for name in expected if name not in value)


def _dependent(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    if isinstance(value, dict):
        for name, needed in expected.items():
            if name in value:
                yield from _required(needed, value, place)


def _property_names(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    if isinstance(value, dict):
        for name in value:
            if not _fits(expected, name, place):
                yield f"{place.member(name)} is not allowed"


def _contains(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    if isinstance(value, list | tuple) and not any(_fits(expected, item, place) for item in value):
        yield f"{place} has no item of the kind that it must contain"


def _unique(expected: Any, value: Any, place: _Place) -> Iterator[str]:
    if expected is True and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            if any(_equal(item, other) for other in value[:index]):
                yield f"{place.item(index)} occurs twice"


def _number(holds: Callable[[Any, Any], bool], words: str) -> Check:
    def check(expected: Any, value: Any, place: _Place) -> Iterator[str]:
        if _is_number(value) and not holds(value, expected):
            yield f"{place} must be {words} {_shown(expected)}, not {_shown(value)}"

    return check


def _size(kinds: type[Any] | tuple[type[Any], ...], holds: Callable[[int, Any], bool], words: str, what: str) -> Check:
    def check(expected: Any, value: Any, place: _Place) -> Iterator[str]:
        if isinstance(value, kinds) and not holds(len(value), expected):
            yield f"{place} must have {words} {expected} {what}, not {len(value)}"

    return check


def _is_multiple(value: Any, of: Any) -> bool:
    try:
        whole = isinstance(value, int) and isinstance(of, int)
        return bool(value % of == 0) if whole else float(value / of).is_integer()
    except (OverflowError, ZeroDivisionError):  # beyond what a float can tell
        return False


_CHECKS: Final[dict[str, Check]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "$ref": _reference,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "pattern": _pattern,
    "required": _required,
    "dependentRequired": _dependent,
    "propertyNames": _property_names,
    "contains": _contains,
    "uniqueItems": _unique,
    "minimum": _number(lambda value, least: value >= least, "at least"),
    "maximum": _number(lambda value, most: value <= most, "at most"),
    "exclusiveMinimum": _number(lambda value, limit: value > limit, "above"),
    "exclusiveMaximum": _number(lambda value, limit: value < limit, "below"),
    "multipleOf": _number(_is_multiple, "a multiple of"),
    "minLength": _size(str, lambda size, least: size >= least, "at least", "characters"),
    "maxLength": _size(str, lambda size, most: size <= most, "at most", "characters"),
    "minItems": _size((list, tuple), lambda size, least: size >= least, "at least", "items"),
    "maxItems": _size((list, tuple), lambda size, most: size <= most, "at most", "items"),
    "minProperties": _size(dict, lambda size, least: size >= least, "at least", "keys"),
    "maxProperties": _size(dict, lambda size, most: size <= most, "at most", "keys"),
}


def _members(schema: Mapping[str, Any], value: Any, place: _Place) -> Iterator[str]:
    """The keys of an object: each by its name, by patterns, or as one more."""
    if not isinstance(value, dict):
        return
    named = schema.get("properties") or {}
    patterns = schema.get("patternProperties") or {}
    more: Schema = schema.get("additionalProperties", True)
    for name, member in value.items():
        fitting = [named[name]] if name in named else []
        fitting += [one for pattern, one in patterns.items() if _matches(pattern, str(name))]
        for one in fitting or [more]:
            yield from _problems(one, member, place.member(name))


def _items(schema: Mapping[str, Any], value: Any, place: _Place) -> Iterator[str]:
    if not isinstance(value, list | tuple):
        return
    first = schema.get("prefixItems") or []
    rest: Any = schema.get("items", True)
    for index, item in enumerate(value):
        expected = first[index] if index < len(first) else rest
        if isinstance(expected, Mapping | bool):
            yield from _problems(expected, item, place.item(index))


def _shown(value: object) -> str:
    """A value as JSON writes it, in short."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # nothing that JSON knows, or a number of too many digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
