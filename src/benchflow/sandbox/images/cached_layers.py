"""What the store of the local sandbox keeps, and what of it can go.

`entries` lists layers, proofs and measured gains with size and last use; `prunable` selects (pure); `remove` removes
one entry by a rename first, so that nothing is ever half there. Layers go only while no sandbox uses the store.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from benchflow.sandbox.images.filework import FileWork
from benchflow.sandbox.images.image_registry import ImageRegistry
from benchflow.sandbox.images.layer_store import MAPPED, LayerStore

Kind = Literal["images", "layers", "userland", "proofs", "gains"]
KINDS: Final[tuple[Kind, ...]] = ("images", "layers", "userland", "proofs", "gains")
_FILES: Final[dict[str, Kind]] = {"proofs": "proofs", "measured": "gains"}
_OWN: Final = ("host-", "prepared-")


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that can be removed. `images` are layers that a registered image needs; they are never selected."""

    kind: Kind
    path: Path
    size: int
    """Bytes of its files."""
    used: float
    """When it was last used, in seconds since the epoch, as exactly as the file system keeps it."""


def entries(registry: ImageRegistry) -> list[Entry]:
    """Everything in the store, by kind and name."""
    store = registry.store
    keys = {key for record in registry.all() for key in record.layers}
    needed = keys | {f"{key}{MAPPED}" for key in keys}
    found = [_entry(_kind(path.name, needed), path) for path in _listed(store.layers)]
    for folder, kind in _FILES.items():
        found += [_entry(kind, path) for path in _listed(store.root / folder)]
    return sorted(found, key=lambda entry: (KINDS.index(entry.kind), entry.path.name))


def prunable(
    found: Iterable[Entry], *, kinds: Iterable[Kind], before: float | None = None, max_size: int | None = None
) -> list[Entry]:
    """What to remove: entries last used `before` a time, then the least recently used until all fit into `max_size`.

    Without either, every entry of these kinds. Layers of registered images are counted and never selected.
    """
    everything = list(found)
    allowed = set(kinds) - {"images"}
    candidates = sorted((entry for entry in everything if entry.kind in allowed), key=lambda entry: entry.used)
    if before is None and max_size is None:
        return candidates
    chosen = [entry for entry in candidates if before is not None and entry.used < before]
    left = sum(entry.size for entry in everything) - sum(entry.size for entry in chosen)
    for entry in candidates if max_size is not None else ():
        if max_size is None or left <= max_size:
            break
        if entry not in chosen:
            chosen.append(entry)
            left -= entry.size
    return chosen


async def remove(registry: ImageRegistry, entry: Entry) -> None:
    """Remove an entry; one that is already gone is left alone."""
    if entry.kind in ("proofs", "gains"):
        entry.path.unlink(missing_ok=True)
    else:
        mapped = entry.path.name.endswith(MAPPED)
        store = LayerStore(registry.store.root, FileWork(mapped))
        store.prepare()
        await store.remove(entry.path.name.removesuffix(MAPPED))


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _kind(name: str, needed: set[str]) -> Kind:
    if name in needed:
        return "images"
    return "userland" if name.startswith(_OWN) else "layers"


def _entry(kind: Kind, path: Path) -> Entry:
    status = path.lstat()
    used = max(status.st_atime, status.st_mtime)
    return Entry(kind, path, _size(path), used)


def _size(path: Path) -> int:
    """Bytes of files. The time of the folder itself is its last use, so looking into it must not count as one."""
    total = path.lstat().st_size if not path.is_dir() else 0
    for name in _names(path) if path.is_dir() else ():
        place = f"{path}/{name}"
        total += _length(place)
        for folder, _, names in os.walk(place):
            total += sum(_length(f"{folder}/{inner}") for inner in names)
    return total


def _names(folder: Path) -> list[str]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_NOATIME", 0))
    try:
        return os.listdir(descriptor)  # noqa: PTH208 - it is a descriptor
    finally:
        os.close(descriptor)


def _length(path: str) -> int:
    try:
        status = os.lstat(path)
    except OSError:
        return 0  # removed while it was counted
    return 0 if stat.S_ISDIR(status.st_mode) else status.st_size
