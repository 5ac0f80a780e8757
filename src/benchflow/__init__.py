"""Task packages: author, check, run in sandboxes, verify, evaluate.

The names below are imported on first use, so that a command loads only what it needs.
"""

from __future__ import annotations

import os
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from benchflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchflow.environment import Environment


def _require_own_cube() -> None:
    """Refuse the package `cube` of another distribution, found before ours or written over it."""
    folder = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120  # light: every command pays
    found = PathFinder.find_spec("cube")
    origin = os.path.realpath(found.origin) if found is not None and found.origin else None
    elsewhere = origin is not None and not origin.startswith(os.path.join(folder, ""))  # noqa: PTH118
    mixed = os.path.isdir(folder) and any(name.startswith("cube_standard-") for name in os.listdir(folder))  # noqa: PTH112, PTH208
    if elsewhere or mixed:
        raise ImportError(
            f"The package 'cube' in {origin or folder} is not benchcube's alone. If cube-standard is "
            "installed: both have a package of that name and cannot be installed together. Uninstall both, then "
            "install benchcube alone; it runs cubes that were written for cube-standard."
        )


_require_own_cube()

__all__ = ["Environment"]

__getattr__ = lazy_names(
    __name__,
    {
        "benchflow.environment": "Environment",
    },
)
