"""Merges defaults with what an author wrote: mappings are merged, anything else the author wrote replaces the default.

Used for presets and profiles. It knows the aliases of a model, so that a default never conflicts with the author's
value for the same field under another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchflow.task.config.parsed_record import Kind, Record

_SHADOWED: Final = {
    "memory_mb": ("memory",),
    "storage_mb": ("storage",),
    "network_mode": ("allow_internet",),
    "allowed_hosts": ("network_mode", "allow_internet"),
}
"""Fields that are decided by another field the author wrote."""


def merge_below(model: type[Record] | None, low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """`high` plus what only `low` has; both are mappings as an author writes them."""
    merged = dict(high)
    keys = model.KEYS if model is not None else {}
    spelled = {keys[key].name if key in keys else key: key for key in high}
    for key, value in low.items():
        field = keys.get(key)
        mine = spelled.get(field.name if field else key)
        if mine is None:
            if not any(other in spelled for other in _SHADOWED.get(key, ())):
                merged[key] = value
        elif isinstance(value, Mapping) and isinstance(high[mine], Mapping):
            merged[mine] = _merge_value(field.kind if field else None, value, high[mine])
    return merged


def _merge_value(kind: Kind | None, low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    if kind is None or kind.model is None:
        return merge_below(None, low, high)
    if kind.shape != "map":
        return merge_below(kind.model, low, high)
    merged = {**low, **high}
    for key in low.keys() & high.keys():
        if isinstance(low[key], Mapping) and isinstance(high[key], Mapping):
            merged[key] = merge_below(kind.model, low[key], high[key])
    return merged
