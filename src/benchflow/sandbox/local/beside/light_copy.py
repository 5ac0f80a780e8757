"""A copy of a small written layer, made in the process that was asked.

What takes less time to copy than a sandbox takes to start again is copied; a larger layer is shared instead, or copied
by a program. Nothing writes to the layer meanwhile. Everything that makes it a layer is copied: owners, modes, times,
extended attributes, hard links, holes, whiteouts.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from benchflow.sandbox.inside.removal import remove_tree

_MOST: Final = 150
"""Entries that are copied in less time than a sandbox needs to start again."""
_BLOCKS: Final = 128
"""How many blocks of 512 bytes take as long to copy as an entry."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK: Final = 1 << 20


class _TooMuch(Exception):
    """It is not small, or has something that only a program knows how to copy."""


def copy_light(source: str, target: str) -> bool:
    """Copy a layer to a new folder; False if it is not small or cannot be copied here, and then nothing is left."""
    try:
        _Copy(target).run(source)
    except (_TooMuch, OSError):
        remove_tree(target)
        return False
    return True


class _Copy:
    def __init__(self, target: str) -> None:
        self._target = target
        self._left = _MOST
        self._linked: dict[tuple[int, int], str] = {}
        """Where the first name of a file with several names is."""

    def run(self, source: str) -> None:
        theirs = os.open(source, _FOLDER)
        try:
            os.mkdir(self._target)
            ours = os.open(self._target, _FOLDER)
            try:
                self._folder(theirs, ours, "")
            finally:
                os.close(ours)
        finally:
            os.close(theirs)

    def _folder(self, theirs: int, ours: int, place: str) -> None:
        with os.scandir(theirs) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            info = os.lstat(name, dir_fd=theirs)
            self._left -= 1 + info.st_blocks // _BLOCKS
            if self._left < 0:
                raise _TooMuch
            self._entry(theirs, ours, name, info, f"{place}/{name}")
        _take_over(theirs, ours, os.fstat(theirs))

    def _entry(self, theirs: int, ours: int, name: str, info: os.stat_result, place: str) -> None:
        kind = stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFDIR:
            os.mkdir(name, 0o700, dir_fd=ours)
            self._opened(theirs, ours, name, _FOLDER, _FOLDER, place)
        elif info.st_nlink > 1 and self._is_linked(ours, name, info, place):
            return
        elif kind == stat.S_IFREG:
            self._opened(theirs, ours, name, _FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, place)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=theirs), name, dir_fd=ours)
            _own(ours, name, info)
        elif kind in (stat.S_IFIFO, stat.S_IFSOCK) or (kind == stat.S_IFCHR and info.st_rdev == 0):
            os.mknod(name, info.st_mode, info.st_rdev, dir_fd=ours)
            _own(ours, name, info)
            os.chmod(name, stat.S_IMODE(info.st_mode), dir_fd=ours)
        else:
            raise _TooMuch

    def _is_linked(self, ours: int, name: str, info: os.stat_result, place: str) -> bool:
        key = (info.st_dev, info.st_ino)
        first = self._linked.setdefault(key, place)
        if first == place:
            return False
        os.link(f"{self._target}{first}", name, dst_dir_fd=ours, follow_symlinks=False)
        return True

    def _opened(self, theirs: int, ours: int, name: str, reading: int, writing: int, place: str) -> None:
        """Copy what is behind two names."""
        source = os.open(name, reading, dir_fd=theirs)
        try:
            target = os.open(name, writing, 0o600, dir_fd=ours)
            try:
                if reading == _FOLDER:
                    self._folder(source, target, place)
                else:
                    _copy_data(source, target)
                    _take_over(source, target, os.fstat(source))
            finally:
                os.close(target)
        finally:
            os.close(source)


def _copy_data(source: int, target: int) -> None:
    """The bytes of a file; what is a hole stays one."""
    size, place = os.fstat(source).st_size, 0
    os.ftruncate(target, size)
    while place < size:
        try:
            place = os.lseek(source, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        end = os.lseek(source, place, os.SEEK_HOLE)
        while place < end:
            data = os.pread(source, min(_CHUNK, end - place), place)
            if not data:
                return
            place += os.pwrite(target, data, place)


def _take_over(source: int, target: int, info: os.stat_result) -> None:
    """Owner, attributes, mode and times, in this order: each would change or need those before it."""
    os.fchown(target, info.st_uid, info.st_gid)
    for name in os.listxattr(source):
        os.setxattr(target, name, os.getxattr(source, name))
    os.fchmod(target, stat.S_IMODE(info.st_mode))
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


def _own(folder: int, name: str, info: os.stat_result) -> None:
    os.chown(name, info.st_uid, info.st_gid, dir_fd=folder, follow_symlinks=False)
    os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=folder, follow_symlinks=False)
