"""From a documented Python function to the JSON schema of an action.

The docstring (Google, numpy or ReST style) gives the descriptions, the annotations give the types, a type given in
the docstring takes precedence over the annotation. What a schema cannot express is refused, not guessed.
"""

from __future__ import annotations

import ast
import enum
import inspect
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

if TYPE_CHECKING:
    from docstring_parser import DocstringParam

_JSON_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "frozenset": "array",
    "Sequence": "array",
    "Iterable": "array",
    "dict": "object",
    "Mapping": "object",
    "NoneType": "null",
    "None": "null",
}


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """`{"name", "description", "parameters"}` of a function or bound method; `self` never appears."""
    import docstring_parser

    name = function.__name__
    if not (function.__doc__ or "").strip():
        raise ValueError(
            f"Function '{name}' has no docstring. A docstring is required to extract parameter information."
        )
    docstring = docstring_parser.parse(function.__doc__ or "")
    documented = {parameter.arg_name: parameter for parameter in docstring.params}
    hints = _hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        properties[parameter.name] = _property(
            parameter, hints.get(parameter.name, parameter.empty), documented.get(parameter.name)
        )
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    definitions = _definitions(name, properties)
    if definitions:
        parameters["$defs"] = definitions
    return {"name": name, "description": docstring.short_description or "", "parameters": parameters}


def _definitions(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    """The schemas that properties refer to, taken out of them: a reference counts from the root of the parameters."""
    found: dict[str, Any] = {}
    schemas = list(properties.values())
    for schema in schemas:  # and the items of lists, which are added while they are found
        schemas += [schema["items"]] if "items" in schema else []
        for title, definition in schema.pop("$defs", {}).items():
            if found.setdefault(title, definition) != definition:
                raise ValueError(f"Function '{name}' has parameters of two different classes called '{title}'.")
    return found


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # an annotation that only type checkers can resolve
        return dict(getattr(function, "__annotations__", {}))


def _property(parameter: inspect.Parameter, hint: Any, documented: DocstringParam | None) -> dict[str, Any]:
    schema = {} if hint is parameter.empty else _annotation(parameter, hint)
    if documented is not None:
        if documented.type_name:
            schema.update(_docstring_type(documented.type_name))
        if documented.description:
            schema["description"] = documented.description
    if schema.get("type") == "array":
        schema.setdefault("items", {})
    return schema


def _annotation(parameter: inspect.Parameter, hint: Any) -> dict[str, Any]:
    """The schema of an annotation; `X | None` counts as X and must default to None."""
    if isinstance(hint, str):
        return _unresolved(hint)
    if get_origin(hint) is Annotated:
        schema = _annotation(parameter, get_args(hint)[0])
        notes = [note for note in get_args(hint)[1:] if isinstance(note, str)]
        return schema | ({"description": notes[0]} if notes else {})
    if get_origin(hint) in (Union, types.UnionType):
        return _annotation(parameter, _optional(parameter, hint))
    if get_origin(hint) is Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum | BaseModel)):
        from pydantic import TypeAdapter

        return TypeAdapter(hint).json_schema()
    if get_origin(hint) is list and get_args(hint):
        return {"type": "array", "items": _annotation(parameter, get_args(hint)[0])}
    name = getattr(get_origin(hint) or hint, "__name__", str(hint))
    return {} if hint in (Any, object) else {"type": _json_schema_type(name)}


def _unresolved(hint: str) -> dict[str, Any]:
    """The schema of an annotation that is known as text only: `list[Page] | None` is a list."""
    text = hint.strip().strip("'\"")
    members = [member for member in text.split("|") if member.strip() != "None"] if "[" not in text else [text]
    name = members[0].strip().removeprefix("Optional[").partition("[")[0].strip(" ]").rpartition(".")[2]
    return {} if len(members) != 1 or name in ("Any", "object", "Union") else {"type": _json_schema_type(name)}


def _optional(parameter: inspect.Parameter, hint: Any) -> Any:
    members = [member for member in get_args(hint) if member is not type(None)]
    if len(members) != 1 or len(members) == len(get_args(hint)):
        raise ValueError(
            f"Unsupported union type for parameter '{parameter.name}': {hint}: only 'X | None' is supported."
        )
    if parameter.default is parameter.empty:
        raise ValueError(
            f"Parameter '{parameter.name}' is typed '{hint}' but has no default value. 'X | None' parameters must "
            f"default to None."
        )
    if parameter.default is not None:
        raise ValueError(
            f"Parameter '{parameter.name}' is typed '{hint}' but default is {parameter.default!r}, not None."
        )
    return members[0]


def _docstring_type(text: str) -> dict[str, Any]:
    """`str, optional` and `{'a', 'b'}` as docstrings spell them."""
    text = text.removesuffix(", optional").removesuffix("optional").strip().rstrip(",")
    if text.startswith("{") and text.endswith("}"):
        try:
            return {"type": "string", "enum": [str(value) for value in ast.literal_eval(f"[{text[1:-1]}]")]}
        except (ValueError, SyntaxError):
            return {"type": "string"}
    return {"type": _json_schema_type(text.split("[")[0])} if text else {}


def _json_schema_type(name: str) -> str:
    """The JSON type for the name of a Python type; a type that JSON does not have becomes a string."""
    return _JSON_TYPES.get(name, "string")
