"""Records on disk: documents that are written atomically, and files of JSON lines that grow.

A line is one write, so a kill can damage only the last one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, Final

from benchflow.files.atomic import write_atomic

_JSON: Final = json.JSONEncoder(ensure_ascii=False)
_LINE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class JsonLines:
    """Appends records to one file, which is created with the first."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._descriptor: int | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record at once. Raises `OSError`."""
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o666)
        data = encoded_line(record)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def encoded_line(record: Mapping[str, Any]) -> bytes:
    """A record as one line, with its end."""
    return (_LINE.encode(record) + "\n").encode(errors="replace")


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line that was written to its end, by its number from 1; a torn last one is left out. No file: no lines."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        for number, line in enumerate(stream, 1):
            if line.endswith(b"\n"):
                yield number, line


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, one at a time; lines that are torn or not objects are left out. No file: no records."""
    for _, line in whole_lines(path):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def write_document(path: Path, document: Mapping[str, Any], *, sync: bool = False) -> None:
    """Write a JSON document with one line per key, atomically; its folder is created. Raises `OSError`."""
    encode = _JSON.encode
    lines = [f"  {encode_basestring(key)}: {encode(value)}" for key, value in document.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    try:
        write_atomic(path, text, sync=sync)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text, sync=sync)
