"""The deliverables of an agent as text for a judge: limited in size, plain files only."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

MAX_FILE_BYTES: Final = 50 << 20
MAX_CHARS: Final = 15_000
_TEXT: Final = frozenset({
    "", ".md", ".txt", ".json", ".csv", ".tsv", ".py", ".sh", ".js", ".ts", ".html", ".css", ".xml", ".yaml", ".yml",
    ".toml", ".ini", ".cfg", ".rst", ".tex", ".sql", ".c", ".h", ".cpp", ".go", ".rs", ".java", ".rb", ".log", ".diff",
    ".patch", ".jsonl",
})  # fmt: skip
_OFFICE: Final = {
    ".docx": ("word/document.xml",),
    ".pptx": ("ppt/slides/",),
    ".xlsx": ("xl/sharedStrings.xml", "xl/worksheets/"),
}
FOLDERS: Final = ("", "output", "workspace/output")
"""Where deliverables are, below the folder that is judged."""
_HIDDEN: Final = frozenset({"rubric.json", "rubric.toml"})


@dataclass(frozen=True, slots=True)
class Deliverable:
    """One file as a judge sees it."""

    name: str
    text: str
    truncated: bool = False


def read_deliverables(folder: Path) -> list[Deliverable]:
    """The files of a folder and its output folders, by name; hidden, linked, huge and unreadable ones are left out."""
    found: dict[str, Deliverable] = {}
    for part in FOLDERS:
        place = folder / part if part else folder
        if not place.is_dir() or place.is_symlink():
            continue
        for path in sorted(place.iterdir()):
            name = path.relative_to(folder).as_posix()
            if path.name.startswith(".") or path.name in _HIDDEN or path.is_symlink() or not path.is_file():
                continue
            text = _text_of(path)
            if text is not None:
                found[name] = Deliverable(name, text[:MAX_CHARS], len(text) > MAX_CHARS)
    return list(found.values())


def matching(deliverables: Iterable[Deliverable], wanted: Iterable[str]) -> list[Deliverable]:
    """The files matched by one of the words, by stem or as part of the name; all if no word is given."""
    names = [name.lower() for name in wanted]
    if not names:
        return list(deliverables)
    return [item for item in deliverables if any(_is_named(item.name.lower(), name) for name in names)]


def _is_named(name: str, word: str) -> bool:
    return word in name or Path(name).stem == Path(word).stem


def _text_of(path: Path) -> str | None:
    suffix = path.suffix.lower()
    if path.stat().st_size > MAX_FILE_BYTES:
        return None
    if suffix in _OFFICE:
        return _office_text(path, _OFFICE[suffix])
    if suffix == ".pdf":
        return _pdf_text(path)
    if suffix not in _TEXT:
        return None
    with path.open("rb") as stream:
        data = stream.read(4 * MAX_CHARS + 4)
    if b"\0" in data:
        return None
    text = data.decode("utf-8", "replace")
    return _table(text) if suffix == ".csv" else text


def _table(text: str) -> str:
    """Rows with bars between the cells; unchanged if it is not a table."""
    try:
        return "\n".join(" | ".join(row) for row in csv.reader(io.StringIO(text)))
    except csv.Error:
        return text


def _office_text(path: Path, parts: tuple[str, ...]) -> str | None:
    """The text of an Office file, whose parts are XML in an archive; limited as protection against archive bombs."""
    words: list[str] = []
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.filename.startswith(parts) or not info.filename.endswith(".xml"):
                    continue
                with archive.open(info) as stream:
                    data = stream.read(8 << 20)
                if b"<!ENTITY" in data:
                    return None
                nodes = ET.fromstring(data).iter()  # noqa: S314 - bounded above, and without entities
                words += [node.text for node in nodes if node.text and node.text.strip()]
    except (OSError, zipfile.BadZipFile, ET.ParseError, NotImplementedError, RuntimeError):
        return None
    return " ".join(words)


def _pdf_text(path: Path) -> str | None:
    """The text of a PDF if `pypdf` is installed; otherwise only a note, so that a judge knows it exists."""
    try:
        reader = import_module("pypdf").PdfReader
    except ImportError:
        return f"[a PDF of {path.stat().st_size:,} bytes; its text needs the package pypdf]"
    try:
        return "\n".join(page.extract_text() for page in reader(path).pages)
    except Exception:  # noqa: BLE001 - boundary: whatever a hostile file makes the reader raise
        return None
