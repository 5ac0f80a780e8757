"""The text of one Office or PDF file, printed by a process of its own: `python -I document_text.py FILE CHARS [PATH…]`.

The caller limits its time. It limits its own memory and what it unpacks, stops after CHARS characters, and exits
with 1 if the file cannot be read. `PATH` are further places of Python packages. Uses the standard library and `pypdf`.
"""

from __future__ import annotations

import resource
import sys
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final
from xml.parsers import expat

OFFICE: Final = {
    ".docx": ("word/document.xml",),
    ".pptx": ("ppt/slides/",),
    ".xlsx": ("xl/sharedStrings.xml", "xl/worksheets/"),
}
_MAX_MEMORY: Final = 1 << 30
_MAX_UNPACKED: Final = 64 << 20
"""Bytes of all parts of a file together."""
_PIECE: Final = 1 << 16


class _Unreadable(Exception):
    """The file is not what its name says, or declares entities."""


def main(words: list[str]) -> int:
    file, chars, *places = words
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    sys.path += places
    path = Path(file)
    try:
        pieces = _pages(path) if path.suffix.lower() == ".pdf" else _words(path, OFFICE[path.suffix.lower()])
        text = _limited(pieces, int(chars), "\n" if path.suffix.lower() == ".pdf" else " ")
    except Exception:  # noqa: BLE001 - boundary: whatever a hostile file makes a reader raise
        return 1
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    return 0


def _limited(pieces: Iterator[str], chars: int, between: str) -> str:
    found: list[str] = []
    for piece in pieces:
        found.append(piece[:chars])
        chars -= len(piece) + len(between)
        if chars <= 0:
            break
    return between.join(found)


def _words(path: Path, parts: tuple[str, ...]) -> Iterator[str]:
    """The text in the XML parts of an archive, piece by piece, until too much was unpacked."""
    left = _MAX_UNPACKED
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.startswith(parts) or not info.filename.endswith(".xml"):
                continue
            found = _Words()
            with archive.open(info) as stream:
                while left > 0 and (data := stream.read(_PIECE)):
                    left -= len(data)
                    yield from found.read(data)
            if left <= 0:
                return
            yield from found.end()


class _Words:
    """Text between tags of one XML document. It keeps no tree: nothing grows with the number of elements."""

    def __init__(self) -> None:
        self._text = ""
        self._found: list[str] = []
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.CharacterDataHandler = self._add
        self._parser.StartElementHandler = lambda *_: self._cut()
        self._parser.EndElementHandler = lambda *_: self._cut()
        self._parser.EntityDeclHandler = self._refuse

    def read(self, data: bytes) -> list[str]:
        self._parser.Parse(data, False)
        found, self._found = self._found, []
        return found

    def end(self) -> list[str]:
        self._parser.Parse(b"", True)
        return self._found

    def _add(self, text: str) -> None:
        self._text += text
        if len(self._text) > _PIECE:  # more than anybody is shown
            self._cut()

    def _cut(self) -> None:
        if self._text.strip():
            self._found.append(self._text)
        self._text = ""

    def _refuse(self, *_: object) -> None:
        raise _Unreadable


def _pages(path: Path) -> Iterator[str]:
    for page in import_module("pypdf").PdfReader(path).pages:
        yield page.extract_text()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
