"""The layer store: environments as content-addressed folders.

A layer is a folder `layers/<key>/` in the form an overlay mount takes it: plain files, whiteouts as 0:0
character devices, opaque folders by the attribute `user.overlay.opaque`. It is made under a temporary name,
published by one rename, and never changed again. However many tasks and processes ask for a layer, one of
them makes it. One that was changed or damaged nevertheless, which is looked at once per process, is made again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import anyio

from benchflow.errors import InfrastructureFailure
from benchflow.files.locks import free_lock, held_lock
from benchflow.sandbox.images.filework import FileWork
from benchflow.sandbox.inside.layer_seal import is_whole, seal
from benchflow.sandbox.inside.removal import remove_tree

MakeLayer = Callable[[Path], Awaitable[None]]
OPAQUE: Final = "user.overlay.opaque"
MAPPED: Final = "-ids"
"""Ends the names of layers that hold the user ids of a granted range; the same layer may exist without them too."""
_whole: Final[set[Path]] = set()
"""Layers that this process has looked at."""


class LayerStore:
    """Layers below one folder that only its owner can enter; `work` says how their files are worked on."""

    def __init__(self, root: Path, work: FileWork | None = None) -> None:
        self.root: Final = root
        self.work: Final = work or FileWork()
        self.layers: Final = root / "layers"
        self._locks: Final = root / "locks"
        self._temporary: Final = root / "tmp"

    def prepare(self) -> None:
        """Make the folders; images hold set-user-id programs, so other users must not reach them."""
        with disk_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o700)
            for folder in (self.layers, self._locks, self._temporary):
                folder.mkdir(exist_ok=True)

    def path(self, key: str) -> Path:
        """Where the layer `key` is, or will be."""
        return self.layers / (f"{key}{MAPPED}" if self.work.mapped else key)

    def has(self, key: str) -> bool:
        return self.path(key).is_dir()

    async def is_whole(self, key: str) -> bool:
        """Whether there is the layer as it was made."""
        path = self.path(key)
        if path in _whole and path.is_dir():
            return True
        if path.is_dir() and await self.work.look(is_whole, str(path)):
            _whole.add(path)
            return True
        return False

    async def layer(self, key: str, make: MakeLayer) -> tuple[Path, bool]:
        """The layer `key`, made by `make(folder)` unless it exists and is whole; also whether it existed already.

        An error of `make` leaves nothing behind; others that waited for the same layer then try themselves.
        """
        target = self.path(key)
        if await self.is_whole(key):
            return target, True
        self.prepare()
        async with self.locked(key):
            if await self.is_whole(key):
                return target, True
            await self._discard(key)
            async with self.scratch(key) as folder:
                with disk_errors(self.root):
                    await make(folder)
                    await self.work.run(seal, str(folder))
                    folder.rename(target)
        return target, False

    def locked(self, key: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock of `key` against all tasks and processes."""
        return held_lock(self._locks / key)

    @asynccontextmanager
    async def scratch(self, key: str) -> AsyncIterator[Path]:
        """A fresh folder for the holder of the lock; what an earlier, killed holder left goes first."""
        for leftover in self._temporary.glob(f"{key}.*"):
            await self.work.run(remove_tree, leftover)
        folder = self._temporary / f"{key}.{os.urandom(6).hex()}"
        folder.mkdir()
        folder.chmod(0o755)
        try:
            yield folder
        finally:
            with anyio.CancelScope(shield=True):
                if folder.exists():
                    await self.work.run(remove_tree, folder)

    def in_use(self) -> bool:
        """Whether a driver of sandboxes is alive that keeps its boxes in this store, or an image is being pulled."""
        for path in (*self.root.glob("owners/*.lock"), *self._locks.glob("pull-*")):
            lock = free_lock(path)
            if lock is not None:
                os.close(lock)
            elif path.exists():
                return True
        return False

    async def remove(self, key: str) -> None:
        """Remove a layer; the caller knows that nothing is built on it."""
        async with self.locked(key):
            await self._discard(key)

    async def _discard(self, key: str) -> None:
        """Remove a layer whose lock is held, if it exists."""
        _whole.discard(self.path(key))
        doomed = self._temporary / f"{key}.{os.urandom(6).hex()}"
        try:
            self.path(key).rename(doomed)
        except FileNotFoundError:
            return
        await self.work.run(remove_tree, doomed)


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn a full or read-only disk into one clear sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"No space left for environment layers in {where}; free some, or set BENCHCUBE_STORE."
            raise InfrastructureFailure(message, code="disk-full") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG) and not isinstance(
            error, FileNotFoundError
        ):
            message = f"Cannot write environment layers in {where}: {error.strerror}; set BENCHCUBE_STORE."
            raise InfrastructureFailure(message, code="store-unwritable") from error
        raise
