"""The files of one sandbox: an environment, layers that are done, and one layer that is written to.

A fork freezes the written layer, shares it, and gives each side a new one on top, so its cost does not depend on the
amount written. Layers are reference-counted; the last user removes them.

A layer of limited size is in a volume. Making a file system and mounting it takes longer than starting a sandbox, so
volumes are created in advance or cleared after use (`Spares`). Those that are left at the end go with the zygote.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchflow.errors import SandboxFailure, UnsupportedError
from benchflow.sandbox.local.beside import host_profile
from benchflow.sandbox.local.inside.messages import Overlay
from benchflow.sandbox.local.layers.sandbox_store import Owner, Store
from benchflow.sandbox.local.link import HELPER_GONE, Launcher, expect, next_message
from benchflow.sandbox.protocol import Limits

if TYPE_CHECKING:
    from benchflow.sandbox.local.beside.difference import Record

_MEGABYTE: Final = 1 << 20
_MOST: Final = 16
"""How many unused volumes are kept: of the kinds that were used last."""


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
            used = expect(answer, HELPER_GONE)["used"]
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


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a running backend offers to its sandboxes."""

    store: Store
    owner: Owner
    launcher: Launcher
    spares: Spares


@dataclass(slots=True)
class Layer:
    """A layer that a sandbox wrote, and what there is to remove with it."""

    location: str
    folder: str
    volume: Volume | None = None
    used: tuple[int, int] | None = None
    """Bytes and inodes that it uses of its volume, once measured."""
    users: int = 1


@dataclass(frozen=True, slots=True)
class Environment:
    """The layers below everything a sandbox writes, as locations, top first."""

    layers: tuple[str, ...]
    host: str | None = None
    """The host profile's own layer where the machine's userland is the base."""
    folders: str | None = None
    """Empty folders over those that are used in place, for a root that owns none of them otherwise."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Where overlays are mounted."""
        return ("/", *host_profile.IN_PLACE) if self.host else ("/",)

    def lowers(self, target: str, store: Store) -> list[str]:
        """The environment's part of the overlay at `target`."""
        if target == "/":
            return [*self.layers, *([self.host] if self.host else [])]
        found = [f"{layer}{target}" for layer in self.layers]
        own = [f"{self.folders}{target}"] if self.folders else []
        changed = f"{self.host}{target}"
        return [*(location for location in (*found, changed) if store.path(location).is_dir()), *own, target]


