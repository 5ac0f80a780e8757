"""What a container wrote, read from the layer that its engine keeps on this machine: exact, and without the engine.

In an overlay's written layer a character device 0:0 means a deletion, and an opaque folder hides what is below it.
The files are the agent's: nothing is followed, everything is opened by descriptor, and an error is never an absence.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from benchflow.sandbox.engine.container_changes import reported_rights
from benchflow.sandbox.engine.machine.engine_client import EngineClient
from benchflow.sandbox.protocol import Change, ChangeKind

_FORMAT: Final = "{{.State.Pid}} {{json .GraphDriver}}"
_OPAQUE: Final = "trusted.overlay.opaque"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEPTH: Final = 200
"""How many folders deep changes are listed, as deep as the anchor goes."""
_TYPES: Final[Mapping[int, Literal["file", "directory", "symlink", "special"]]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
}


@dataclass(frozen=True, slots=True)
class Layers:
    """The folders of a container's files: the one it writes to, and those below it, top first."""

    written: str
    below: tuple[str, ...]


async def find_layers(client: EngineClient, container: str) -> Layers | None:
    """Where the engine keeps the files of a container; None if they are not here, or not with the same owners."""
    pid, _, answer = (await client.ask("inspect", "--format", _FORMAT, container)).partition(" ")
    return _layers(pid, answer)


def _layers(pid: str, answer: str) -> Layers | None:
    try:
        data = json.loads(answer)["Data"]
        layers = Layers(data["UpperDir"], tuple(data["LowerDir"].split(":")))
        same_owners = Path(f"/proc/{int(pid)}/ns/user").readlink() == Path("/proc/self/ns/user").readlink()
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        return None
    here = all(Path(folder).is_dir() for folder in (layers.written, *layers.below))
    return layers if here and same_owners else None


def written_changes(layers: Layers) -> list[Change]:
    """Everything that was written, also if it is again what it was; an `OSError` if not all of it can be read.

    A folder counts when it is new or was something else, not when something in it changed.
    """
    with ExitStack() as opened:
        top, *below = (_open(opened, folder) for folder in (layers.written, *layers.below))
        return list(_walk(top, below, "", 0, hides=False))


def _walk(top: int, below: Sequence[int], path: str, depth: int, *, hides: bool) -> Iterator[Change]:
    """`hides`: nothing of the layers below is visible in this folder."""
    hides = hides or _is_opaque(top)
    names = sorted(os.listdir(top))
    for name in names:
        full, info, former = f"{path}/{name}", _stat(top, name), _shown(below, name)
        if info is None:
            continue
        if _is_deletion(info):
            if former is not None:
                yield Change(full, "deleted", "file")
            continue
        kind: ChangeKind = "added" if former is None else "changed"
        if not stat.S_ISDIR(info.st_mode):
            yield _change(top, name, full, kind, info)
        elif depth == _DEPTH:  # nothing below it can be judged, so it is not shown as a folder
            yield Change(full, kind, "special")
        else:
            if former is None or not stat.S_ISDIR(former.st_mode):
                yield _change(top, name, full, kind, info)
            with ExitStack() as opened:
                inner = _open(opened, name, top)
                yield from _walk(inner, list(_enter(opened, below, name)), full, depth + 1, hides=hides)
    if hides:
        seen = {name for fd in below for name in os.listdir(fd)} - set(names)  # noqa: PTH208 - by descriptor
        yield from (Change(f"{path}/{name}", "deleted", "file") for name in sorted(seen) if _shown(below, name))


def _change(folder: int, name: str, path: str, kind: ChangeKind, info: os.stat_result) -> Change:
    type_ = _TYPES.get(stat.S_IFMT(info.st_mode), "special")
    rights = reported_rights(stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, info.st_mtime_ns)
    size = info.st_size if type_ == "file" else 0
    return Change(path, kind, type_, size, os.readlink(name, dir_fd=folder) if type_ == "symlink" else None, rights)


def _shown(layers: Sequence[int], name: str) -> os.stat_result | None:
    """What layers show under a name, top first."""
    for fd in layers:
        info = _stat(fd, name)
        if info is not None:
            return None if _is_deletion(info) else info
    return None


def _enter(opened: ExitStack, layers: Sequence[int], name: str) -> Iterator[int]:
    """The parts of a folder in layers, down to the first that ends it."""
    for fd in layers:
        info = _stat(fd, name)
        if info is None:
            continue
        if not stat.S_ISDIR(info.st_mode):
            return
        inner = _open(opened, name, fd)
        yield inner
        if _is_opaque(inner):
            return


def _open(opened: ExitStack, path: str, folder: int | None = None) -> int:
    fd = os.open(path, _DIRECTORY, dir_fd=folder)
    opened.callback(os.close, fd)
    return fd


def _stat(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None


def _is_deletion(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _is_opaque(folder: int) -> bool:
    return _OPAQUE in os.listxattr(folder) and os.getxattr(folder, _OPAQUE) == b"y"
