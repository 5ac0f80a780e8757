"""`workspace.tar.gz` as a reader sees it: what an agent changed, path by path, and the content of a file among it.

The archive is read as data that may be damaged or hostile: nothing is unpacked, and every size is bounded.
"""

from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

MANIFEST: Final = "workspace.json"
FILES: Final = "files"
SCHEMA: Final = "benchcube.workspace.v1"
MOST_LISTED: Final = 5_000
_LONGEST_MANIFEST: Final = 4 << 20
_DAMAGED: Final = (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, UnicodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class KeptPath:
    """One path that an agent changed."""

    path: str
    kind: Literal["file", "folder", "link", "deleted"]
    size: int = 0
    target: str = ""
    """Of a link."""


@dataclass(frozen=True, slots=True)
class KeptWorkspace:
    """What is in an archive."""

    paths: tuple[KeptPath, ...]
    more: bool
    """Whether there are paths that are not listed."""
    problem: str = ""
    """Why it could not be read to its end."""


def list_workspace(archive: Path, most: int = MOST_LISTED) -> KeptWorkspace | None:
    """The paths of an archive in their order; None if there is no archive."""
    found: list[KeptPath] = []
    try:
        for path in _paths(archive):
            if len(found) == most:
                return KeptWorkspace(tuple(found), more=True)
            found.append(path)
    except FileNotFoundError:
        return None
    except _DAMAGED as error:
        return KeptWorkspace(tuple(found), more=False, problem=f"{archive.name} is damaged: {error}")
    return KeptWorkspace(tuple(found), more=False)


def _paths(archive: Path) -> Iterator[KeptPath]:
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            if member.name == MANIFEST and member.size <= _LONGEST_MANIFEST:
                stream = tar.extractfile(member)
                deleted = json.loads(stream.read()).get("deleted", []) if stream is not None else []
                yield from (KeptPath(path, "deleted") for path in deleted if isinstance(path, str))
            elif member.name.startswith(f"{FILES}/"):
                path = member.name.removeprefix(FILES)
                if member.issym():
                    yield KeptPath(path, "link", target=member.linkname)
                else:
                    yield KeptPath(path, "folder" if member.isdir() else "file", member.size)


def read_kept_file(archive: Path, path: str, *, max_bytes: int) -> bytes | None:
    """The beginning of a file in an archive, at most `max_bytes` of it; None if it is not there."""
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                if member.isfile() and member.name == f"{FILES}{path}":
                    stream = tar.extractfile(member)
                    return stream.read(max_bytes) if stream is not None else None
    except _DAMAGED:
        return None
    return None
