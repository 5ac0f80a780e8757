"""Checks the arguments of a call against the schema of its tool: what is missing, unknown or of a wrong type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def wrong_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """A sentence on the first problem; None if there is none. What a schema says beyond types the tool judges."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in arguments:
            return f"the argument '{name}' is missing."
    for name, value in arguments.items():
        if name not in properties:
            if schema.get("additionalProperties") is False:
                return f"unknown argument '{name[:100]}'; available: {', '.join(properties) or 'none'}."
            continue
        wanted = _kinds(properties[name])
        if wanted and not any(_KINDS[kind](value) for kind in wanted if kind in _KINDS):
            return f"the argument '{name}' must be of type {' or '.join(wanted)}."
    return None


def given_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without optional ones that are null and may not be: so clients send what a caller left out."""
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    optional = {name: _kinds(of) for name, of in properties.items() if name not in required}
    left_out = {name for name, kinds in optional.items() if kinds and "null" not in kinds}
    return {name: value for name, value in arguments.items() if value is not None or name not in left_out}


def _kinds(schema: Any) -> list[str]:
    """The types that a schema names by itself; empty if it says it in another way."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = kind if isinstance(kind, list) else [kind]
    return [each for each in kinds if isinstance(each, str)] if all(each in _KINDS for each in kinds) else []
