"""Task packages: author, check, run in sandboxes, verify, evaluate.

The names below are imported when they are first used, so that a command pays only for what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from benchflow.environment import Environment

_WHERE: Final = {"Environment": "benchflow.environment"}

__all__ = ["Environment"]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(where), name)
