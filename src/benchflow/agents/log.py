"""Raw output of an agent, kept on this machine: written as it arrives, redacted, up to a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchflow.errors import InfrastructureFailure
from benchflow.files.redaction import Redactor

LOG_LIMIT: Final = 8 << 20
_TAIL: Final = 4096


class OutputLog:
    """One file below `agent/`. Output beyond the limit is dropped; the last line says how much."""

    def __init__(self, path: Path, redactor: Redactor, *, limit: int = LOG_LIMIT) -> None:
        self._path = path
        self._stream = redactor.stream()
        self._room = limit
        self._dropped = 0
        self._tail = b""
        self._problem: OSError | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise self._failure(error) from error

    def write(self, chunk: bytes) -> None:
        """Keep a chunk. Never raises: `close` reports a full disk."""
        self._keep(self._stream.feed(chunk))

    @property
    def tail(self) -> str:
        """The end of the output, redacted, for use in messages."""
        return self._tail.decode(errors="replace")

    @property
    def last_line(self) -> str:
        """The last non-empty line, shortened; empty if there is none."""
        lines = [line.strip() for line in self.tail.splitlines() if line.strip()]
        return lines[-1][-300:] if lines else ""

    def close(self) -> None:
        """Idempotent. Raises `InfrastructureFailure` if output could not be written."""
        if self._file.closed:
            return
        self._keep(self._stream.finish())
        if self._dropped:
            self._put(f"\n[{self._dropped} more bytes were dropped]\n".encode())
        self._file.close()
        if self._problem is not None:
            raise self._failure(self._problem) from self._problem

    def _keep(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_TAIL:]
        kept = data[: self._room]
        self._room -= len(kept)
        self._dropped += len(data) - len(kept)
        self._put(kept)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view and self._problem is None:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._problem = error

    def _failure(self, error: OSError) -> InfrastructureFailure:
        return InfrastructureFailure(
            f"The output of the agent cannot be written to '{self._path}': {error.strerror or error}.",
            code="log-unwritable",
        )
