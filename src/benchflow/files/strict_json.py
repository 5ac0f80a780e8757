"""Strict JSON, without what only Python accepts.

Rejected: duplicate keys, NaN and infinities (also by overflow, as in `1e999`), text that is not Unicode, deep nesting.
So whatever was read can be written and read by any JSON library without change.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, Final, NoReturn

MAX_DEPTH = 64
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that can be half of a pair. Without one, a text that can be encoded has no unpaired half."""


class StrictJSONError(ValueError):
    """Rejected JSON; the message continues a sentence that starts with the name of the text."""


def parse_json(data: bytes | str, *, max_depth: int = MAX_DEPTH) -> Any:
    """The value of one JSON text; a byte order mark is accepted. Raises `StrictJSONError` only."""
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        raise StrictJSONError(f"is not UTF-8 (byte {error.start})") from error
    if not text.strip(" \t\r\n"):
        raise StrictJSONError("is empty")
    try:
        value = _DECODER.decode(text)
    except StrictJSONError:
        raise
    except json.JSONDecodeError as error:
        line = f" (line {error.lineno})" if "\n" in text.strip() else ""
        raise StrictJSONError(f"is not JSON: {error.msg}{line}") from error
    except ValueError as error:  # an integer with too many digits for Python
        raise StrictJSONError("has a number with too many digits") from error
    except RecursionError as error:
        raise StrictJSONError(f"is nested deeper than {max_depth} levels") from error
    if text.count("{") + text.count("[") > max_depth or _SURROGATE.search(text) or not isinstance(data, bytes):
        _require_sound(value, max_depth)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise StrictJSONError(f"has the key {key[:60]!r} twice")
            seen.add(key)
    return mapping


def _constant(name: str) -> NoReturn:
    raise StrictJSONError(f"has {name}, which is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise StrictJSONError(f"has a number that is too large: {text[:40]}")
    return value


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant, parse_float=_float)


def _require_sound(value: Any, max_depth: int) -> None:
    """Limit the nesting and reject unpaired surrogates, without recursion."""
    level = [value]
    room = max_depth
    while level:
        deeper: list[Any] = []
        for node in level:
            if isinstance(node, str):
                _require_unicode(node)
            elif isinstance(node, list | dict):
                if not room:
                    raise StrictJSONError(f"is nested deeper than {max_depth} levels")
                deeper.extend(node)
                if isinstance(node, dict):
                    deeper.extend(node.values())
        level = deeper
        room -= 1


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise StrictJSONError("has text that is not Unicode (an unpaired surrogate)") from error


def canonical_sha256(value: Any) -> str:
    """The SHA-256 of a JSON value in one spelling: keys sorted, no spaces, ASCII only."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
