"""Finds the packages at or below the paths that a user names.

A package is a folder with `task.md` or `task.toml` (or `task.yaml`, where the caller supports that layout). Discovery
does not descend into packages, skips hidden folders, follows a linked folder only when it was named, reports each
package once, and reports a folder that it cannot read as a broken package.

A path may also name a file with packages: a bundle, or a Harbor registry file. `FILE@sha256:DIGEST` pins it,
`FILE:PATH` is one package in it (or those below a folder in it), `FILE#PART` a split or a dataset. Their packages are
taken into the user's cache when their `path` is used for the first time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchflow.errors import Issue, UsageError

if TYPE_CHECKING:
    from benchflow.task.bundles.bundle_index import PackageEntry
    from benchflow.task.filemap import FileMap

PACKAGE_MARKERS: Final = ("task.md", "task.toml")
TERMINAL_BENCH_MARKER: Final = "task.yaml"
NOT_TEXT: Final = "path-not-utf-8"
"""The code of a package whose path is not text, which no record, index or report can hold."""


@dataclass(frozen=True)
class FoundPackage:
    """A package: where it is, and how to name it."""

    place: Path | Callable[[], Path]
    """The folder; or what takes it out of a file into the cache and returns it."""
    root: Path
    """The given path at or below which it was found."""
    named: bool = False
    """Whether the user named this package itself, not something above it."""
    problem: Issue | None = None
    """Set when the folder could not be searched (it may contain packages) or named; it is reported as a broken one."""
    inside: tuple[str, str] | None = None
    """For a package in a file: the file as it was named, without its pin, and the path in it."""

    entry: PackageEntry | None = None
    """For a package in a bundle: its verified name and digests, which are known without taking it out."""

    in_memory: Callable[[], FileMap | None] | None = None
    """For a package in a bundle: its files without taking it out, or None if that does not show all of it."""

    @cached_property
    def path(self) -> Path:
        """The folder of the package: the path as given, joined with what was found below it, or one in the cache."""
        return self.place if isinstance(self.place, Path) else self.place()

    @property
    def shown(self) -> str:
        """How reports name the package."""
        return str(self.path) if self.inside is None else ":".join(self.inside)

    @property
    def folder_name(self) -> str:
        return self.path.absolute().name if self.inside is None else self.inside[1].rpartition("/")[2]


def find_packages(
    paths: Iterable[Path], *, markers: Sequence[str] = PACKAGE_MARKERS, to_change: bool = False
) -> list[FoundPackage]:
    """Every package at or below the paths, once: in the order of the paths, sorted by name below each.

    Raises `UsageError` for a path that is missing, has no packages, or cannot be used; with `to_change` also for a
    file with packages, which commands cannot change.
    """
    found: list[FoundPackage] = []
    seen: set[tuple[object, object]] = set()
    for path in paths:
        below = list(_in_folder(path, markers) if os.path.isdir(path) else _in_file(path, to_change=to_change))  # noqa: PTH112 - no error for any name
        for package in below:
            identity = _identity(package)
            if identity is None or identity not in seen:
                found.append(package)
            if identity is not None:
                seen.add(identity)
    return found


def _in_folder(path: Path, markers: Sequence[str]) -> list[FoundPackage]:
    below = list(_walk(path, markers))
    if not below:
        raise UsageError(
            f"{path}: no packages found; a package is a folder with {' or '.join(markers)}"
            " (hidden and linked folders are searched only when named)",
            code="no-packages",
        )
    return below


def _in_file(path: Path, *, to_change: bool) -> Iterator[FoundPackage]:
    """The packages of a bundle or a registry file."""
    from benchflow.task.bundles.package_files import listed_packages

    _require_readable(path)
    for package in listed_packages(path):
        if to_change:
            message = (
                f"{path}: packages in a file cannot be changed; write them to a folder first, with"
                f" 'bench tasks export {path} FOLDER --target native'"
            )
            raise UsageError(message, code="not-a-folder")
        where = (package.file, package.inside)
        yield FoundPackage(package.take, path, package.named, package.problem, where, package.entry, package.in_memory)


def _require_readable(path: Path) -> None:
    """Refuse what is neither a file nor a folder with a sentence of its own."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return  # the name of a file may be followed by a pin or a part
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(f"{path}: cannot be read ({reason})", code="unreadable-path") from None
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path}: not a folder, and not a file with packages", code="not-a-folder")


def _walk(start: Path, markers: Sequence[str]) -> Iterator[FoundPackage]:
    """Packages at or below a folder, depth first; a folder with an entry named like a marker is a package."""
    pending = [str(start)]
    while pending:
        folder = pending.pop()
        named = folder == str(start)
        if any(os.path.lexists(os.path.join(folder, marker)) for marker in markers):  # noqa: PTH118 - ten thousand folders
            yield FoundPackage(Path(folder), start, named, _unnameable(folder))
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


def _unnameable(folder: str) -> Issue | None:
    try:
        folder.encode()
    except UnicodeEncodeError:
        return Issue(NOT_TEXT, "error", "", "the path of the package is not UTF-8; rename its folders")
    return None


def _identity(package: FoundPackage) -> tuple[object, object] | None:
    """What tells one package from another: where the folder is, or the file and the path in it."""
    if package.inside is not None:
        return os.path.realpath(package.inside[0]), package.inside[1]
    try:
        status = os.stat(str(package.place))  # noqa: PTH116 - ten thousand folders
    except OSError:
        return None
    return status.st_dev, status.st_ino
