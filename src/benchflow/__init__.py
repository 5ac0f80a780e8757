"""Task packages: author, check, run in sandboxes, verify, evaluate.

The names below are imported when they are first used, so that a command pays only for what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchflow.environment import Environment

__all__ = ["Environment"]

__getattr__ = lazy_names(
    __name__,
    {
        "benchflow.environment": "Environment",
    },
)
