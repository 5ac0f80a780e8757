"""Packages as they were planned: copied once, so that later changes to the author's files change nothing.

`COPIES.take(package)` gives the same package with its files in a copy: `files.root` and all folders of its view are
there, `path` stays the author's. The copy is compared with the digests of the plan when it is made and whenever it is
used again.

Copies are in the scratch folder of this process and go with it: they need no locks between processes, nobody else
writes to them, and nothing is left to clean up. Making one costs little more than reading the package, and a copy that
outlived its process would have to be read again to be trusted.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchflow.errors import InfrastructureFailure, PackageError
from benchflow.files import copy_file
from benchflow.files.scratch import scratch_folder
from benchflow.task.filemap import FileMap, printable, scan
from benchflow.task.package import TaskPackage

CHANGED: Final = "package-changed"
"""The code of a package whose files are not what was planned."""
MOST_BYTES: Final = 512 << 20
MOST_COPIES: Final = 512
"""How much is kept for further attempts, beside what is in use: a job of thousands of packages must not fill a disk."""
Mark = tuple[str, int, int, int, int]
"""A path, its change time, size, inode and mode."""
Stamp = tuple[Mark, ...]
_TICK_NS: Final = 100_000_000
"""File times have the resolution of the kernel's ticks, which are shorter than this."""
_REPLACED: Final = (None, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM)
"""How opening a file fails that is gone, or is something else now; without a number it is a pipe or a device."""


def stamp_of(folder: Path | str) -> Stamp:
    """Everything below a folder with its change time: without reading a file, an equal stamp shows that none changed.

    Change times cannot be set by hand. See `is_settled` for the limit of their resolution.
    """
    stamp: list[Mark] = []
    places = [os.fspath(folder)]
    while places:
        try:
            entries = os.scandir(places.pop())
        except OSError:  # what cannot be listed is the same as empty
            continue
        with entries:
            for entry in entries:
                stamp.append(_mark(entry.path, entry.stat(follow_symlinks=False)))
                if entry.is_dir(follow_symlinks=False):
                    places.append(entry.path)
    return tuple(sorted(stamp))


def _mark(path: str, found: os.stat_result) -> Mark:
    return path, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode


def _is_still(stamp: Stamp) -> bool:
    """Whether every path of a stamp is as it was. Nothing is listed: the change time of a folder, which has to be in
    the stamp too, shows what was added to it or removed from it."""
    try:
        return all(mark == _mark(mark[0], os.lstat(mark[0])) for mark in stamp)
    except OSError:
        return False


def is_settled(stamp: Stamp, now: int) -> bool:
    """Whether any later change would show: a file that changed just now may change again within the same tick."""
    return all(changed <= now - _TICK_NS for _, changed, *_ in stamp)


