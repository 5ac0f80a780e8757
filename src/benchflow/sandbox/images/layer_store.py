"""The layer store: environments as content-addressed folders.

A layer is a folder `layers/<key>/` in the form an overlay mount takes it: plain files, whiteouts as 0:0
character devices, opaque folders by the attribute `user.overlay.opaque`. It is made under a temporary name,
published by one rename, and never changed again. However many tasks and processes ask for a layer, one of
them makes it. One that was changed or damaged nevertheless, which is looked at once per process, is made again.
What a process has asked for is kept from being removed until it ends.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import anyio

from benchflow.errors import InfrastructureFailure
from benchflow.files.locks import held_lock, try_lock
from benchflow.sandbox.images.filework import FileWork
from benchflow.sandbox.inside.layer_seal import is_whole, seal
from benchflow.sandbox.inside.removal import remove_tree
from benchflow.sandbox.store_use import StoreUse

MakeLayer = Callable[[Path], Awaitable[None]]
OPAQUE: Final = "user.overlay.opaque"
MAPPED: Final = "-ids"
"""Ends the names of layers that hold the user ids of a granted range; the same layer may exist without them too."""
_whole: Final[set[Path]] = set()
"""Layers that this process has looked at."""


class LayerStore:
    """Layers below one folder that only its owner can enter; `work` says how their files are worked on.

    `use` keeps what was asked for; by default until this object is gone.
    """

    def __init__(self, root: Path, work: FileWork | None = None, use: StoreUse | None = None) -> None:
        self.root: Final = root
        self.work: Final = work or FileWork()
        self.layers: Final = root / "layers"
        self.use: Final = use or StoreUse(root)
        self.temporary: Final = root / "tmp"
        self._locks: Final = root / "locks"

    def prepare(self) -> None:
        """Make the folders; images hold set-user-id programs, so other users must not reach them."""
        with disk_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o700)
            for folder in (self.layers, self._locks, self.temporary):
                folder.mkdir(exist_ok=True)

    def path(self, key: str) -> Path:
        """Where the layer `key` is, or will be."""
        return self.layers / (f"{key}{MAPPED}" if self.work.mapped else key)

    def has(self, key: str) -> bool:
        return self.path(key).is_dir()

    async def is_whole(self, key: str) -> bool:
        """Whether there is the layer as it was made; if so it is used from now on."""
        path = self.path(key)
        await self.use.hold(path.name)
        if not path.is_dir():
            return False
        if path not in _whole and not await self.work.look(is_whole, str(path)):
            return False
        _whole.add(path)
        self.use.note(path.name)
        return True

    async def layer(self, key: str, make: MakeLayer, below: Iterable[str] = ()) -> tuple[Path, bool]:
        """The layer `key`, made by `make(folder)` unless it exists and is whole; also whether it existed already.

        `below` are the keys of the layers that it is made on. An error of `make` leaves nothing behind; others that
        waited for the same layer then try themselves.
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
            self.use.note(target.name, [self.path(lower).name for lower in below])
        return target, False

    def locked(self, key: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock of `key` against all tasks and processes."""
        return held_lock(self._locks / key)

    @asynccontextmanager
    async def scratch(self, key: str) -> AsyncIterator[Path]:
        """A fresh folder for the holder of the lock; what an earlier, killed holder left goes first."""
        for leftover in self.temporary.glob(f"{key}.*"):
            await self.remove_leftover(leftover)
        folder = self.temporary / f"{key}.{os.urandom(6).hex()}"
        async with self._unfinished(folder):
            folder.mkdir()
            folder.chmod(0o755)
            yield folder

    @asynccontextmanager
    async def _unfinished(self, folder: Path) -> AsyncIterator[None]:
        """Nobody takes the temporary folder for a leftover; it is removed at the end."""
        name = f"tmp/{folder.name}"
        await self.use.leases.hold(name)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self.work.run(remove_tree, folder)
            self.use.leases.drop(name)

    async def remove_leftover(self, folder: Path) -> bool:
        """Remove a temporary folder that nobody works in; whether it is gone."""
        with self.use.leases.alone(f"tmp/{folder.name}") as left:
            if left:
                await self.work.run(remove_tree, folder)
        return left

    @contextmanager
    def if_free(self, key: str) -> Iterator[bool]:
        """Hold the lock of `key` unless somebody else does; whether it is held."""
        descriptor = os.open(self._locks / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield try_lock(descriptor)
        finally:
            os.close(descriptor)

    async def remove(self, key: str, unless: Callable[[], bool] = bool) -> bool:
        """Remove a layer that no process uses; `unless` is asked once none can begin to. Whether it is gone."""
        path = self.path(key)
        if not self.has(key):
            return True
        doomed = self.temporary / f"gone-{os.urandom(6).hex()}"
        async with self._unfinished(doomed):
            with self.use.leases.alone(path.name) as unused:
                if not unused or unless():
                    return False
                _whole.discard(path)
                with suppress(FileNotFoundError):
                    path.rename(doomed)
                self.use.forget(path.name)
        return True

    async def _discard(self, key: str) -> None:
        """Remove a damaged layer whose lock is held, if it exists."""
        _whole.discard(self.path(key))
        doomed = self.temporary / f"gone-{os.urandom(6).hex()}"
        async with self._unfinished(doomed):
            with suppress(FileNotFoundError):
                self.path(key).rename(doomed)


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
