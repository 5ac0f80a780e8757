"""Unused volumes: created in advance, or cleared after use by a sandbox.

Making a file system and mounting it takes longer than starting a sandbox, so the next one of the same size finds its
own ready. Those that are left at the end go with the zygote.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from benchflow.errors import SandboxFailure
from benchflow.sandbox.local.launcher import Launcher, expect, next_message
from benchflow.sandbox.local.layers.sandbox_store import Owner, Store

_MOST: Final = 16
"""How many are kept: of the kinds that were used last."""
_GONE: Final = "The helper process of the local sandbox is gone."


@dataclass(frozen=True, slots=True)
class Kind:
    """What makes volumes alike."""

    size: int
    inodes: int
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Volume:
    """A mounted file system of limited size."""

    name: str
    kind: Kind
    folder: str
    """The location in the store that holds its image."""
    used: tuple[int, int] = (0, 0)
    """Bytes and inodes that it takes when it is empty."""


class Spares:
    """The unused volumes of one driver."""

    def __init__(self, launcher: Launcher, store: Store, owner: Owner) -> None:
        self._launcher = launcher
        self._store = store
        self._owner = owner
        self._waiting: list[tuple[Volume, socket.socket]] = []
        """Oldest first, each with the place where its usage is reported once it is ready."""
        self._number = 0

    async def take(self, kind: Kind) -> Volume:
        """A volume of that kind, from here on the caller's to give back; after an error there is none."""
        found = next((item for item in self._waiting if item[0].kind == kind), None)
        if found is not None:
            self._waiting.remove(found)
        volume, reply = found or self._make(kind)
        try:
            with reply:
                answer, _ = await next_message(reply)
            used = expect(answer, _GONE)["used"]
        except BaseException:
            self._remove(volume)
            raise
        return replace(volume, used=(used[0], used[1]))

    def prepare(self, kind: Kind) -> None:
        """Start creating one for the next sandbox, unless there is one; returns at once."""
        if not self._launcher.gone and all(volume.kind != kind for volume, _ in self._waiting):
            with contextlib.suppress(SandboxFailure):  # reported to the next sandbox that needs one
                self._keep(*self._make(kind))

    def give_back(self, volume: Volume) -> None:
        """Have a volume cleared; nothing may write to it any more. Returns at once."""
        message = {"op": "clear-volume", "empty": volume.used[0], **self._description(volume)}
        with contextlib.suppress(SandboxFailure):  # with the helper went everything
            self._keep(volume, self._launcher.request(message))

    def _keep(self, volume: Volume, reply: socket.socket) -> None:
        self._waiting.append((volume, reply))
        if len(self._waiting) > _MOST:
            oldest, reply = self._waiting.pop(0)
            reply.close()
            self._remove(oldest)

    def close(self) -> None:
        """Wait for none of them any more."""
        while self._waiting:
            self._waiting.pop()[1].close()

    def _remove(self, volume: Volume) -> None:
        if not self._launcher.gone:
            self._launcher.post({"op": "remove", "locations": [volume.folder], "volumes": [volume.name]})

    def _make(self, kind: Kind) -> tuple[Volume, socket.socket]:
        self._number += 1
        part = f"volume-{self._number}"
        folder = self._owner.location(part)
        self._store.path(folder).mkdir()
        volume = Volume(f"{self._owner.name}-{part}", kind, folder)
        return volume, self._launcher.request({"op": "make-volume", **self._description(volume)})

    @staticmethod
    def _description(volume: Volume) -> dict[str, Any]:
        return {"name": volume.name, "image": f"{volume.folder}/image", **asdict(volume.kind)}
