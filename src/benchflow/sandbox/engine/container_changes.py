"""What an engine says about changed files, brought into the protocol's form, and notes of it that outlive a snapshot.

Engines list folders as changed because something in them changed; those are left out. A fork is compared with the
image it came from, so its own list is laid over the list of its origin.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from benchflow.errors import SandboxFailure
from benchflow.files import write_atomic
from benchflow.files.path_set import PathSet
from benchflow.sandbox.engine.box.file_records import Record
from benchflow.sandbox.protocol import Change, ChangeKind, Rights

_KINDS: Final[Mapping[str, ChangeKind]] = {"A": "added", "C": "changed", "D": "deleted"}
_TYPES: Final[Mapping[str, Literal["file", "directory", "symlink", "special"]]] = {
    "f": "file",
    "d": "directory",
    "l": "symlink",
}
_ENGINE_PATHS: Final = frozenset(
    {"/.dockerenv", "/run/.containerenv", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/mtab"}
)
_ILLEGIBLE: Final = "\N{REPLACEMENT CHARACTER}"
"""What an engine writes in place of a name that is not text; what is there cannot be looked at."""
_ENGINE_FOLDERS: Final = ("/dev", "/proc", "/sys")


def parse_diff(text: str, mounted: Iterable[str] = ()) -> dict[str, ChangeKind]:
    """The lines of `diff` as path and kind, without what the engine itself put there and the `mounted` paths."""
    lines = (line.partition(" ") for line in _lines(text))
    kinds = {path: _KINDS[kind] for kind, _, path in lines if kind in _KINDS and path.startswith("/")}
    return {path: kinds[path] for path in not_of_the_engine(kinds, mounted)}


def not_of_the_engine(paths: Iterable[str], mounted: Iterable[str] = ()) -> list[str]:
    """Those that are neither what an engine puts into every container nor below the `mounted` paths."""
    engines = PathSet((*_ENGINE_FOLDERS, *mounted))
    return [path for path in paths if path not in _ENGINE_PATHS and not engines.covers(path)]


def with_touched(
    kinds: Mapping[str, ChangeKind], touched: Iterable[str], mounted: Iterable[str] = ()
) -> dict[str, ChangeKind]:
    """The engine's list, completed by paths whose files were touched.

    Docker compares sizes and times with the image, and its list lacks a file that has both as before.
    """
    return {**dict.fromkeys(not_of_the_engine(touched, mounted), "changed"), **kinds}


def _lines(text: str) -> list[str]:
    """The lines of `diff`, which writes names as they are: what follows a line feed in a name belongs to it."""
    lines: list[str] = []
    for part in text.split("\n"):
        if part[:1] in _KINDS and part[1:3] == " /":
            lines.append(part)
        elif lines:
            lines[-1] += f"\n{part}"
    if lines:
        lines[-1] = lines[-1].removesuffix("\n")
    return lines


def make_changes(
    kinds: Mapping[str, ChangeKind], records: Iterable[Record], *, same_clock: bool = False
) -> list[Change]:
    """Changes with type and size, sorted by path. A folder counts when it is new, not when something in it is.

    Owners, permissions and times are reported if the times are by the `same_clock` as those of this process.
    """
    known = {record.path: record for record in records}
    found = []
    for path in sorted(kinds):
        kind, record = kinds[path], known.get(path)
        if kind == "deleted":
            found.append(Change(path, "deleted", "file"))
        elif _ILLEGIBLE in path and (record is None or record.type == "-"):
            found.append(Change(path, kind, "special"))
        elif record is not None and record.type != "-" and not (kind == "changed" and record.type == "d"):
            size = record.size if record.type == "f" else 0
            rights = reported_rights(record.mode, record.uid, record.gid, record.mtime_ns)
            type_ = _TYPES.get(record.type, "special")
            found.append(Change(path, kind, type_, size, record.target, rights if same_clock else None))
    return found


def reported_rights(mode: int, uid: int, gid: int, mtime_ns: int) -> Rights:
    """A time that has passed is reported in whole seconds, which engines keep in images: so a file is described alike
    before and after a fork. One in the future is reported as it is: it may still be one when a verifier runs."""
    second = 1_000_000_000
    return Rights(mode, uid, gid, mtime_ns / second if mtime_ns > time.time_ns() else mtime_ns // second)


def lay_over(origin: Mapping[str, ChangeKind], later: Mapping[str, ChangeKind]) -> dict[str, ChangeKind]:
    """What changed since the environment was built, from what changed before a fork and what changed after it."""
    merged = without(origin, (path for path, kind in later.items() if kind == "deleted"))
    for path, kind in later.items():
        before = merged.get(path)
        if kind == "deleted":
            if origin.get(path) != "added":
                merged[path] = "deleted"
        elif before is None:
            merged[path] = kind
        else:
            merged[path] = "added" if before == "added" else "changed"
    return merged


def without(kinds: Mapping[str, ChangeKind], places: Iterable[str]) -> dict[str, ChangeKind]:
    """Those outside of the places."""
    gone = PathSet(places)
    return {path: kind for path, kind in kinds.items() if not gone.covers(path)}


def removable(unwanted: Sequence[Change], mounted: Sequence[str]) -> bool:
    """Whether a container that is already running can be rid of these: all were added, and none is where something is
    mounted, above it or below it."""
    occupied = PathSet((*_ENGINE_FOLDERS, *_ENGINE_PATHS, *mounted))
    places = PathSet(change.path for change in unwanted)
    return (
        all(change.kind == "added" for change in unwanted)
        and not any(occupied.covers(change.path) for change in unwanted)
        and not any(places.covers(path) for path in (*_ENGINE_FOLDERS, *_ENGINE_PATHS, *mounted))
    )


class SnapshotNotes:
    """What was changed before a snapshot or fork was made, for the engine only knows what changed since.

    One small file per image below a folder, written whole; a snapshot outlives the process that made it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, image: str, kinds: Mapping[str, ChangeKind]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path(image), json.dumps(dict(kinds)), sync=False)

    def read(self, image: str) -> dict[str, ChangeKind]:
        try:
            found: dict[str, ChangeKind] = json.loads(self._path(image).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SandboxFailure(
                f"The changes before the snapshot {image[:12]} are unknown on this machine.",
                code="snapshot-unknown",
            ) from None
        return found

    def forget(self, image: str) -> None:
        self._path(image).unlink(missing_ok=True)

    def _path(self, image: str) -> Path:
        return self._folder / f"{image.removeprefix('sha256:')}.json"
