"""Finds the packages at or below the paths that a user names.

A package is a folder with `task.md` or `task.toml` (or `task.yaml`, where the caller supports that layout). Discovery
does not descend into packages, skips hidden folders, follows a linked folder only when it was named, reports each
package once, and reports a folder that it cannot read as a broken package.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchflow.errors import Issue, UsageError

PACKAGE_MARKERS: Final = ("task.md", "task.toml")
TERMINAL_BENCH_MARKER: Final = "task.yaml"


class FoundPackage(NamedTuple):
    """A package folder: the path as given, joined with what was found below it."""

    path: Path
    root: Path
    """The given path at or below which it was found."""
    named: bool = False
    """Whether the user named this folder itself, not one above it."""
    problem: Issue | None = None
    """Set when the folder could not be searched; it may contain packages and is reported as a broken one."""


def find_packages(paths: Iterable[Path], *, markers: Sequence[str] = PACKAGE_MARKERS) -> list[FoundPackage]:
    """Every package at or below the paths, once: in the order of the paths, sorted by name below each.

    Raises `UsageError` for a path that is missing, is not a folder, or has no packages.
    """
    found: list[FoundPackage] = []
    seen: set[tuple[int, int]] = set()
    for path in paths:
        _require_folder(path)
        below = list(_walk(path, markers))
        if not below:
            raise UsageError(
                f"{path}: no packages found; a package is a folder with {' or '.join(markers)}"
                " (hidden and linked folders are searched only when named)",
                code="no-packages",
            )
        for package in below:
            identity = _identity(str(package.path))
            if identity is None or identity not in seen:
                found.append(package)
            if identity is not None:
                seen.add(identity)
    return found


def _require_folder(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UsageError(f"{path}: no such folder", code="no-such-path") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(f"{path}: cannot be read ({reason})", code="unreadable-path") from None
    if not stat.S_ISDIR(mode):
        raise UsageError(f"{path}: not a folder; name a package or a folder above packages", code="not-a-folder")


def _walk(start: Path, markers: Sequence[str]) -> Iterator[FoundPackage]:
    """Packages at or below a folder, depth first; a folder with an entry named like a marker is a package."""
    pending = [str(start)]
    while pending:
        folder = pending.pop()
        named = folder == str(start)
        if any(os.path.lexists(os.path.join(folder, marker)) for marker in markers):  # noqa: PTH118 - ten thousand folders
            yield FoundPackage(Path(folder), start, named)
            continue
        try:
            with os.scandir(folder) as entries:
                children = sorted(
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
                )
        except OSError as error:
            yield FoundPackage(Path(folder), start, named, _unreadable(error))
            continue
        pending.extend(os.path.join(folder, child) for child in reversed(children))  # noqa: PTH118 - as above


def _unreadable(error: OSError) -> Issue:
    return Issue(
        "unreadable-folder", "error", "", f"the folder cannot be searched for packages: {error.strerror or error}"
    )


def _identity(folder: str) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)  # noqa: PTH116 - ten thousand folders
    except OSError:
        return None
    return status.st_dev, status.st_ino