class _Sealed:
    """A folder of ours that must stay as it was made."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._stamp, self.content = _read(folder)

    def damage(self) -> str | None:
        """A path below it that is not as it was made. Files are read only if their change times are not the same."""
        if self._stamp and _is_still(self._stamp):
            return None
        stamp, content = _read(self.folder)
        if content != self.content:
            return next(path for path in (self.content | content) if content.get(path) != self.content.get(path))
        self._stamp = stamp
        return None


def _read(folder: Path) -> tuple[Stamp, dict[str, tuple[int, bytes | str | None]]]:
    """The stamp of a folder and all below it, empty if it proves nothing yet, and mode and content of what is below."""
    try:
        own = _mark(str(folder), folder.lstat())
    except OSError:  # it is gone
        return (), {}
    stamp, now = stamp_of(folder), time.time_ns()
    files = scan(folder)
    cut = len(str(folder)) + 1
    content: dict[str, tuple[int, bytes | str | None]] = {}
    for place, _, _, _, mode in stamp:
        path = place[cut:]
        entry = files.files.get(path)
        content[path] = mode, entry.digest if entry is not None else files.links.get(path)
    whole = (own, *stamp)
    return (whole if is_settled(whole, now) else ()), content


class Copy:
    """One copy of a package, and trees made from it. All of it is removed when nobody refers to it any more."""

    def __init__(self, package: TaskPackage) -> None:
        """Raises `PackageError` (`package-changed`) when the folder does not have the files of the package."""
        self._home: Final = scratch_folder("package-")
        weakref.finalize(self, _remove, self._home, os.getpid())
        self._name: Final = package.name
        self._trees: Final[dict[Hashable, _Sealed]] = {}
        self._numbers: Final = itertools.count()
        self._making: Final = threading.Lock()
        root = self._home / "files"
        _copy_package(package, root)
        self._files: Final = _Sealed(root)
        for path, entry in package.files.files.items():
            if self._files.content[path][1] != entry.digest:
                raise _changed(package, path)
        self.size: Final = sum(entry.size for entry in package.files.files.values())

    @property
    def root(self) -> Path:
        return self._files.folder

    def damage(self) -> str | None:
        """A path that is not as it was taken; None if all are."""
        return self._files.damage()

    def check(self) -> None:
        """Refuse a copy that is not as it was taken: an `InfrastructureFailure` (`copy-damaged`)."""
        path = self.damage()
        if path is not None:
            message = f"The copy of {self._name} was changed while it was in use: {printable(path)} is different."
            raise InfrastructureFailure(message, code="copy-damaged", file=path)

    def made(self, key: Hashable) -> Path | None:
        """The tree with this key, if it exists and is as it was made."""
        tree = self._trees.get(key)
        return tree.folder if tree is not None and tree.damage() is None else None

    def tree(self, key: Hashable, make: Callable[[Path], None]) -> Path:
        """A folder that `make` fills from the copy, once for all that ask with this key, in any thread."""
        with self._making:
            found = self.made(key)
            if found is None:
                self.check()
                found = self._home / f"tree-{next(self._numbers)}"
                found.mkdir()
                make(found)
                self._trees[key] = _Sealed(found)
            return found


def _remove(home: Path, process: int) -> None:
    if process == os.getpid():  # a forked child shares the copies of its parent
        shutil.rmtree(home, ignore_errors=True)


class Copies:
    """The packages taken by this process. Those last used are kept for further attempts; those in use always stay."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_copies: int = MOST_COPIES) -> None:
        self._kept: Final[OrderedDict[Hashable, tuple[TaskPackage, Copy]]] = OrderedDict()
        self._guard: Final = threading.Lock()
        """Of the packages kept; never held for long."""
        self._taking: Final = threading.Lock()
        self._most_bytes: Final = most_bytes
        self._most_copies: Final = most_copies

    def known(self, package: TaskPackage) -> TaskPackage | None:
        """The package as it was taken before, if its copy is intact; one that was taken is returned as it is."""
        if package.files.copy is not None:
            return package
        key = _key(package)
        with self._guard:
            found, copy = self._kept.get(key, (None, None))
            if copy is not None:
                self._kept.move_to_end(key)
        return found if copy is not None and copy.damage() is None else None

    def take(self, package: TaskPackage) -> TaskPackage:
        """The package with its files in a copy.

        Raises `PackageError` (`package-changed`) when the folder does not have the files of the package any more.
        """
        with self._taking:
            found = self.known(package)
            if found is None:
                copy = Copy(package)
                found = replace(package, files=replace(package.files, root=copy.root, copy=copy))
                self._keep(found, copy)
            return found

    def forget(self, package: TaskPackage) -> None:
        """Do not keep a package for further attempts; its copy is removed once nobody uses it."""
        with self._guard:
            self._kept.pop(_key(package), None)

    def _keep(self, package: TaskPackage, copy: Copy) -> None:
        with self._guard:
            self._kept[_key(package)] = package, copy
            self._kept.move_to_end(_key(package))
            size = sum(kept.size for _, kept in self._kept.values())
            while len(self._kept) > 1 and (size > self._most_bytes or len(self._kept) > self._most_copies):
                _, (_, oldest) = self._kept.popitem(last=False)
                size -= oldest.size


COPIES: Final = Copies()


def _key(package: TaskPackage) -> Hashable:
    """By place too: the digest covers neither modes nor links."""
    return package.path.absolute(), package.digest, package.sandbox


def _changed(package: TaskPackage, path: str) -> PackageError:
    message = (
        f"The package at {package.path} has changed since it was planned: {printable(path)} is different. "
        "Start again to run it as it is now."
    )
    return PackageError(message, code=CHANGED, file=path)


def _copy_package(package: TaskPackage, root: Path) -> None:
    """Every file that was planned. One that was added since is not part of the plan and is left out."""
    files = package.files
    root.mkdir()
    for path in sorted(files.folders):
        (root / path).mkdir()
    for path in files.files:
        _copy_file(package, path, root / path)
    for path in files.links:
        (root / path).symlink_to(_link(package, path))
    for path in sorted(files.folders, reverse=True):
        (root / path).chmod(_mode(package, path))


def _mode(package: TaskPackage, path: str) -> int:
    """The mode of a folder, always one that can be removed again."""
    try:
        return stat.S_IMODE((package.path / path).lstat().st_mode) & 0o777 | 0o700
    except OSError as error:
        raise _changed(package, path) from error


def _copy_file(package: TaskPackage, path: str, target: Path) -> None:
    source = package.path / path
    try:
        if source.lstat().st_size != package.files.files[path].size:
            raise _changed(package, path)  # a file of any size may have taken its place
        status = copy_file(source, target)
    except OSError as error:
        if error.errno in _REPLACED:
            raise _changed(package, path) from error
        raise
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _link(package: TaskPackage, path: str) -> str:
    """The target of a link, as one that stays below the copy if it is spelled through folders above the package."""
    place, target = package.path / path, package.files.links[path]
    try:
        now = os.readlink(place)  # noqa: PTH115  # names may hold any bytes
    except OSError as error:
        raise _changed(package, path) from error
    if now != target:
        raise _changed(package, path)
    spelled = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120  # as above
    if not os.path.isabs(target) and not spelled.startswith(".."):  # noqa: PTH117
        return target
    root = os.path.realpath(package.path)
    return os.path.relpath(os.path.realpath(place), os.path.join(root, os.path.dirname(path)))  # noqa: PTH118, PTH120


def require_intact(files: FileMap) -> None:
    """Refuse to read on from a copy that is not as it was taken; see `Copy.check`."""
    if files.copy is not None:
        files.copy.check()
