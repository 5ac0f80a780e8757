"""The grammar that `task.md` and `verifier.md` share: frontmatter, then a body with reserved sections.

A section starts at a reserved level-2 heading outside a code fence and ends at the next one. A line that only looks
like such a heading is escaped with a leading backslash; `escape_headings` is the inverse of reading.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from benchflow.errors import PackageError

MAX_TEXT_BYTES: Final = 16 << 20

_HEADING: Final = re.compile(r"(\\*)##[ \t]+(prompt|user-persona|(?:role|scene):[A-Za-z0-9_.-]+)[ \t]*", re.IGNORECASE)
_MAYBE: Final = re.compile(r"^\\*##[ \t]+(?:prompt|user-persona|role:|scene:)", re.IGNORECASE | re.MULTILINE)
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


class MarkdownError(PackageError, ValueError):
    """A file without readable text or without frontmatter; the message continues the sentence `<file> …`."""

    default_code = "missing-frontmatter"


class Frontmatter(NamedTuple):
    """The two halves of a document; `body_line` is the first line of the body."""

    yaml: str
    body: str
    body_line: int


class Section(NamedTuple):
    """A reserved section: its key (`prompt`, `role:planner`), stripped text and the line of its heading."""

    key: str
    text: str
    line: int


class Body(NamedTuple):
    """The parts of a body: the stripped text before the first section, and the sections in order."""

    preamble: str
    sections: tuple[Section, ...]

    def has(self, key: str) -> bool:
        """Whether there is such a section."""
        return any(section.key == key for section in self.sections) if self.sections else False


def decode(data: bytes) -> str:
    """UTF-8 text with LF line endings, without a byte-order mark."""
    if len(data) > MAX_TEXT_BYTES:
        raise MarkdownError(f"is larger than {MAX_TEXT_BYTES >> 20} MiB", code="too-large")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise MarkdownError("is not UTF-8 text", code="not-utf8", line=line) from None
    return normalise(text)


def normalise(text: str) -> str:
    """The text without a byte-order mark and with LF line endings."""
    text = text.removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def split_frontmatter(text: str) -> Frontmatter:
    """Split a normalised text after the line that closes its frontmatter."""
    first, found, _ = text.partition("\n")
    if first.strip() != "---" or not found:
        raise MarkdownError("must start with a '---' line that opens the frontmatter", line=1)
    start = len(first) + 1
    found_at = len(first)
    while (found_at := text.find("\n---", found_at)) >= 0:
        end = text.find("\n", found_at + 4)
        end = len(text) if end < 0 else end
        if not text[found_at + 4 : end].strip(" \t"):
            header = text[start : found_at + 1]
            return Frontmatter(header, text[end + 1 :], header.count("\n") + 3)
        found_at = end
    raise MarkdownError("has no '---' line that closes the frontmatter", code="unclosed-frontmatter", line=1)


def split_sections(body: str, first_line: int = 1) -> Body:
    """Split into preamble and sections; escapes are undone in both."""
    if "##" not in body or not _MAYBE.search(body):
        return Body(body.strip(), ())
    found: list[Section] = []
    key, start = "", first_line
    lines: list[str] = []
    preamble = ""
    for number, line, heading in _scan(body, first_line):
        if heading is None or heading[1]:
            lines.append(line[1:] if heading is not None else line)
            continue
        text = "\n".join(lines).strip()
        if key:
            found.append(Section(key, text, start))
        else:
            preamble = text
        key, start, lines = _section_key(heading[2]), number, []
    text = "\n".join(lines).strip()
    if key:
        found.append(Section(key, text, start))
    else:
        preamble = text
    return Body(preamble, tuple(found))


def escape_headings(text: str) -> str:
    """The text, escaped so that it reads back unchanged from a body or a section."""
    if not _MAYBE.search(text):
        return text
    return "\n".join(line if heading is None else f"\\{line}" for _, line, heading in _scan(text, 1))


def _section_key(heading: str) -> str:
    prefix, colon, name = heading.partition(":")
    return f"{prefix.lower()}{colon}{name}"


def _scan(body: str, first_line: int) -> list[tuple[int, str, re.Match[str] | None]]:
    """Each line with its number and, outside code fences, its reserved heading (escaped or not)."""
    scanned: list[tuple[int, str, re.Match[str] | None]] = []
    fence = ""
    for number, line in enumerate(body.split("\n"), first_line):
        heading = None
        marker = _FENCE.fullmatch(line)
        if fence:
            if marker and marker[1].startswith(fence) and not marker[2].strip():
                fence = ""
        elif marker and not (marker[1][0] == "`" and "`" in marker[2]):
            fence = marker[1]
        else:
            heading = _HEADING.fullmatch(line)
        scanned.append((number, line, heading))
    return scanned
