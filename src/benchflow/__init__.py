"""Task packages: author, check, run in sandboxes, verify, evaluate.

The names below are imported when they are first used, so that a command pays only for what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cube
from benchflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchflow.environment import Environment

if getattr(cube, "__distribution__", None) != "benchcube":
    raise ImportError(
        f"The package 'cube' in {cube.__file__} is not benchcube's. If it is cube-standard's: both cannot be installed "
        "together. Uninstall both, then install benchcube alone; it runs cubes that were written for cube-standard."
    )

__all__ = ["Environment"]

__getattr__ = lazy_names(
    __name__,
    {
        "benchflow.environment": "Environment",
    },
)
