"""What was learned of verifiers, by what it depends on, in this process and in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import anyio.to_thread

from benchflow.files.atomic import write_atomic
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.files.user_store import default_store

T = TypeVar("T")
_MOST_BYTES: Final = 64 << 20
_MOST_KNOWN: Final = 64


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """What the programs of a verifier depend on."""

    content_digest: str
    environment: str
    sandbox: str
    rules: str
    step: str | None
    strategy: str
    variables: tuple[tuple[str, str], ...] = field(repr=False)
    """Those of the verifier; only a digest of the whole key is written down."""

    def place(self, folder: Path, suffix: str) -> Path:
        key = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return folder / self.content_digest.removeprefix("sha256:") / f"{key}.{suffix}"


class Remembered(Generic[T]):
    """Values by key. `plain` makes JSON of a value and `read` a value of JSON; a file that is damaged has `nothing`."""

    def __init__(
        self, suffix: str, plain: Callable[[T], Any], read: Callable[[Any], T], nothing: Callable[[], T]
    ) -> None:
        self._suffix: Final = suffix
        self._plain: Final = plain
        self._read: Final = read
        self._nothing: Final = nothing
        self._known: Final[dict[VerifierKey, T]] = {}

    async def recall(self, key: VerifierKey) -> T:
        """What is known; files are read once in a process."""
        if key not in self._known:
            self.remember(key, await anyio.to_thread.run_sync(self._written, key), keep=False)
        return self._known[key]

    def remember(self, key: VerifierKey, value: T, *, keep: bool = True) -> None:
        """Know a value in this process and, if it is to `keep`, in others."""
        self._known[key] = value
        for oldest in list(self._known)[:-_MOST_KNOWN]:
            self._known.pop(oldest, None)
        if not keep:
            return
        with suppress(OSError):  # then the next process learns it again
            place = key.place(_folder(), self._suffix)
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, json.dumps(self._plain(value)))

    def _written(self, key: VerifierKey) -> T:
        place = key.place(_folder(), self._suffix)
        try:
            document = parse_json(read_regular(place, max_bytes=_MOST_BYTES))
            with suppress(OSError):  # `bench cache prune` goes by the last use
                os.utime(place)
            return self._read(document)
        except (OSError, RefusedFileError, StrictJSONError, AttributeError, KeyError, TypeError):
            return self._nothing()


def _folder() -> Path:
    """Beside the proofs of isolation, which are for the same packages and environments."""
    return default_store() / "proofs"
