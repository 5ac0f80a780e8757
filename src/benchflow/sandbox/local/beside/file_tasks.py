"""File work that needs the zygote's mounts and user ids, done by the worker beside it or a child of that.

A task gets its message and answers through the reply socket. Trees of sandboxes are read and removed by
descriptor, never through a link in them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.inside.layer_seal import is_whole, seal
from benchflow.sandbox.inside.removal import remove_tree
from benchflow.sandbox.local.beside import difference, host_profile, reversion, volumes
from benchflow.sandbox.local.beside.light_copy import copy_light
from benchflow.sandbox.local.inside import messages, rootfs

if TYPE_CHECKING:
    from benchflow.sandbox.local.beside.zygote import Zygote

Task = Callable[[messages.Message, "Zygote"], messages.Message]

_LAST_WORDS: Final = 200
_MOST_PATHS: Final = 100
"""How many places are looked at to find out how much work there is."""
_WORTH_CLEARING: Final = 16 << 20
"""The image of a volume keeps the size it once had."""


def remove(message: messages.Message, zygote: Zygote) -> messages.Message:
    """Remove trees and volumes; those that are gone already are fine."""
    for name in message["volumes"]:
        _unmount_volume(name)
    for location in message["locations"]:
        remove_tree(Path(zygote.plain(location)))
    return {}


def _unmount_volume(name: str) -> None:
    path = f"{rootfs.VOLUMES}/{name}"
    with contextlib.suppress(OSError):
        sc.unmount(path)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def make_volume(message: messages.Message, zygote: Zygote) -> messages.Message:
    """Mount a file system of limited size, with folders in it for a sandbox to write to."""
    name, size, inodes = message["name"], message["size"], message["inodes"]
    plain = f"{rootfs.VOLUMES}/{name}"
    os.mkdir(plain)
    if zygote.identity in ("idmap", "identity"):
        image = Path(zygote.plain(message["image"]))
        volumes.mount_image(plain, image, Path(zygote.plain("store:templates")), size, inodes)
    else:
        volumes.mount_memory(plain, size, inodes)
    for folder in message["folders"]:
        os.makedirs(f"{plain}/{folder}", 0o755)
    return {"used": _used(plain)}


def clear_volume(message: messages.Message, zygote: Zygote) -> messages.Message:
    """Make a volume as it was when it was new; one in which much was written is replaced."""
    plain = f"{rootfs.VOLUMES}/{message['name']}"
    if _used(plain)[0] - message["empty"] > _WORTH_CLEARING:
        _unmount_volume(message["name"])
        with contextlib.suppress(FileNotFoundError):
            os.unlink(zygote.plain(message["image"]))
        return make_volume(message, zygote)
    for name in os.listdir(plain):
        remove_tree(f"{plain}/{name}")
    for folder in message["folders"]:
        os.makedirs(f"{plain}/{folder}", 0o755)
    return {"used": _used(plain)}


def use_of_volume(message: messages.Message, zygote: Zygote) -> messages.Message:
    """Bytes and inodes taken."""
    del zygote
    return {"used": _used(f"{rootfs.VOLUMES}/{message['name']}")}


def _used(path: str) -> list[int]:
    info = os.statvfs(path)
    return [(info.f_blocks - info.f_bfree) * info.f_frsize, info.f_files - info.f_ffree]


def copy(message: messages.Message, zygote: Zygote) -> messages.Message:
    """A copy of a written layer with everything that makes it one; shares blocks where the file system can."""
    source, target = zygote.plain(message["source"]), zygote.plain(message["target"])
    command = ["cp", "-a", "--reflink=auto", "--", source, target]
    done = subprocess.run(command, capture_output=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, check=False)
    if done.returncode:
        remove_tree(Path(target))
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["cp failed"]
        full = any("No space left" in line for line in lines)
        raise OSError(errno.ENOSPC if full else errno.EIO, f"A layer could not be copied: {lines[-1][-_LAST_WORDS:]}")
    return {}


def copy_if_light(message: messages.Message, zygote: Zygote) -> messages.Message:
    """The same, if the layer is small; whether it was."""
    return {"copied": copy_light(zygote.plain(message["source"]), zygote.plain(message["target"]))}


def changes(message: messages.Message, zygote: Zygote) -> messages.Message:
    """The differences of one or more stacks, each a list of written and one of environment layers."""
    records: list[difference.Record] = []
    for stack in message["stacks"]:
        written = [zygote.plain(location) for location in stack["written"]]
        environment = [zygote.plain(location) for location in stack["environment"]]
        skip = frozenset(stack["skip"])
        records.extend(difference.compare(written, environment, prefix=stack["prefix"], skip=skip))
    return {"records": sorted(records)}


def revert(message: messages.Message, zygote: Zygote) -> messages.Message:
    """Make paths of new layers look as in the environments below them."""
    for stack in message["stacks"]:
        written, environment = ([zygote.plain(item) for item in stack[name]] for name in ("written", "environment"))
        reversion.revert(zygote.plain(stack["upper"]), written, environment, stack["paths"])
    return {}


def compose_host(message: messages.Message, zygote: Zygote) -> messages.Message:
    """Write one of the host profile's layers, whole or not at all."""
    target = Path(zygote.plain(message["target"]))
    unfinished = Path(zygote.plain(message["unfinished"]))
    if message["folders"]:
        host_profile.compose_folders(unfinished)
    else:
        host_profile.compose(unfinished, owners=zygote.identity != "single", bare=message["bare"])
    publish(unfinished, target)
    return {}


def publish(unfinished: Path, target: Path) -> None:
    """Give a finished layer its name; another driver may have been faster."""
    seal(str(unfinished))
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        remove_tree(unfinished)


def publish_layer(message: messages.Message, zygote: Zygote) -> messages.Message:
    """`publish` for a layer that a sandbox wrote."""
    publish(Path(zygote.plain(message["source"])), Path(zygote.plain(message["target"])))
    return {}


def check_layer(message: messages.Message, zygote: Zygote) -> messages.Message:
    """Whether a layer is there as it was published."""
    return {"whole": is_whole(zygote.plain(message["location"]))}


TASKS: Final[Mapping[str, Task]] = {
    "remove": remove,
    "make-volume": make_volume,
    "clear-volume": clear_volume,
    "use-of-volume": use_of_volume,
    "copy": copy,
    "copy-if-light": copy_if_light,
    "changes": changes,
    "revert": revert,
    "compose-host": compose_host,
    "publish-layer": publish_layer,
    "check-layer": check_layer,
}


def trees_of(message: messages.Message, zygote: Zygote) -> list[str] | None:
    """The trees whose size says how long a task takes; None where it takes long for other reasons."""
    match message["op"]:
        case "use-of-volume" | "check-layer" | "copy-if-light":
            return []
        case "clear-volume":
            return [f"{rootfs.VOLUMES}/{message['name']}"]
        case "remove":
            return [zygote.plain(location) for location in message["locations"]]
        case "changes":
            return [zygote.plain(location) for stack in message["stacks"] for location in stack["written"]]
        case "revert":
            return _reverted(message, zygote)
        case _:
            return None


def _reverted(message: messages.Message, zygote: Zygote) -> list[str] | None:
    """What a reversion may have to copy: the environment's entries at the paths."""
    places = [
        zygote.plain(location) + path
        for stack in message["stacks"]
        for location in stack["environment"]
        for path in itertools.islice(stack["paths"], _MOST_PATHS + 1)
    ]
    return places if len(places) <= _MOST_PATHS else None
