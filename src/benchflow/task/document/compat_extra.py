"""Foreign keys, preserved by imports and restored by exports: pure functions over nested mappings.

They keep the nesting of the source, with None for list items that have nothing to preserve.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any


def leaf_paths(value: Any, path: str = "") -> Iterator[str]:
    """The path of every preserved value, written as in issues: `steps[0].runner`."""
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
    """`base` plus the keys of `extra` that it lacks; where both have a value, `base` wins."""
    merged: dict[str, Any] = copy.deepcopy(dict(base))
    _merge(merged, extra, "", [])
    return merged


def restore_extra(base: Mapping[str, Any], extra: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Like `merge_compat_extra`, and also returns the restored paths."""
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
