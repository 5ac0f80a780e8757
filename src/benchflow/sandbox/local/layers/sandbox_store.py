"""Where sandboxes keep their files on this machine, and who owns what.

STORE/layers/…            layers of images and of the host profile, kept
STORE/owners/ID.lock      locked as long as any process of that driver lives
STORE/owners/ID/…         its sandboxes; removed at the next start once the lock is free
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow.errors import InfrastructureFailure
from benchflow.files.locks import free_lock, new_lock
from benchflow.sandbox.store_use import StoreUse

_GET_FLAGS: Final = 0x8000_6601 | struct.calcsize("l") << 16
_SET_FLAGS: Final = 0x4000_6602 | struct.calcsize("l") << 16
_TOP_OF_HIERARCHY: Final = 0x0002_0000


@dataclass(frozen=True, slots=True)
class Owner:
    """This driver's part of a store; its lock is shared with the helper processes."""

    name: str
    lock: int

    def location(self, *parts: str) -> str:
        return "/".join((f"store:owners/{self.name}", *parts))


class Store:
    """The folders of one store."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.layers = self.root / "layers"
        self.owners = self.root / "owners"
        self.use = StoreUse(self.root)

    def prepare(self) -> None:
        """Create the folders; an obstacle is one clear error."""
        try:
            for folder in (self.layers, self.owners):
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            _spread(self.layers)
        except OSError as error:
            raise InfrastructureFailure(
                f"The sandbox store '{self.root}' cannot be made: {error.strerror}. "
                "Set BENCHCUBE_STORE to a writable folder."
            ) from error

    def path(self, location: str) -> Path:
        """The path of a location that is not in a volume."""
        return self.root / location.removeprefix("store:")  # an absolute path is not changed

    def location(self, path: Path) -> str:
        """A path as a location: `store:REL` when it is below the store."""
        absolute = path.absolute()
        with contextlib.suppress(ValueError):
            return f"store:{absolute.relative_to(self.root)}"
        return str(absolute)

    def claim(self) -> Owner:
        """A part of the store for this driver, locked until its last process has ended."""
        while True:
            name = secrets.token_hex(6)
            lock = new_lock(self.owners / f"{name}.lock")
            if lock is not None:
                (self.owners / name).mkdir()
                _spread(self.owners / name)
                return Owner(name, lock)

    def abandoned(self) -> list[Owner]:
        """Parts whose driver is gone, proven by their free locks; the caller removes them, then calls `forget`."""
        found = []
        for path in sorted(self.owners.glob("*.lock")):
            lock = free_lock(path)
            if lock is not None:
                found.append(Owner(path.stem, lock))
        return found

    def forget(self, owner: Owner) -> None:
        """Give up a part whose folder is gone."""
        with contextlib.suppress(FileNotFoundError):
            (self.owners / f"{owner.name}.lock").unlink()
        os.close(owner.lock)


def _spread(folder: Path) -> None:
    """Have new folders in this one laid out far from each other where the file system knows how.

    They come and go quickly here, and ext4 searches long for a place beside many that were freed a moment ago.
    """
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flags = bytearray(struct.calcsize("l"))
            fcntl.ioctl(fd, _GET_FLAGS, flags)
            fcntl.ioctl(fd, _SET_FLAGS, struct.pack("l", struct.unpack("l", flags)[0] | _TOP_OF_HIERARCHY))
        finally:
            os.close(fd)
