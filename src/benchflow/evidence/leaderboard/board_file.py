"""A leaderboard file: an archive whose index is `leaderboard.json`, opened without trusting anything in it."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final

from benchflow.record.leaderboard_index import Leaderboard, ListedFile, read_leaderboard
from benchflow.task.bundles.bundle_index import Member
from benchflow.task.bundles.canonical_archive import ArchiveFile, ArchiveKind, Place, write_archive
from benchflow.task.bundles.member_paths import clashes, path_problem
from benchflow.task.filemap import printable

INDEX: Final = "leaderboard.json"
INVALID: Final = "leaderboard-invalid"
MAX_MEMBERS: Final = 2_000_000
MAX_MEMBER_BYTES: Final = 16 << 30
MAX_TEXT_BYTES: Final = 1 << 30
"""Of a part that is read at once."""
_CHUNK: Final = 1 << 20
BOARD: Final = ArchiveKind(
    INDEX, "leaderboard file", "leaderboard files", "bench leaderboard export", INVALID, max_index=512 << 20
)


@dataclass(frozen=True)
class BoardFile:
    """An open file whose headers are sound; `changed` compares contents with the index."""

    board: Leaderboard
    archive: ArchiveFile
    places: dict[str, tuple[Place, ListedFile]] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """The digest of the file, as `sha256sum` prints it."""
        return f"sha256:{self.archive.sha256()}"

    def changed(self) -> Iterator[str]:
        """The parts whose content is not what the index states."""
        for path, (place, listed) in self.places.items():
            crc, digest = 0, hashlib.sha256()
            for chunk in self.chunks(path):
                crc = zlib.crc32(chunk, crc)
                digest.update(chunk)
            if crc != place.crc or digest.hexdigest() != listed.sha256:
                yield path

    def chunks(self, path: str) -> Iterator[bytes]:
        place, listed = self.places[path]
        for offset in range(0, listed.bytes, _CHUNK):
            yield self.archive.read(place.start + offset, min(_CHUNK, listed.bytes - offset))

    def text(self, path: str, most: int = MAX_TEXT_BYTES) -> bytes | None:
        """The content of a part; None if the file has none of that name, or one that is too large to be read."""
        if path not in self.places or self.places[path][1].bytes > most:
            return None
        return b"".join(self.chunks(path))

    def copy(self, path: str, stream: BinaryIO) -> None:
        stream.writelines(self.chunks(path))


def open_board(path: Path) -> BoardFile:
    """The leaderboard in a file; raises `UsageError` for anything that is not a sound archive."""
    archive = ArchiveFile(path, BOARD)
    text = archive.index()
    try:
        board = read_leaderboard(text)
    except ValueError as error:
        archive.refuse(printable(f"has a {INDEX} that cannot be read: {error}"))
    problem = _problem(board.files)
    if problem is not None:
        archive.refuse(printable(problem))
    places = archive.places(_members(board.files), len(text))
    return BoardFile(
        board, archive, {file.path: (place, file) for place, file in zip(places, board.files, strict=True)}
    )


def write_board(path: Path, board: Leaderboard, sources: Sequence[bytes | str]) -> str:
    """Write a file atomically; returns its digest."""
    return write_archive(path, INDEX, board.render(), _members(board.files), sources)


def _members(files: Sequence[ListedFile]) -> list[Member]:
    return [Member(file.path, "file", file.bytes, file.sha256) for file in files]


def _problem(files: Sequence[ListedFile]) -> str | None:
    """Why a list of parts is refused, in words that continue a sentence about the file."""
    if len(files) > MAX_MEMBERS:
        return f"has more than {MAX_MEMBERS:,} parts"
    for file in files:
        wrong = path_problem(file.path)
        if wrong is not None:
            return f"has the name {file.path[:200]!r}, which {wrong}"
        if not 0 <= file.bytes <= MAX_MEMBER_BYTES:
            return f"has '{file.path}', whose size of {file.bytes:,} bytes is not allowed"
    names = [file.path for file in files]
    if names != sorted(names):
        return "does not list its parts in order"
    found = clashes([INDEX, *names])
    return None if found is None else f"has names that clash: {found}"
