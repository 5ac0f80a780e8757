"""A stack of layers seen as one tree, without mounting it.

`LayerTree` finds, lists and resolves paths as the overlay mount of the same layers would show them. Links
are followed inside the tree only: nothing a layer holds makes a lookup leave it.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Final, Protocol

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.layer_store import OPAQUE
from benchflow.sandbox.inside.beneath import names_of

MAX_LINKS: Final = 40


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in the tree: where its bytes are on this machine, and its own status (links not followed)."""

    source: Path
    status: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)


class Branch(Protocol):
    """One part of a stack."""

    def find(self, parts: Sequence[str]) -> tuple[Entry | None, bool]:
        """What this part has at a path, and whether it hides the layers below."""

    def names(self, parts: Sequence[str]) -> Iterator[str]:
        """Names in the folder at a path, whiteouts included."""


@dataclass(frozen=True, slots=True)
class LayerBranch:
    """A layer folder of the store."""

    root: Path

    def find(self, parts: Sequence[str]) -> tuple[Entry | None, bool]:
        source = self.root
        status = source.lstat()
        hides = False
        for part in parts:
            # A path that passes through anything but a folder of this layer does not exist below it either.
            if not stat.S_ISDIR(status.st_mode):
                return None, True
            source = source / part
            try:
                status = source.lstat()
            except FileNotFoundError:
                return None, hides
            if is_whiteout(status):
                return None, True
            hides = hides or is_opaque(source, status)
        return Entry(source, status), hides or not stat.S_ISDIR(status.st_mode)

    def names(self, parts: Sequence[str]) -> Iterator[str]:
        with os.scandir(self.root.joinpath(*parts)) as entries:
            for entry in entries:
                yield entry.name


@dataclass(frozen=True, slots=True)
class FolderBranch:
    """A folder of this machine that appears at one path of the tree and nowhere else."""

    path: str
    root: Path

    def _inner(self, parts: Sequence[str]) -> Sequence[str] | None:
        own = names_of(self.path)
        return parts[len(own) :] if list(parts[: len(own)]) == own else None

    def find(self, parts: Sequence[str]) -> tuple[Entry | None, bool]:
        inner = self._inner(parts)
        return (None, False) if inner is None else LayerBranch(self.root).find(inner)

    def names(self, parts: Sequence[str]) -> Iterator[str]:
        inner = self._inner(parts)
        if inner is not None:
            yield from LayerBranch(self.root).names(inner)


class LayerTree:
    """Layers from lowest to highest, as one tree."""

    def __init__(self, branches: Sequence[Branch | Path]) -> None:
        self._branches: Final = tuple(LayerBranch(b) if isinstance(b, Path) else b for b in branches)

    def lookup(self, path: str) -> Entry | None:
        """The entry at `path`, the last link not followed; parents must be real folders of the tree."""
        found = self._stack(names_of(path))
        return found[0] if found else None

    def _stack(self, parts: Sequence[str]) -> list[Entry]:
        """Entries at a path, highest first, as far down as they merge."""
        found: list[Entry] = []
        for branch in reversed(self._branches):
            entry, hides = branch.find(parts)
            if entry is not None and (not found or entry.is_directory):
                found.append(entry)
            if hides or (entry is not None and not entry.is_directory):
                break
        return found

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        parts = names_of(path)
        seen: set[str] = set()
        for branch in reversed(self._branches):
            entry, hides = branch.find(parts)
            if entry is not None and entry.is_directory:
                seen.update(branch.names(parts))
            if hides or (entry is not None and not entry.is_directory):
                break
        return sorted(name for name in seen if self._stack([*parts, name]))

    def resolve(self, path: str, *, follow_last: bool = True) -> str:
        """The absolute path that `path` means once every link on the way is followed inside the tree.

        Parts that do not exist are kept unchanged. A loop of links is an `EnvironmentFailure`.
        """
        pending = list(reversed(names_of(path)))
        done: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part == "..":
                done = done[:-1]
                continue
            entry = next(iter(self._stack([*done, part])), None)
            if entry is None or not entry.is_link or (not pending and not follow_last):
                done.append(part)
                continue
            links += 1
            if links > MAX_LINKS:
                raise EnvironmentFailure(f"Too many links in the path {path}.", code="link-loop")
            target = str(entry.source.readlink())
            if target.startswith("/"):
                done = []
            pending.extend(reversed(names_of(target)))
        return "/" + "/".join(done)

    def find(self, path: str) -> Entry | None:
        """What `path` means, all links followed inside the tree."""
        return self.lookup(self.resolve(path))

    def read_text(self, path: str, *, max_bytes: int = 1 << 20) -> str | None:
        """The text of a small regular file; None when there is none."""
        entry = self.find(path)
        if entry is None or not entry.is_file or entry.status.st_size > max_bytes:
            return None
        return entry.source.read_text(encoding="utf-8", errors="replace")

    def walk(self, path: str) -> Iterator[tuple[str, Entry]]:
        """Everything below a folder, parents first and sorted, with paths relative to it."""
        top = self.lookup(path)
        pending = [] if top is None else [("", top)]
        while pending:
            relative, entry = pending.pop()
            if relative:
                yield relative, entry
            if entry.is_directory:
                prefix = f"{relative}/" if relative else ""
                within = [(prefix + name, child) for name, child in self._children(path, relative, entry)]
                pending += reversed(within)

    def _children(self, path: str, relative: str, folder: Entry) -> Iterator[tuple[str, Entry]]:
        """Names and entries in a folder, sorted."""
        if len(self._branches) == 1 and isinstance(self._branches[0], LayerBranch):
            # A build context is one layer of thousands of files, which every build reads: each is looked at once.
            yield from _children_of_layer(folder.source)
            return
        inner = posixpath.join(path, relative)
        for name in self.names(inner):
            entry = self.lookup(posixpath.join(inner, name))
            if entry is not None:
                yield name, entry


def _children_of_layer(folder: Path) -> list[tuple[str, Entry]]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not is_whiteout(status):
                found.append((entry.name, Entry(Path(entry.path), status)))
    return sorted(found, key=itemgetter(0))


def is_whiteout(status: os.stat_result) -> bool:
    """Whether an entry of a layer says that a name is gone."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(path: Path, status: os.stat_result) -> bool:
    """Whether a folder of a layer hides the folder of the same name below it."""
    if not stat.S_ISDIR(status.st_mode):
        return False
    for name in (OPAQUE, "trusted.overlay.opaque"):
        try:
            if os.getxattr(path, name, follow_symlinks=False) == b"y":
                return True
        except OSError:
            continue
    return False
