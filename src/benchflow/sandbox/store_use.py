"""Who uses what of the store, and since when nobody has.

STORE/leases        locks of what running processes use: layers by name, unfinished work as `tmp/NAME`
STORE/used/LAYER    its time is the last use; it lists the layers that this one was built on
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchflow.errors import InfrastructureFailure
from benchflow.files.locks import Leases

_EVERY_SEC: Final = 600.0
"""How exactly the last use is kept: one system call per layer, and not for every sandbox."""


class StoreUse:
    """What this driver uses of a store; all of it is kept until `close`, or until this object is gone.

    A driver starts sandboxes long after it built their images, so it keeps every layer that it has asked for.
    """

    def __init__(self, root: Path) -> None:
        self.leases: Final = Leases(root / "leases")
        self._folder: Final = root / "used"
        self._noted: dict[str, float] = {}

    async def hold(self, layer: str) -> None:
        """Keep a layer from being removed; whether it is there has to be looked at afterwards."""
        try:
            await self.leases.hold(layer)
        except TimeoutError as error:
            raise InfrastructureFailure(f"{error.strerror}; end that process.", code="store-busy") from error

    def note(self, layer: str, below: Iterable[str] | None = None) -> None:
        """Record that a layer is used, and for a new one what it was built on."""
        now = time.monotonic()
        if below is None and now - self._noted.get(layer, -_EVERY_SEC) < _EVERY_SEC:
            return
        self._noted[layer] = now
        path = self._folder / layer
        with contextlib.suppress(OSError):  # a layer without a record counts as used when it was made
            self._folder.mkdir(exist_ok=True)
            if below is not None:
                path.write_text("".join(f"{name}\n" for name in below))
                return
            try:
                os.utime(path)
            except FileNotFoundError:
                path.touch()

    def last(self, layer: Path) -> float:
        """When a layer was last used, in seconds since the epoch; access times are not to be trusted on most mounts."""
        try:
            return (self._folder / layer.name).stat().st_mtime
        except FileNotFoundError:
            return layer.lstat().st_mtime

    def below(self, layer: str) -> list[str]:
        """The layers that it was built on, as far as they are known."""
        try:
            return (self._folder / layer).read_text().split()
        except FileNotFoundError:
            return []

    def forget(self, layer: str) -> None:
        """The layer is gone."""
        self._noted.pop(layer, None)
        (self._folder / layer).unlink(missing_ok=True)

    def close(self) -> None:
        """Let others remove what was used."""
        self._noted.clear()
        self.leases.close()
