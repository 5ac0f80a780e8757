"""Downloads of blobs: hashed while they arrive, continued where a connection broke, kept over interruptions."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
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
    not what its digest says is an `EnvironmentFailure`, and the file is gone.
    """
    part = _Part(blob, path, on_bytes)
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
    part.verify()


def _fetch(client: RegistryClient, part: _Part, stop: threading.Event) -> None:
    """One request for what is missing, until it ends."""
    headers = {"Range": f"bytes={part.size}-"} if part.size else {}
    with client.open(f"blobs/{part.blob.digest}", headers) as answer:
        if part.size and not _continues(answer.status, answer.headers.get("Content-Range", ""), part.size):
            part.restart()
        with part.path.open("ab") as file:
            while data := answer.read(_CHUNK):
                if stop.is_set():
                    raise Stopped
                file.write(data)
                part.add(data)


def _continues(status: int, content_range: str, size: int) -> bool:
    match = re.match(r"bytes (\d+)-", content_range)
    return status == 206 and match is not None and int(match[1]) == size


class _Part:
    """What there is of a blob."""

    def __init__(self, blob: Descriptor, path: Path, on_bytes: Callable[[int], None]) -> None:
        self.blob = blob
        self.path = path
        self._on_bytes = on_bytes
        self.size = 0
        self._hash = hashlib.sha256()
        path.touch()
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                self._count(data)
        if self.size > blob.size:
            self.restart()

    def add(self, data: bytes) -> None:
        self._count(data)
        if self.size > self.blob.size:
            self.path.unlink()
            raise invalid(
                f"the blob {self.blob.digest} is longer than the {self.blob.size} bytes its manifest declares"
            )

    def _count(self, data: bytes) -> None:
        self.size += len(data)
        self._hash.update(data)
        self._on_bytes(len(data))

    def restart(self) -> None:
        """Forget what there is: it is not the beginning of the blob, or the server cannot continue."""
        self._on_bytes(-self.size)
        self.size, self._hash = 0, hashlib.sha256()
        self.path.write_bytes(b"")

    def verify(self) -> None:
        if f"sha256:{self._hash.hexdigest()}" != self.blob.digest:
            self.path.unlink()
            raise invalid(f"the blob {self.blob.digest} does not match its digest")
