"""Writes files into a layer that is being made, so that they land where the tree below would have them.

Parents that exist below are made again in the layer with the same owner and permissions, because the folder
of the highest layer decides. Owners are set when this process may; for an ordinary user everything belongs
to the user, who is root inside the sandbox.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.layer_tree import Branch, LayerTree

_CHUNK: Final = 1 << 22


class LayerWriter:
    """Adds to the folder `layer`, seen on top of the branches `below` (lowest first)."""

    def __init__(self, layer: Path, below: Sequence[Branch | Path]) -> None:
        self.layer: Final = layer
        self.tree: Final = LayerTree([*below, layer])
        self._owns: Final = os.geteuid() == 0

    def directory(self, path: str, *, mode: int = 0o755, uid: int = 0, gid: int = 0) -> str:
        """Make sure that `path` is a folder, parents included; an existing one is not changed.

        Returns where it really is, links of the tree followed. Something else in the way is an error.
        """
        real = self.tree.resolve(path)
        done = ""
        for part in [part for part in real.split("/") if part]:
            done = f"{done}/{part}"
            entry = self.tree.lookup(done)
            if entry is not None and not entry.is_directory:
                raise EnvironmentFailure(f"{done} is not a folder, so {path} cannot be one.", code="copy-failed")
            host = self._host(done)
            if entry is None:
                host.mkdir()
                self._finish(host, mode=mode, uid=uid, gid=gid)
            elif entry.source != host:
                host.mkdir()
                status = entry.status
                self._finish(host, mode=stat.S_IMODE(status.st_mode), uid=status.st_uid, gid=status.st_gid)
        return real or "/"

    def set_directory(self, path: str, *, mode: int, uid: int, gid: int) -> None:
        """Give a folder these permissions and this owner."""
        self._finish(self._host(self.directory(path)), mode=mode, uid=uid, gid=gid)

    def file(self, path: str, data: bytes | Path, *, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
        """Put a regular file at `path`, replacing a file or link but never a folder."""
        host = self._place(path)
        descriptor = os.open(host, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as target:
            if isinstance(data, bytes):
                target.write(data)
            else:
                with open_regular(data) as source:
                    shutil.copyfileobj(source, target, _CHUNK)
                    status = os.fstat(source.fileno())
                    os.utime(target.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
        self._finish(host, mode=mode, uid=uid, gid=gid)

    def link(self, path: str, target: str, *, uid: int = 0, gid: int = 0) -> None:
        """Put a symbolic link at `path`."""
        host = self._place(path)
        host.symlink_to(target)
        if self._owns:
            os.chown(host, uid, gid, follow_symlinks=False)

    def _place(self, path: str) -> Path:
        """The free host path for a new entry at `path`."""
        parent = self.directory(posixpath.dirname(path))
        real = posixpath.join(parent, posixpath.basename(path))
        existing = self.tree.lookup(real)
        if existing is not None and existing.is_directory:
            raise EnvironmentFailure(f"{real} is a folder and cannot be replaced by a file.", code="copy-failed")
        host = self._host(real)
        with suppress(FileNotFoundError):
            host.unlink()
        return host

    def _host(self, path: str) -> Path:
        return self.layer / path.lstrip("/")

    def _finish(self, host: Path, *, mode: int, uid: int, gid: int) -> None:
        if self._owns:
            os.chown(host, uid, gid, follow_symlinks=False)
        host.chmod(mode)


def make_directory(layer: Path, below: Sequence[Branch | Path], path: str) -> None:
    """Make a folder of root's in a layer."""
    LayerWriter(layer, below).directory(path)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a link, or anything that could block or is not a file, is refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise EnvironmentFailure(f"{path.name} is not a regular file.", code="copy-failed")
    return os.fdopen(descriptor, "rb")
