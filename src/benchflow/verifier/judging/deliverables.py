"""The deliverables of an agent as text for a judge: plain files only, limited in size, in time and in total."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from benchflow.sandbox.host_process import run_process
from benchflow.verifier.judging import document_text

MAX_FILE_BYTES: Final = 50 << 20
MAX_CHARS: Final = 15_000
"""Of one file."""
MAX_TOTAL_CHARS: Final = 600_000
"""Of all files that one prompt shows."""
_LEAST_CHARS: Final = 200
"""Less of a file says nothing: the last files are left out instead."""
_FILE_SEC: Final = 10.0
_ALL_SEC: Final = 60.0
"""How long Office and PDF files may take to read, each and together."""
_TEXT: Final = frozenset({
    "", ".md", ".txt", ".json", ".csv", ".tsv", ".py", ".sh", ".js", ".ts", ".html", ".css", ".xml", ".yaml", ".yml",
    ".toml", ".ini", ".cfg", ".rst", ".tex", ".sql", ".c", ".h", ".cpp", ".go", ".rs", ".java", ".rb", ".log", ".diff",
    ".patch", ".jsonl",
})  # fmt: skip
FOLDERS: Final = ("", "output", "workspace/output")
"""Where deliverables are, below the folder that is judged."""
_DOCUMENTS: Final = frozenset({*document_text.OFFICE, ".pdf"})
_HIDDEN: Final = frozenset({"rubric.json", "rubric.toml"})


@dataclass(frozen=True, slots=True)
class Deliverable:
    """One file as a judge sees it."""

    name: str
    text: str
    truncated: bool = False


async def read_deliverables(folder: Path) -> list[Deliverable]:
    """The files of a folder and its output folders, by name; hidden, linked, huge and unreadable ones are left out."""
    until = anyio.current_time() + _ALL_SEC
    found: list[Deliverable] = []
    for path in await anyio.to_thread.run_sync(_files, folder):
        is_document = path.suffix.lower() in _DOCUMENTS
        text = await (_document_text(path, until) if is_document else anyio.to_thread.run_sync(_plain_text, path))
        if text is not None:
            name = path.relative_to(folder).as_posix()
            found.append(Deliverable(name, text[:MAX_CHARS], len(text) > MAX_CHARS))
    return found


def _files(folder: Path) -> list[Path]:
    return list(_found(folder))


def _found(folder: Path) -> Iterator[Path]:
    for part in FOLDERS:
        place = folder / part if part else folder
        if not place.is_dir() or place.is_symlink():
            continue
        for path in sorted(place.iterdir()):
            if path.name.startswith(".") or path.name in _HIDDEN or path.is_symlink() or not path.is_file():
                continue
            if path.stat().st_size <= MAX_FILE_BYTES:
                yield path


def within(deliverables: Sequence[Deliverable], chars: int) -> list[Deliverable]:
    """What of the files fits into so many characters: short ones whole, the longer ones cut to the same length.

    Where that would leave almost nothing of each, the last files are left out, and one more says how many.
    """
    shown = list(deliverables[: max(chars // _LEAST_CHARS, 1)])
    level = _level([len(item.name) + len(item.text) for item in shown], chars)
    cut = [_cut(item, level - len(item.name)) for item in shown]
    if hidden := len(deliverables) - len(shown):
        cut.append(Deliverable("(more)", f"{hidden:,} more files are not shown."))
    return cut


def _level(lengths: Iterable[int], chars: int) -> int:
    """The length to which the longest have to be cut, so that all together have so many characters."""
    ordered = sorted(lengths)
    for number, length in enumerate(ordered):
        share = chars // (len(ordered) - number)
        if length > share:
            return share
        chars -= length
    return ordered[-1] if ordered else 0


def _cut(item: Deliverable, chars: int) -> Deliverable:
    return item if len(item.text) <= chars else replace(item, text=item.text[: max(chars, 0)], truncated=True)


def matching(deliverables: Iterable[Deliverable], wanted: Iterable[str]) -> list[Deliverable]:
    """The files matched by one of the words, by stem or as part of the name; all if no word is given."""
    names = [name.lower() for name in wanted]
    if not names:
        return list(deliverables)
    return [item for item in deliverables if any(_is_named(item.name.lower(), name) for name in names)]


def _is_named(name: str, word: str) -> bool:
    return word in name or Path(name).stem == Path(word).stem


def _plain_text(path: Path) -> str | None:
    if path.suffix.lower() not in _TEXT:
        return None
    with path.open("rb") as stream:
        data = stream.read(4 * MAX_CHARS + 4)
    if b"\0" in data:
        return None
    text = data.decode("utf-8", "replace")
    return _table(text) if path.suffix.lower() == ".csv" else text


def _table(text: str) -> str:
    """Rows with bars between the cells; unchanged if it is not a table."""
    try:
        return "\n".join(" | ".join(row) for row in csv.reader(io.StringIO(text)))
    except csv.Error:
        return text


async def _document_text(path: Path, until: float) -> str | None:
    """The text of an Office or PDF file. One that is not read in time leaves a note, so that a judge knows it exists.

    It is read by a process that is ended when it takes too long: nothing else bounds what a file makes its reader do.
    """
    about = f"{path.suffix[1:].upper()} of {(await anyio.Path(path).stat()).st_size:,} bytes"
    places: list[str] = []
    if path.suffix.lower() == ".pdf":
        found = find_spec("pypdf")
        if found is None or found.origin is None:
            return f"[a {about}; its text needs the package pypdf]"
        places = [str(Path(found.origin).parents[1])]
    left = min(_FILE_SEC, until - anyio.current_time())
    if left > 0:
        words = [sys.executable, "-I", document_text.__file__, str(path), str(MAX_CHARS + 1), *places]
        done = await run_process(words, timeout=left)
        if not done.timed_out:
            return done.stdout.decode("utf-8", "replace") if done.exit_code == 0 else None
    return f"[a {about}; its text could not be read within the time limit]"
