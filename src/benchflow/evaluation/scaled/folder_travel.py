"""Folders of rollouts on their way from a node to the driver: packed there, compared by digest, unpacked safely here.

What arrives is written under a temporary name and renamed, so that a folder of a job is whole or not there.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Final

import anyio.to_thread

from benchflow.errors import InfrastructureFailure
from benchflow.evaluation.scaled.orders import FolderStream
from benchflow.files import staged_folder
from benchflow.files.scratch import scratch
from benchflow.sandbox.inside.tree_stream import DEEPEST, Intake, Refused, pack, unpack

INLINE_BYTES: Final = 256 << 10
"""Up to this size a folder is part of the answer."""
CHUNK_BYTES: Final = 4 << 20
_DEEPEST: Final = DEEPEST + 50
"""What leaves a sandbox lies a few folders deep in that of its rollout: it must not be too deep for the way back."""
_INTAKE: Final = Intake(max_bytes=1 << 50, max_files=1 << 30, any_links=False, replace=False, deepest=_DEEPEST)
"""Sizes are limited where rollouts collect files, on the node; of links, those that stay inside are kept."""

Fetch = Callable[[int, int], Awaitable[bytes]]
"""So many bytes of a stream from an offset."""


def packed(folder: Path, place: Path) -> FolderStream:
    """The stream of a folder; a large one is left at `place`. Raises `OSError` or `Refused`."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _size(folder) <= INLINE_BYTES:
            buffer = io.BytesIO()
            pack(directory, buffer, deepest=_DEEPEST)
            data = buffer.getvalue()
            return FolderStream(len(data), hashlib.sha256(data).hexdigest(), data)
        with place.open("xb", buffering=1 << 20) as stream:
            pack(directory, stream, deepest=_DEEPEST)
        with place.open("rb", buffering=0) as written:
            return FolderStream(place.stat().st_size, hashlib.file_digest(written, "sha256").hexdigest(), None)
    finally:
        os.close(directory)


class NoRoomHereError(InfrastructureFailure):
    """The disk of the job is full: nothing that nodes do now could be kept."""


async def take_back(folder: Path, stream: FolderStream, fetch: Fetch) -> None:
    """Write a folder that a node has packed. Raises `InfrastructureFailure`, and then there is nothing."""
    try:
        await _take_back(folder, stream, fetch)
    except OSError as error:
        what = error.strerror or str(error)
        message = f"The folder of the rollout {folder.name} cannot be written where it has to arrive: {what}."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoomHereError(message, code="disk-full") from error
        raise InfrastructureFailure(message, code="folder-refused") from error


async def _take_back(folder: Path, stream: FolderStream, fetch: Fetch) -> None:
    if stream.data is not None:
        if hashlib.sha256(stream.data).hexdigest() != stream.sha256:
            raise _damaged(folder, "its digest is wrong")
        _unpack(folder, io.BytesIO(stream.data))
        return
    with scratch("folder-") as place:
        file = place / "stream"
        await _fetch(file, folder, stream, fetch)
        with file.open("rb") as source:
            await anyio.to_thread.run_sync(_unpack, folder, source)


def reader(file: Path) -> Fetch:
    """Fetches from a file of this machine."""

    async def fetch(offset: int, size: int) -> bytes:
        with file.open("rb", buffering=0) as stream:
            stream.seek(offset)
            return stream.read(size)

    return fetch


async def _fetch(file: Path, folder: Path, stream: FolderStream, fetch: Fetch) -> None:
    digest = hashlib.sha256()
    with file.open("xb", buffering=0) as target:
        done = 0
        while done < stream.size:
            part = await fetch(done, CHUNK_BYTES)
            if not part or len(part) > CHUNK_BYTES:
                raise _damaged(folder, f"only {done} of {stream.size} bytes arrived")
            _write(target, part)
            digest.update(part)
            done += len(part)
    if done != stream.size or digest.hexdigest() != stream.sha256:
        raise _damaged(folder, "its digest is wrong")


def _write(target: io.RawIOBase | BinaryIO, part: bytes) -> None:
    view = memoryview(part)
    while view:
        view = view[target.write(view) :]


def _unpack(folder: Path, source: BinaryIO) -> None:
    try:
        with staged_folder(folder, sync=False) as stage:
            directory = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                unpack(directory, source, _INTAKE)
            finally:
                os.close(directory)
    except Refused as error:
        raise _damaged(folder, str(error).rstrip(".")) from error


def _size(folder: Path) -> int:
    """The size of all files and names below a folder, as far as it matters."""
    total = 0
    places = [os.fspath(folder)]
    while places and total <= INLINE_BYTES:
        with os.scandir(places.pop()) as entries:
            for entry in entries:
                total += 32 + len(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    places.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _damaged(folder: Path, reason: str) -> InfrastructureFailure:
    message = f"The folder of the rollout {folder.name} did not arrive whole: {reason}."
    return InfrastructureFailure(message, code="folder-damaged")
