"""Make paths of a sandbox that has not started yet look as its environment was built.

In: the folder of the new, still empty layer, the layers below it, and paths. Out: entries in the new layer: a copy of
the environment's entry, or a deletion if it has none. The content of the written layers is only compared with,
never followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from typing import Final

from benchflow.sandbox.inside.tree_stream import copy_bytes
from benchflow.sandbox.local.beside.difference import (
    Entry,
    Folder,
    differ,
    enter,
    lookup,
    names_in,
    open_stack,
    touched,
)

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_CAPABILITY: Final = "security.capability"
_Tree = dict[str, "_Tree"]
"""Names with what is below them; one without is to be reverted."""


def revert(upper: str, written: Sequence[str], environment: Sequence[str], paths: Iterable[str]) -> None:
    """Write to the layer folder `upper` what makes `paths` (relative to the mount) as in `environment`.

    Both stacks are top first. A path below a folder that is none any more is reverted from that folder on.
    """
    now = open_stack((*written, *environment), own=len(written))
    before = open_stack(environment, own=0)
    top = os.open(upper, _DIRECTORY)
    try:
        named = outermost(paths)
        if [] in named:
            _restore_below(top, now, before)
        else:
            _revert(top, now, before, _tree(named))
    finally:
        os.close(top)
        now.close()
        before.close()


def outermost(paths: Iterable[str]) -> list[list[str]]:
    """The names of each path, without those below another one."""
    kept: list[list[str]] = []
    for names in sorted([part for part in path.split("/") if part] for path in paths):
        if not kept or kept[-1] != names[: len(kept[-1])]:
            kept.append(names)
    return kept


def _tree(paths: Iterable[list[str]]) -> _Tree:
    tree: _Tree = {}
    for names in paths:
        place = tree
        for name in names:
            place = place.setdefault(name, {})
    return tree


def _revert(upper: int, now: Folder, before: Folder, tree: _Tree) -> None:
    """Revert the ends of a tree of names; every folder on the way is entered once, however much of it is named."""
    for name, below in tree.items():
        current, former = _folder(now, name), _folder(before, name)
        if not below or current is None:
            _restore(upper, now, before, name)
            continue
        inside = _make_folder(upper, name, former or current)
        with _entered(now, before, name) as (inner_now, inner_before):
            try:
                _revert(inside, inner_now, inner_before, below)
            finally:
                os.close(inside)


def _restore(upper: int, now: Folder, before: Folder, name: str) -> None:
    current, former = lookup(now, name), lookup(before, name)
    if former is None:
        if current is not None:
            os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=upper)
    elif former.kind == stat.S_IFDIR:
        merged = current is not None and current.kind == stat.S_IFDIR
        inside = _make_folder(upper, name, former)
        with _entered(now, before, name) as (inner_now, inner_before):
            try:
                if merged:
                    _restore_below(inside, inner_now, inner_before)
                else:
                    _copy_below(inside, inner_before)
            finally:
                os.close(inside)
    elif current is None or differ(current, former):
        _copy(upper, former)


def _restore_below(upper: int, now: Folder, before: Folder) -> None:
    if now.own:  # what only the environment has cannot differ
        for name in touched(now, before):
            _restore(upper, now, before, name)


def _copy_below(upper: int, before: Folder) -> None:
    for name in sorted({name for fd in before.fds for name in names_in(fd)}):
        former = lookup(before, name)
        if former is None:
            continue
        if former.kind != stat.S_IFDIR:
            _copy(upper, former)
            continue
        inside, inner = _make_folder(upper, name, former), enter(before, name)
        try:
            _copy_below(inside, inner)
        finally:
            inner.close()
            os.close(inside)


def _copy(upper: int, former: Entry) -> None:
    if former.kind == stat.S_IFLNK:
        os.symlink(os.readlink(former.name, dir_fd=former.parent), former.name, dir_fd=upper)
        _chown(former, upper)
    elif former.kind == stat.S_IFREG:
        _copy_file(upper, former)
    else:
        os.mknod(former.name, former.info.st_mode, former.info.st_rdev, dir_fd=upper)
        _chown(former, upper)


def _copy_file(upper: int, former: Entry) -> None:
    source = os.open(former.name, _READ, dir_fd=former.parent)
    target = os.open(former.name, _CREATE, 0o600, dir_fd=upper)
    try:
        copy_bytes(source, target, former.info.st_size)
        _chown(former, upper)
        os.fchmod(target, stat.S_IMODE(former.info.st_mode))
        with contextlib.suppress(OSError):  # most files have none, and not everyone may give it
            os.setxattr(target, _CAPABILITY, os.getxattr(source, _CAPABILITY))
        os.utime(target, ns=(former.info.st_atime_ns, former.info.st_mtime_ns))
    finally:
        os.close(source)
        os.close(target)


def _make_folder(upper: int, name: str, like: Entry) -> int:
    """A descriptor of the folder in the new layer, with the permissions of `like`; it may already exist."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=upper)
    _chown(like, upper)
    made = os.open(name, _DIRECTORY, dir_fd=upper)
    os.fchmod(made, stat.S_IMODE(like.info.st_mode))
    return made


def _chown(like: Entry, upper: int) -> None:
    with contextlib.suppress(OSError):  # an owner that a driver without root cannot name stays its own
        os.chown(like.name, like.info.st_uid, like.info.st_gid, dir_fd=upper, follow_symlinks=False)


def _folder(stack: Folder, name: str) -> Entry | None:
    entry = lookup(stack, name)
    return entry if entry is not None and entry.kind == stat.S_IFDIR else None


class _entered:  # noqa: N801 - used as a with-statement's word
    """Both views of a folder below, closed at the end of the block."""

    def __init__(self, now: Folder, before: Folder, name: str) -> None:
        self._folders = enter(now, name), enter(before, name)

    def __enter__(self) -> tuple[Folder, Folder]:
        return self._folders

    def __exit__(self, *_: object) -> None:
        for folder in self._folders:
            folder.close()
