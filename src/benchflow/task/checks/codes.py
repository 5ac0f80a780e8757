"""Every code that a check can report: what it means and what to do about it.

The documentation page is this table, written out: `python -m benchflow.task.checks.codes >
docs/check-codes.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CheckCode:
    """One kind of problem, by its stable name."""

    code: str
    group: str
    meaning: str
    remedy: str


def _group(title: str, *rows: tuple[str, str, str]) -> tuple[CheckCode, ...]:
    return tuple(CheckCode(code, title, meaning, remedy) for code, meaning, remedy in rows)


_FILES: Final = _group(
    "Files of the package",
    (
        "unreadable",
        "A file or folder of the package cannot be read.",
        "Correct its permissions, or remove it.",
    ),
    (
        "unreadable-folder",
        "A folder above packages cannot be searched, so packages in it may be missing from the report.",
        "Correct its permissions, or name the packages themselves.",
    ),
    (
        "link-escape",
        "A symbolic link points out of the package. It would mean something else on every machine.",
        "Copy the file into the package, or remove the link.",
    ),
    (
        "special-file",
        "A pipe, socket or device lies in the package.",
        "Remove it; create such files in the environment instead.",
    ),
    (
        "bad-file-name",
        "A file's name is not valid UTF-8, so it cannot be written down in a report or an export.",
        "Rename the file.",
    ),
    ("too-large", "A text file is larger than the format allows.", "Move data out of the document."),
    ("too-deep", "Folders or values are nested deeper than the format allows.", "Flatten them."),
    (
        "too-many-files",
        "The package holds more files than a package may.",
        "Ship the data as an archive or image.",
    ),
)
