"""What an engine says about changed files, brought into the protocol's form. Pure.

Engines list folders as changed because something in them changed; those are left out. A fork is compared with the image it
came from, so its own list is laid over the list of its origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from benchflow.sandbox.engine.records import Record
from benchflow.sandbox.protocol import Change, ChangeKind

_KINDS: Final[Mapping[str, ChangeKind]] = {"A": "added", "C": "changed", "D": "deleted"}
_TYPES: Final[Mapping[str, Literal["file", "directory", "symlink", "special"]]] = {
    "f": "file",
    "d": "directory",
    "l": "symlink",
}
_ENGINE_PATHS: Final = frozenset(
    {"/.dockerenv", "/run/.containerenv", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/mtab"}
)
_ENGINE_FOLDERS: Final = ("/dev", "/proc", "/sys")


def parse_diff(text: str, mounted: Iterable[str] = ()) -> dict[str, ChangeKind]:
    """The lines of `diff` as path and kind, without what the engine itself put there and the `mounted` paths."""
    ours = tuple(mounted)
    found: dict[str, ChangeKind] = {}
    for line in text.splitlines():
        kind, _, path = line.partition(" ")
        if kind in _KINDS and path.startswith("/") and not _is_engines(path, ours):
            found[path] = _KINDS[kind]
    return found


def make_changes(diff: Mapping[str, ChangeKind], records: Iterable[Record]) -> list[Change]:
    """Changes with type and size, sorted by path. A folder counts when it is new, not when something in it is."""
    known = {record.path: record for record in records}
    found = []
    for path in sorted(diff):
        kind, record = diff[path], known.get(path)
        if kind == "deleted" or record is None or record.type == "-":
            found.append(Change(path, "deleted", "file"))
        elif not (kind == "changed" and record.type == "d"):
            found.append(Change(path, kind, _TYPES.get(record.type, "special"), record.size))
    return found


def lay_over(origin: Iterable[Change], later: Iterable[Change]) -> list[Change]:
    """The changes since the environment was built, from those of the origin and those made after the fork."""
    merged = {change.path: change for change in origin}
    for change in later:
        before = merged.get(change.path)
        if change.kind == "deleted":
            for path in [
                path for path in merged if path == change.path or path.startswith(change.path + "/")
            ]:
                del merged[path]
            if before is None or before.kind != "added":
                merged[change.path] = change
        else:
            kind: ChangeKind = change.kind
            if before is not None:
                kind = "added" if before.kind == "added" else "changed"
            merged[change.path] = Change(change.path, kind, change.type, change.size)
    return [merged[path] for path in sorted(merged)]


def _is_engines(path: str, mounted: tuple[str, ...]) -> bool:
    if path in _ENGINE_PATHS:
        return True
    return any(path == place or path.startswith(place + "/") for place in (*_ENGINE_FOLDERS, *mounted))
