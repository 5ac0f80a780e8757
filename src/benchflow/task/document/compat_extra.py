"""Foreign keys that an import preserves and an export restores: pure functions over nested mappings.

The shape is that of the source: the same nesting, with None in lists where an item had nothing to preserve.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any


def leaf_paths(value: Any, path: str = "") -> Iterator[str]:
    """The path of every preserved value, as issues write paths: `steps[0].runner`."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaf_paths(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            if item is not None:
                yield from leaf_paths(item, f"{path}[{index}]")
    elif path:
        yield path


def merge_compat_extra(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `extra` that it lacks; where both have a value, that of `base` stays."""
    merged: dict[str, Any] = copy.deepcopy(dict(base))
    _merge(merged, extra, "", [])
    return merged


def restore_extra(base: Mapping[str, Any], extra: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """As `merge_compat_extra`, with the paths that were restored."""
    merged: dict[str, Any] = copy.deepcopy(dict(base))
    restored: list[str] = []
    _merge(merged, extra, "", restored)
    return merged, sorted(restored)


def _merge(base: dict[str, Any], extra: Mapping[str, Any], path: str, restored: list[str]) -> None:
    for key, value in extra.items():
        where = f"{path}.{key}" if path else key
        if value is None:
            continue
        if key not in base:
            base[key] = copy.deepcopy(value)
            restored.extend(leaf_paths(value, where))
        elif isinstance(base[key], dict) and isinstance(value, Mapping):
            _merge(base[key], value, where, restored)
        elif isinstance(base[key], list) and isinstance(value, list | tuple):
            for index, (mine, theirs) in enumerate(zip(base[key], value, strict=False)):
                if isinstance(mine, dict) and isinstance(theirs, Mapping):
                    _merge(mine, theirs, f"{where}[{index}]", restored)
