"""Removes untrusted trees. Standard library only: helper processes use it too."""

from __future__ import annotations

import os
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: str | os.PathLike[str], *, dir_fd: int | None = None) -> None:
    """Remove a folder with all its contents, at any depth and with any permissions; it may already be gone.

    Links are removed, never followed. Inner folders are moved up before they are emptied, so that neither long
    paths nor many open folders are needed.
    """
    try:
        top = os.open(folder, _FOLDER, dir_fd=dir_fd)
    except FileNotFoundError:
        return
    try:
        while inner := _clear(top, top):
            for name in inner:
                os.chmod(name, 0o700, dir_fd=top)
                below = os.open(name, _FOLDER, dir_fd=top)
                try:
                    _clear(below, top)
                finally:
                    os.close(below)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder, dir_fd=dir_fd)


def _clear(folder: int, top: int) -> list[str]:
    """Remove the files of a folder and move its folders to `top`; gives the names of those that are there."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    inner = []
    for name, is_directory in found:
        if not is_directory:
            os.unlink(name, dir_fd=folder)
        elif folder == top:
            inner.append(name)
        else:
            os.chmod(name, 0o700, dir_fd=folder)
            os.rename(name, f".doomed-{os.urandom(8).hex()}", src_dir_fd=folder, dst_dir_fd=top)
    return inner
