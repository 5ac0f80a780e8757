"""What the store of the local sandbox keeps, and what of it can be removed.

`entries` lists everything with size, last use and whether a running process uses it; `prunable` selects (pure);
`remove` removes one entry unless somebody began to use it in the meantime. So all of it works beside running jobs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, get_args

from benchflow.files.locks import free_lock
from benchflow.sandbox.images.filework import FileWork
from benchflow.sandbox.images.image_registry import ImageRegistry
from benchflow.sandbox.images.layer_store import MAPPED, LayerStore
from benchflow.task.bundles.kept_packages import kept_alone, remove_kept

Kind = Literal["images", "layers", "userland", "proofs", "gains", "downloads", "leftovers", "packages", "repositories"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_FILES: Final[dict[str, Kind]] = {"proofs": "proofs", "measured": "gains", "downloads": "downloads"}
_OWN: Final = ("host-", "prepared-")


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that can be removed. `images` are layers that a registered image needs; they are never selected."""

    kind: Kind
    path: Path
    size: int
    """Bytes of its files."""
    used: float
    """When it was last used, in seconds since the epoch."""
    in_use: bool = False
    """Whether a running process needs it."""
    below: tuple[str, ...] = ()
    """Names of the layers that it was built on: without them it must not be used either."""


def entries(registry: ImageRegistry) -> list[Entry]:
    """Everything in the store, by kind and name; what is removed meanwhile is left out."""
    store = registry.store
    if not store.root.is_dir():
        return []
    store.prepare()
    found = [*_layers(registry), *_leftovers(store)]
    for folder, kind in _FILES.items():
        found += _files(store, store.root / folder, kind)
    found += [*_kept(store, "packages"), *_files(store, store.root / "places", "packages")]
    found += _kept(store, "repositories")
    return sorted(found, key=lambda entry: (KINDS.index(entry.kind), entry.path.name))


def prunable(
    found: Iterable[Entry], *, kinds: Iterable[Kind], before: float | None = None, max_size: int | None = None
) -> list[Entry]:
    """What to remove: entries last used `before` a time, then the least recently used until all fit into `max_size`.

    Without either, every entry of these kinds. With a layer goes everything that was built on it, of any kind: made
    again, the layer may differ. Nothing in use is selected, nor layers of registered images.
    """
    everything = list(found)
    allowed = set(kinds) - {"images"}
    candidates = sorted((entry for entry in everything if entry.kind in allowed), key=lambda entry: entry.used)
    chosen: dict[Path, Entry] = {}
    left = sum(entry.size for entry in everything)
    for entry in candidates:
        old = before is not None and entry.used < before
        too_much = max_size is not None and left > max_size
        if entry.path in chosen or not (old or too_much or (before is None and max_size is None)):
            continue
        together = [entry, *(other for other in everything if entry.path.name in other.below)]
        if any(other.in_use or other.kind == "images" for other in together):
            continue
        for other in together:
            left -= 0 if other.path in chosen else other.size
            chosen[other.path] = other
    # What was built on a layer goes before it: a build that begins meanwhile never finds the one without the other.
    return sorted(chosen.values(), key=lambda entry: -len(entry.below))


async def remove(registry: ImageRegistry, entry: Entry) -> bool:
    """Remove an entry, which may be gone already; false if a process uses it, or an image needs it, by now."""
    store = registry.store
    if entry.kind == "leftovers":
        return await store.remove_leftover(entry.path)
    if entry.kind == "downloads":
        with store.if_free(entry.path.name) as free:
            if free:
                entry.path.unlink(missing_ok=True)
            return free
    if entry.kind in ("proofs", "gains"):
        return _remove_file(entry.path)
    if entry.kind in ("packages", "repositories"):
        return remove_kept(entry.path)
    key = entry.path.name.removesuffix(MAPPED)
    work = FileWork(mapped=entry.path.name.endswith(MAPPED))
    return await LayerStore(store.root, work).remove(key, unless=partial(registry.needs, key))


def _remove_file(path: Path) -> bool:
    if path.suffix != ".lock":
        path.unlink(missing_ok=True)
        return True
    lock = free_lock(path)
    if lock is None:
        return False
    path.unlink(missing_ok=True)
    os.close(lock)
    return True


def _layers(registry: ImageRegistry) -> Iterator[Entry]:
    use = registry.store.use
    keys = registry.layers()
    needed = keys | {f"{key}{MAPPED}" for key in keys}
    for path in sorted(registry.store.layers.iterdir()):
        own: Kind = "userland" if path.name.startswith(_OWN) else "layers"
        with use.leases.alone(path.name) as unused:
            pass
        try:
            used = use.last(path)
        except FileNotFoundError:
            continue
        kind: Kind = "images" if path.name in needed else own
        yield Entry(kind, path, size_of(path), used, not unused, tuple(use.below(path.name)))


def _leftovers(store: LayerStore) -> Iterator[Entry]:
    for path in sorted(store.temporary.iterdir()):
        with store.use.leases.alone(f"tmp/{path.name}") as left:
            pass
        try:
            yield Entry("leftovers", path, size_of(path), path.lstat().st_mtime, not left)
        except FileNotFoundError:
            continue


def _files(store: LayerStore, folder: Path, kind: Kind) -> Iterator[Entry]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            yield Entry(kind, path, status.st_size, status.st_mtime, _is_locked(store, path, kind))


def _kept(store: LayerStore, kind: Kind) -> Iterator[Entry]:
    """Packages and repositories, which are in use together: a process that uses one may use all."""
    folder = store.root / kind
    with kept_alone(folder) as unused:
        pass
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        size = size_of(path) if path.is_dir() else status.st_size
        yield Entry(kind, path, size, status.st_mtime, not unused)


def _is_locked(store: LayerStore, path: Path, kind: Kind) -> bool:
    if kind == "downloads":
        with store.if_free(path.name) as free:
            return not free
    if path.suffix != ".lock":
        return False
    lock = free_lock(path)
    if lock is not None:
        os.close(lock)
    return lock is None


def size_of(path: Path) -> int:
    """Bytes of the files of a layer, as far as they can be read."""
    return sum(_length(f"{folder}/{name}") for folder, _, names in os.walk(path) for name in names)


def _length(path: str) -> int:
    try:
        status = os.lstat(path)
    except OSError:
        return 0  # removed while it was counted
    return 0 if stat.S_ISDIR(status.st_mode) else status.st_size
