"""Files of JSON lines that grow while something runs: one write per line, so that a kill tears at most the last."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_LINE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class JsonLines:
    """Appends records to one file, which appears with the first."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._descriptor: int | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record at once. Raises `OSError`."""
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o666)
        data = (_LINE.encode(record) + "\n").encode(errors="replace")
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file; lines that are torn or no objects are left out. No file: no records."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        for line in stream:
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record
