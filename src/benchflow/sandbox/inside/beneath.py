"""Paths inside untrusted trees: walked one name at a time, no link ever followed.

The one guard for mount points, archives and copies in and out. What is opened comes out as descriptors, never as paths.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from benchflow.sandbox.inside.removal import remove_tree

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_plain(path: str) -> bool:
    """Whether a path, as text, leads nowhere but down from where it starts."""
    return ".." not in path.split("/") and "\0" not in path


def is_name(text: str) -> bool:
    """Whether a text is the name of one entry of a folder."""
    return text not in ("", ".", "..") and "/" not in text and "\0" not in text


def stays_inside(target: str, depth: int) -> bool:
    """Whether a link `depth` folders below the top of a tree points to a place in it, regardless of other such links.

    `..` counts at the beginning only: behind a name that is itself a link it would climb from somewhere else.
    """
    names = names_of(target)
    climbs = 0
    while climbs < len(names) and names[climbs] == "..":
        climbs += 1
    downwards = is_plain("/".join(names[climbs:]))
    return bool(target) and not target.startswith("/") and climbs <= depth and downwards


def names_of(path: str) -> list[str]:
    """The names on a path, without those that say nothing."""
    return [name for name in path.split("/") if name not in ("", ".")]


def parts_of(path: str) -> list[str]:
    """The names of an absolute path; `..` and relative paths are refused."""
    if not path.startswith("/") or not is_plain(path):
        raise OSError(errno.EINVAL, f"'{path}' is not a plain absolute path")
    return names_of(path)


def claim_directory(
    root: int, path: str, *, mode: int = 0o755, replace_last: bool = True, replace_all: bool = False
) -> int:
    """A descriptor of the directory `path` below `root`, made if it is missing.

    Anything at its last name that is not a directory is replaced (`replace_last`), or at every name (`replace_all`);
    elsewhere a link on the way is an error (ELOOP).
    """
    names = parts_of(path)
    current = os.open(".", _DIRECTORY, dir_fd=root)
    try:
        for index, name in enumerate(names):
            replace = replace_all or (replace_last and index == len(names) - 1)
            if not _is_folder(current, name, replace=replace, path=path):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, mode, dir_fd=current)
            following = os.open(name, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = following
    except BaseException:
        os.close(current)
        raise
    return current


def claim_file(root: int, path: str, *, mode: int = 0o644) -> int:
    """A descriptor (O_PATH) of a regular file at `path` below `root` to mount on, made if it is missing."""
    *parents, name = parts_of(path)
    directory = claim_directory(root, "/" + "/".join(parents), replace_all=True)
    try:
        if not remove_unless(directory, name, stat.S_ISREG):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=directory))
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)


def nothing(mode: int) -> bool:
    """For `remove_unless`: no type may stay."""
    del mode
    return False


def remove_unless(directory: int, name: str, wanted: Callable[[int], bool]) -> bool:
    """Remove `name` in `directory`, with all below it, unless it is of the wanted type (a `stat.S_IS…` function).

    Gives whether something of that type is there.
    """
    try:
        mode = os.lstat(name, dir_fd=directory).st_mode
    except FileNotFoundError:
        return False
    if wanted(mode):
        return True
    if stat.S_ISDIR(mode):
        remove_tree(name, dir_fd=directory)
    else:
        os.unlink(name, dir_fd=directory)
    return False


def _is_folder(directory: int, name: str, *, replace: bool, path: str) -> bool:
    """Whether there is a folder of that name; anything else is replaced or is an error."""
    if replace:
        return remove_unless(directory, name, stat.S_ISDIR)
    try:
        mode = os.lstat(name, dir_fd=directory).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, f"'{path}' goes through the link '{name}', which is not followed")
    if not stat.S_ISDIR(mode):
        raise OSError(errno.ENOTDIR, f"'{name}' in '{path}' is not a folder")
    return True
