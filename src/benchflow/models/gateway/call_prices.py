"""What a call costs, by the price table that LiteLLM ships and maintains.

The table is read as a file on first use; the library itself is not imported. A model that it does not know has no
price, which is never the same as a price of zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_TABLE: Final = "model_prices_and_context_window_backup.json"
_PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "gemini": ("gemini/", "", "vertex_ai/"),
    "openrouter": ("openrouter/", ""),
    "anthropic": ("", "anthropic/"),
    "openai": ("", "openai/"),
}


@cache
def price_table() -> Mapping[str, Any]:
    """The table by model; empty where LiteLLM is not installed."""
    spec = find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    try:
        found = json.loads((Path(spec.origin).parent / _TABLE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def price_of(provider: str, model: str | None) -> Mapping[str, Any] | None:
    """The row of a model as its provider calls it, with or without the provider in front."""
    if not model:
        return None
    table = price_table()
    plain = model.removeprefix("models/")
    names = [f"{prefix}{plain}" for prefix in _PREFIXES.get(provider, ("", f"{provider}/"))]
    return next(
        (row for name in names if isinstance(row := table.get(name), dict) and _number(row, _IN) is not None), None
    )


_IN: Final = "input_cost_per_token"
_OUT: Final = "output_cost_per_token"


def cost_of(provider: str, model: str | None, usage: Mapping[str, float]) -> float | None:
    """The cost in US dollars; None where price or tokens are not known.

    Cached input costs what the table says for it, or as much as other input.
    """
    row = price_of(provider, model)
    if row is None or "input_tokens" not in usage:
        return None
    per_input, per_output = _number(row, _IN), _number(row, _OUT)
    if per_input is None or (per_output is None and usage.get("output_tokens")):
        return None
    cached = min(usage.get("cached_tokens", 0), usage["input_tokens"])
    written = min(usage.get("cache_write_tokens", 0), usage["input_tokens"] - cached)
    read = _number(row, "cache_read_input_token_cost")
    write = _number(row, "cache_creation_input_token_cost")
    total = (usage["input_tokens"] - cached - written) * per_input
    total += cached * (per_input if read is None else read)
    total += written * (per_input if write is None else write)
    return total + usage.get("output_tokens", 0) * (per_output or 0.0)


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
