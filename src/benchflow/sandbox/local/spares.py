"""Volumes made ahead: the next sandbox of the same size finds its file system ready.

One is kept per kind of volume, made while nobody waits for it. Those that are left at the end go with the zygote.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from benchflow.sandbox.local.launcher import Launcher, expect, next_message
from benchflow.sandbox.local.store import Owner, Store

_MOST: Final = 4
"""Kinds of which one is kept; a driver that needs more has its volumes made when they are needed."""
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
    folder: str
    """The location in the store that holds its image."""
    used: tuple[int, int] = (0, 0)


class Spares:
    """The volumes of one driver that nobody uses yet."""

    def __init__(self, launcher: Launcher, store: Store, owner: Owner) -> None:
        self._launcher = launcher
        self._store = store
        self._owner = owner
        self._waiting: dict[Kind, tuple[Volume, socket.socket]] = {}
        self._number = 0

    async def take(self, kind: Kind) -> Volume:
        """A volume of that kind, from here on the caller's to remove; after an error there is none."""
        volume, reply = self._waiting.pop(kind) if kind in self._waiting else self._make(kind)
        try:
            with reply:
                answer, _ = await next_message(reply)
            used = expect(answer, _GONE)["used"]
        except BaseException:
            if not self._launcher.closed:
                self._launcher.post({"op": "remove", "locations": [volume.folder], "volumes": [volume.name]})
            raise
        return Volume(volume.name, volume.folder, (used[0], used[1]))

    def prepare(self, kind: Kind) -> None:
        """Have one made for whoever comes next; returns at once."""
        if not self._launcher.closed and kind not in self._waiting and len(self._waiting) < _MOST:
            self._waiting[kind] = self._make(kind)

    def close(self) -> None:
        """Wait for none of them any more."""
        while self._waiting:
            self._waiting.popitem()[1][1].close()

    def _make(self, kind: Kind) -> tuple[Volume, socket.socket]:
        self._number += 1
        part = f"volume-{self._number}"
        folder = self._owner.location(part)
        self._store.path(folder).mkdir()
        volume = Volume(f"{self._owner.name}-{part}", folder)
        message = {"op": "make-volume", "name": volume.name, "size": kind.size, "inodes": kind.inodes}
        return volume, self._launcher.request({**message, "folders": kind.folders, "image": f"{folder}/image"})
