"""Downloads of blobs: hashed while they arrive, continued where a connection broke, kept over interruptions."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.distribution.manifests import Descriptor, invalid
from benchflow.sandbox.images.distribution.registry_client import NETWORK_ERRORS, RegistryClient

_CHUNK: Final = 1 << 18
_FRUITLESS: Final = 4
"""How often in a row a connection may bring nothing."""
_PAUSE_SEC: Final = 0.2


class Stopped(Exception):
    """The download was given up because nobody waits for it any more."""


class _NotWritten(Exception):
    """The file could not be written, which must not pass for an error of the network."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error: Final = error


def download(
    client: RegistryClient,
    blob: Descriptor,
    path: Path,
    *,
    on_bytes: Callable[[int], None],
    stop: threading.Event,
) -> None:
    """Put the blob into the file `path`, which may hold its beginning.

    `on_bytes` is called with what arrived, and with a negative number for what has to be fetched again. A blob that is
    not what its digest says is an `EnvironmentFailure`, and the file is gone. A file that cannot be written is an
    `OSError`.
    """
    with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
        part = _Part(blob, path, file, on_bytes)
        try:
            _complete(client, part, stop)
        except _NotWritten as failed:
            raise failed.error from None
        part.verify()


def _complete(client: RegistryClient, part: _Part, stop: threading.Event) -> None:
    """Ask for what is missing until there is nothing left, or nothing more comes."""
    blob = part.blob
    fruitless = 0
    while part.size < blob.size:
        before = part.size
        try:
            _fetch(client, part, stop)
            cause: Exception | None = None
        except HTTPError as error:
            error.close()
            if error.code != 416:  # the range is refused: start again
                raise
            cause = error
            part.restart()
        except NETWORK_ERRORS as error:
            cause = error
        if part.size >= blob.size:
            break
        fruitless = 0 if part.size > before else fruitless + 1
        if fruitless == _FRUITLESS:
            why = f" ({cause})" if cause else ""
            message = (
                f"The download of the blob {blob.digest} from {client.registry} was cut{why}; try again to continue it."
            )
            raise EnvironmentFailure(message, code="pull-interrupted") from cause
        if stop.wait(_PAUSE_SEC * fruitless):
            raise Stopped


def _fetch(client: RegistryClient, part: _Part, stop: threading.Event) -> None:
    """One request for what is missing, until it ends."""
    headers = {"Range": f"bytes={part.size}-"} if part.size else {}
    with client.open(f"blobs/{part.blob.digest}", headers) as answer:
        if part.size and not _continues(answer.status, answer.headers.get("Content-Range", ""), part.size):
            part.restart()
        part.rewind()
        while data := answer.read(_CHUNK):
            if stop.is_set():
                raise Stopped
            part.add(data)


def _continues(status: int, content_range: str, size: int) -> bool:
    match = re.match(r"bytes (\d+)-", content_range)
    return status == 206 and match is not None and int(match[1]) == size


class _Part:
    """What there is of a blob."""

    def __init__(self, blob: Descriptor, path: Path, file: FileIO, on_bytes: Callable[[int], None]) -> None:
        self.blob = blob
        self._path = path
        self._file = file
        self._on_bytes = on_bytes
        self.size = 0
        """Bytes at the beginning of the file that are hashed; what follows them is of no use."""
        self._hash = hashlib.sha256()
        while data := file.read(1 << 20):
            self._count(data)
        if self.size > blob.size:
            self.restart()

    def rewind(self) -> None:
        """Continue after the bytes that are hashed, whatever an attempt that failed left behind them."""
        with _writing():
            self._file.seek(self.size)
            self._file.truncate()

    def add(self, data: bytes) -> None:
        if self.size + len(data) > self.blob.size:
            self._path.unlink()
            raise invalid(
                f"the blob {self.blob.digest} is longer than the {self.blob.size} bytes its manifest declares"
            )
        rest = memoryview(data)
        with _writing():
            while rest:
                rest = rest[self._file.write(rest) :]
        self._count(data)

    def _count(self, data: bytes) -> None:
        self.size += len(data)
        self._hash.update(data)
        self._on_bytes(len(data))

    def restart(self) -> None:
        """Forget what there is: it is not the beginning of the blob, or the server cannot continue."""
        self._on_bytes(-self.size)
        self.size, self._hash = 0, hashlib.sha256()

    def verify(self) -> None:
        if f"sha256:{self._hash.hexdigest()}" != self.blob.digest:
            self._path.unlink()
            raise invalid(f"the blob {self.blob.digest} does not match its digest")


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _NotWritten(error) from error