@dataclass(slots=True)
class Files:
    """What one sandbox holds."""

    runtime: Runtime
    environment: Environment
    limits: Limits
    done: tuple[Layer, ...] = ()
    """Written and finished, top first."""
    current: Layer | None = None
    kept: bool = False
    """The written layer belongs to the caller and stays."""
    kind: Kind | None = None
    """The volume that is written to, where there are limits."""
    inherited: int = 0
    """How many of the lowest `done` layers others wrote: they do not count for the limits here."""
    _finished: Layer | None = None
    """The topmost of `done` where this sandbox wrote it last."""
    tree: Path | None = None
    """A folder of the caller's that lies over everything but what is written."""
    _reverted: str = ""
    """The layer below that folder that hides what is reverted: in the written one it would hide the folder too."""
    _number: int = field(default=0)

    async def open(self, name: str, upper: Path | None = None) -> tuple[Overlay, ...]:
        """A new layer to write to; returns the mounts of the stack."""
        works = [f"w{number}" for number in range(len(self.environment.targets))]
        if self.limits.storage_mb is not None or self.limits.inodes is not None:
            tops = ("u", "r") if self.tree is not None else ("u",)
            uppers = [f"{top}{target.rstrip('/')}" for top in tops for target in self.environment.targets]
            self.kind = Kind(*await self._room(), (*uppers, *works))
            volume = await self.runtime.spares.take(self.kind)
            self.current = Layer(f"volume:{volume.name}/u", volume.folder, volume)
            base = f"volume:{volume.name}"
        else:
            base = self._make_folders(name, works, upper)
        self._finished = None
        self._reverted = f"{base}/r" if self.tree is not None else ""
        self.kept = upper is not None
        top = self._current().location
        return tuple(
            Overlay(target, tuple(self._lowers(target)), f"{top}{target.rstrip('/')}", f"{base}/{work}")
            for target, work in zip(self.environment.targets, works, strict=True)
        )

    def _lowers(self, target: str) -> list[str]:
        place = target.rstrip("/")
        laid = [f"{self.tree}{place}"] if self.tree is not None and (self.tree / place[1:]).is_dir() else []
        reverted = [f"{self._reverted}{place}"] if self._reverted else []
        done = [f"{layer.location}{place}" for layer in self.done]
        return [*laid, *reverted, *done, *self.environment.lowers(target, self.runtime.store)]

    def _make_folders(self, name: str, works: list[str], upper: Path | None) -> str:
        """A folder of the store to write to, or a layer in `upper`; gives the location of the work folders."""
        self._number += 1
        store = self.runtime.store
        folder = self.runtime.owner.location(f"{name}-{self._number}")
        store.path(folder).mkdir()
        top = upper or store.path(f"{folder}/u")
        self.current = Layer(store.location(top), folder)
        for target in self.environment.targets:
            (top / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
            if self.tree is not None:
                store.path(f"{folder}/r{target.rstrip('/')}").mkdir(parents=True, exist_ok=True)
        for work in works:
            store.path(f"{folder}/{work}").mkdir()
        return folder

    def prepare_next(self) -> None:
        """Have the file system made for the next sandbox like this one."""
        if self.kind is not None:
            self.runtime.spares.prepare(self.kind)

    async def _room(self) -> tuple[int, int]:
        """The rest of the limits after its own frozen layers; 0 inodes means no limit on inodes."""
        own = [await self._measure(layer) for layer in self.done[: len(self.done) - self.inherited]]
        if self.limits.storage_mb is not None:
            size = self.limits.storage_mb * _MEGABYTE
        else:  # a size that does not change with every file on the disk
            size = 1 << (shutil.disk_usage(self.runtime.store.root).free.bit_length() - 1)
        inodes = self.limits.inodes or 0
        used_bytes, used_inodes = (sum(used[part] for used in own) for part in (0, 1))
        return _left(size, used_bytes, _MEGABYTE), _left(inodes, used_inodes, 16) if inodes else 0

    def finish_current(self) -> None:
        """Freeze the written layer; nothing may write to it while it is shared."""
        self._finished = self._current()
        self.done = (self._finished, *self.done)
        self.current = None

    def resume(self) -> bool:
        """Write to the layer again that was finished last, unless somebody else uses it; tells whether that is so."""
        layer = self._finished
        if layer is None or layer.users > 1:
            return False
        self.current, self.done, self._finished = layer, self.done[1:], None
        layer.used = None
        return True

    async def _measure(self, layer: Layer) -> tuple[int, int]:
        volume = layer.volume
        if volume is None:
            return (0, 0)
        if layer.used is None:
            used = (await self.runtime.launcher.task({"op": "use-of-volume", "name": volume.name}))["used"]
            layer.used = (used[0] - volume.used[0], used[1] - volume.used[1])
        return layer.used

    async def copy_current(self, name: str) -> tuple[Layer, ...]:
        """A copy of the written layer on top of shared ones, for someone else to build on."""
        light = await self.copy_if_light(name)
        if light is not None:
            return light
        copied = self._copied(name)
        message = {"op": "copy", "source": self._current().location, "target": copied.location}
        await self.runtime.launcher.task(message)
        return (copied, *share(self.done))

    async def copy_if_light(self, name: str) -> tuple[Layer, ...] | None:
        """The same, if the written layer is small; None if it is not."""
        copied = self._copied(name)
        message = {"op": "copy-if-light", "source": self._current().location, "target": copied.location}
        answer = await self.runtime.launcher.task(message)
        return (copied, *share(self.done)) if answer["copied"] else None

    def _copied(self, name: str) -> Layer:
        folder = self.runtime.owner.location(name)
        self.runtime.store.path(folder).mkdir(exist_ok=True)
        return Layer(f"{folder}/u", folder)

    async def revert(self, paths: Iterable[str]) -> None:
        """Make `paths` look as in the environment; the layer to write to is open and nothing runs on it yet."""
        targets = sorted(self.environment.targets, key=len, reverse=True)
        below: dict[str, list[str]] = {}
        for path in paths:
            target = next(item for item in targets if item == "/" or path == item or path.startswith(f"{item}/"))
            below.setdefault(target, []).append(path[len(target.rstrip("/")) :])
        stacks = [
            {
                "upper": f"{self._reverted or self._current().location}{target.rstrip('/')}",
                "written": [f"{layer.location}{target.rstrip('/')}" for layer in self.done],
                "environment": self.environment.lowers(target, self.runtime.store),
                "paths": found,
            }
            for target, found in below.items()
        ]
        if stacks:
            await self.runtime.launcher.task({"op": "revert", "stacks": stacks})

    async def changes(self, *, finished: bool = False) -> list[Record]:
        """Every difference to the environment; of `finished` layers only."""
        current = (self.current,) if self.current and not finished else ()
        reverted = (self._reverted,) if self._reverted and not finished else ()
        written = [*(layer.location for layer in current), *reverted, *(layer.location for layer in self.done)]
        targets = self.environment.targets
        stacks: list[dict[str, Any]] = [
            {
                "written": [f"{location}{target.rstrip('/')}" for location in written],
                "environment": self.environment.lowers(target, self.runtime.store),
                "prefix": target.rstrip("/"),
                "skip": [other for other in targets if other != target and target == "/"],
            }
            for target in targets
        ]
        answer = await self.runtime.launcher.task({"op": "changes", "stacks": stacks})
        return [(*item[:5], tuple(item[5])) for item in answer["records"]]

    def release(self) -> None:
        """Release every layer; unused layers are removed."""
        layers = (*((self.current,) if self.current else ()), *self.done)
        self.current, self.done = None, ()
        release(self.runtime, layers)

    def _current(self) -> Layer:
        if self.current is None:
            raise UnsupportedError("The sandbox is not running.", code="sandbox-gone")
        return self.current


def share(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Count one more user of each layer."""
    for layer in layers:
        layer.users += 1
    return tuple(layers)


def release(runtime: Runtime, layers: Sequence[Layer]) -> None:
    """Release one reference of each layer; unused ones are removed in the background."""
    unused = []
    for layer in layers:
        layer.users -= 1
        if layer.users == 0 and layer.volume:
            runtime.spares.give_back(layer.volume)
        elif layer.users == 0:
            unused.append(layer.folder)
    if unused and not runtime.launcher.gone:  # with it went everything
        runtime.launcher.post({"op": "remove", "locations": unused, "volumes": []})


def _left(limit: int, used: int, smallest: int) -> int:
    """What is left of a limit, in sixteenths of it and rounded up: file systems of the same size share a template."""
    step = max(limit // 16, 1)
    return max(smallest, min(limit, -(-(limit - used) // step) * step))
