"""Where a worker finds the package that a config names. A config names content, so any place that has it will do.

The places, in this order: the folder from which this process listed the package; the folders and files with packages
in `BENCHCUBE_PACKAGES`, separated as in `PATH`; the user's cache, which knows where packages were listed on this
machine and keeps those of bundles. Everything that is found is compared by content before it is used.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from benchflow.errors import BenchflowError, PackageError
from benchflow.gym.shared import PACKAGES
from benchflow.sandbox.factory import task_package
from benchflow.task.bundles.known_places import note_place, noted_places
from benchflow.task.bundles.package_files import kept_package
from benchflow.task.discovery import FoundPackage, find_packages
from benchflow.task.package import TaskPackage
from benchflow.task.taken import CHANGED

PACKAGES_VARIABLE: Final = "BENCHCUBE_PACKAGES"
MISSING: Final = "package-missing"


@dataclass(frozen=True, slots=True)
class PackageName:
    """A package by its content, and where it was listed, which only helps to find it."""

    label: str
    content_digest: str
    inside: str
    """Its path in the bundle, or below the folder that was listed."""
    bundle: str | None = None
    """The digest of the bundle."""


class Places:
    """What this process knows of places of packages."""

    def __init__(self) -> None:
        self._listed: Final[dict[str, Path]] = {}
        """Where this process listed packages, by content."""
        self._searched: Final[dict[str, tuple[object, dict[str, FoundPackage]]]] = {}
        """What was found at each place that the variable names, by content."""
        self._guard: Final = threading.Lock()

    def note(self, content_digest: str, folder: Path) -> None:
        """Remember a package that was listed, for this process and for others of this user."""
        self._listed[content_digest] = folder
        note_place(content_digest, folder)

    def find(self, name: PackageName) -> TaskPackage:
        """The package with this content; `PackageError` if no place has it, or only places that have changed."""
        looked: list[str] = []
        changed: Path | None = None
        for folder, is_listed in self._candidates(name, looked):
            package = _loaded(folder)
            if package is not None and package.content_digest == name.content_digest:
                return task_package(package)
            if is_listed and changed is None and folder.exists():
                changed = folder
        sought = "; ".join(looked)
        if changed is not None:
            message = (
                f"The package at {changed} has changed since the task was listed, and its former content"
                f" ({name.content_digest}) is nowhere else: {sought}. List it again."
            )
            raise PackageError(message, code=CHANGED)
        message = (
            f"The package '{name.label}' with the content {name.content_digest} is not on this worker: {sought}."
            f" Name a bundle or a folder that has it in {PACKAGES_VARIABLE}."
        )
        raise PackageError(message, code=MISSING)

    def _candidates(self, name: PackageName, looked: list[str]) -> Iterator[tuple[Path, bool]]:
        """Folders that may have it, and whether it was listed there; what was looked at is added to `looked`."""
        listed = self._listed.get(name.content_digest)
        if listed is not None:
            yield listed, True
        entries = [entry for entry in os.environ.get(PACKAGES_VARIABLE, "").split(os.pathsep) if entry]
        if not entries:
            looked.append(f"{PACKAGES_VARIABLE} is not set")
        for entry in entries:
            yield from ((folder, False) for folder in self._at(entry, name, looked))
        yield from ((noted, True) for noted in noted_places(name.content_digest))
        kept = kept_package(name.bundle, name.inside) if name.bundle is not None else None
        if kept is not None:
            yield kept, False
        looked.append("the cache of this user does not have it")

    def _at(self, entry: str, name: PackageName, looked: list[str]) -> Iterator[Path]:
        """Folders at a place that the variable names: where the package was below the listed folder, then any."""
        hint = PurePosixPath(name.inside)
        if not hint.is_absolute() and ".." not in hint.parts and (folder := Path(entry, hint)).is_dir():
            yield folder.absolute()
        for again in (False, True):
            try:
                found = self._by_content(entry, again=again).get(name.content_digest)
                if found is not None:
                    yield found.path.absolute()
            except BenchflowError as error:
                looked.append(f"{entry} cannot be searched ({error})")
                return
        looked.append(f"{entry} does not have it")

    def _by_content(self, entry: str, *, again: bool) -> Mapping[str, FoundPackage]:
        """The packages at a place by content, read once; `again` reads a folder again, and a file that has changed."""
        path = Path(entry)
        stamp = _file_stamp(path)
        with self._guard:
            known = self._searched.get(entry)
            if known is not None and known[0] == stamp and (stamp is not None or not again):
                return known[1]
            found: dict[str, FoundPackage] = {}
            for each in find_packages([path]):
                content = each.entry.content_digest if each.entry is not None else _content(each)
                if content is not None:
                    found.setdefault(content, each)
            self._searched[entry] = stamp, found
            return found


def _content(found: FoundPackage) -> str | None:
    package = _loaded(found.path.absolute())
    return package.content_digest if package is not None else None


def _loaded(folder: Path) -> TaskPackage | None:
    """The package at a folder; None if it is gone or cannot be read."""
    try:
        return PACKAGES.load(folder)
    except (OSError, BenchflowError):
        return None


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file; None for a folder."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if path.is_file() else None


PLACES: Final = Places()
