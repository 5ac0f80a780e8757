"""What a sandbox changed: the layers it wrote compared with the environment below them, read by descriptor.

In a written layer a character device 0:0 means a deletion, and a directory with `user.overlay.opaque` hides the
layers below it. Nothing in the layers is followed, opened for writing or trusted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_OPAQUE: Final = "user.overlay.opaque"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEPTH: Final = 256
"""How many folders deep changes are listed."""
_CHUNK: Final = 1 << 20
_TYPES: Final = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}

Record = tuple[str, str, str, int, str, tuple[int, int, int, float]]
"""Path, kind of change, type, size, target of a link; mode, owner, group and time."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory as a stack of layers shows it: its descriptors, top first, of which the first `own` were written."""

    fds: tuple[int, ...] = ()
    own: int = 0

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Entry:
    """A name as a stack shows it: what the topmost layer says, and where that layer's directory is."""

    name: str
    parent: int
    info: os.stat_result

    @property
    def kind(self) -> int:
        return stat.S_IFMT(self.info.st_mode)

    @property
    def rights(self) -> tuple[int, int, int]:
        return stat.S_IMODE(self.info.st_mode), self.info.st_uid, self.info.st_gid

    def record(self, path: str, change: str, shown_as: str | None = None) -> Record:
        size = self.info.st_size if self.kind == stat.S_IFREG else 0
        target = os.readlink(self.name, dir_fd=self.parent) if self.kind == stat.S_IFLNK else ""
        type_ = shown_as or _TYPES.get(self.kind, "special")
        return (path, change, type_, size, target, (*self.rights, self.info.st_mtime))


def compare(
    written: Sequence[str], environment: Sequence[str], *, prefix: str = "", skip: frozenset[str] = frozenset()
) -> Iterator[Record]:
    """Every difference that the written layer folders make, both stacks top first; paths in `skip` are left out."""
    now = open_stack((*written, *environment), own=len(written))
    before = open_stack(environment, own=0)
    try:
        yield from _compare(now, before, prefix, 0, skip)
    finally:
        now.close()
        before.close()


def open_stack(paths: Sequence[str], own: int) -> Folder:
    """The top of a stack of layer folders, topmost first, of which the first `own` were written."""
    fds: list[int] = []
    written = 0
    for index, path in enumerate(paths):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            fds.append(os.open(path, _DIRECTORY))
            written += index < own
    return Folder(tuple(fds), written)


def _compare(now: Folder, before: Folder, path: str, depth: int, skip: frozenset[str]) -> Iterator[Record]:
    for name in touched(now, before):
        full = f"{path}/{name}"
        if full in skip:
            continue
        current, former = lookup(now, name), lookup(before, name)
        if current is None:
            if former is not None:
                yield former.record(full, "deleted")
            continue
        folder = current.kind == stat.S_IFDIR
        if folder and depth == _DEPTH:  # nothing below it can be judged, so it is not shown as a folder
            yield current.record(full, "added" if former is None else "changed", "special")
            continue
        if former is None:
            yield current.record(full, "added")
        elif differ(current, former):
            yield current.record(full, "changed")
        if folder:
            yield from _descend(now, before, name, full, depth, skip)


def touched(now: Folder, before: Folder) -> list[str]:
    """Names in a directory that may differ: those written, and all when the environment's part of it is hidden."""
    names = {name for fd in now.fds[: now.own] for name in names_in(fd)}
    if len(now.fds) == now.own:
        names |= {name for fd in before.fds for name in names_in(fd)}
    return sorted(names)


def _descend(now: Folder, before: Folder, name: str, path: str, depth: int, skip: frozenset[str]) -> Iterator[Record]:
    inner_now, inner_before = enter(now, name), enter(before, name)
    try:
        if inner_now.own:  # what only the environment has cannot differ
            yield from _compare(inner_now, inner_before, path, depth + 1, skip)
    finally:
        inner_now.close()
        inner_before.close()


def lookup(folder: Folder, name: str) -> Entry | None:
    """What the stack shows under a name."""
    for fd in folder.fds:
        info = _stat(fd, name)
        if info is not None:
            return None if _is_whiteout(info) else Entry(name, fd, info)
    return None


def enter(folder: Folder, name: str) -> Folder:
    """The directory `name`: every layer's part of it down to the first that ends it."""
    fds: list[int] = []
    own = 0
    for index, parent in enumerate(folder.fds):
        info = _stat(parent, name)
        if info is None:
            continue
        if not stat.S_ISDIR(info.st_mode):
            break
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError:
            break
        fds.append(fd)
        own += index < folder.own
        if _is_opaque(fd):
            break
    return Folder(tuple(fds), own)


def differ(current: Entry, former: Entry) -> bool:
    """Whether two entries differ visibly; the contents of folders are not compared."""
    if current.kind != former.kind or current.rights != former.rights:
        return True
    if current.kind == stat.S_IFDIR:
        return False
    if current.kind == stat.S_IFLNK:
        links = [os.readlink(entry.name, dir_fd=entry.parent) for entry in (current, former)]
        return links[0] != links[1]
    if current.kind == stat.S_IFREG:
        return current.info.st_size != former.info.st_size or not _same_bytes(current, former)
    return True


def _same_bytes(current: Entry, former: Entry) -> bool:
    """A copy that was opened for writing but never written is not a change; times prove nothing."""
    try:
        with (
            os.fdopen(os.open(current.name, _FILE, dir_fd=current.parent), "rb", buffering=0) as one,
            os.fdopen(os.open(former.name, _FILE, dir_fd=former.parent), "rb", buffering=0) as other,
        ):
            while True:
                chunk = one.read(_CHUNK)
                if chunk != other.read(_CHUNK):
                    return False
                if not chunk:
                    return True
    except OSError:
        return False


def _is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _is_opaque(fd: int) -> bool:
    try:
        return os.getxattr(fd, _OPAQUE) == b"y"
    except OSError:
        return False


def names_in(fd: int) -> list[str]:
    """What one layer's directory holds."""
    try:
        with os.scandir(fd) as entries:
            return [entry.name for entry in entries]
    except OSError:
        return []


def _stat(fd: int, name: str) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=fd)
    except OSError:
        return None
