"""Help, messages and documentation keep to plain English; CONTRIBUTING says what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
THINGS = "job|folder|file|JSON|name|number|text|package|protocol|record|table|version|image|error|link|list"
PHRASES = (
    r"what came of",
    r"\bcame of it\b",
    r"\bmended\b",
    r"\bexists already\b",
    r"\b(is|are) there already\b",
    r"\btook longer than\b",
    r"\btime (is|was) over\b",
    r"\bthat nobody has\b",
    r"\bof a kind to\b",
    r"\bends of (a )?gains?\b",
    rf"(?<!here\s)\b(is|are) no (JSON |whole |plain )?({THINGS})\b",
    r"\b(known|installed|declared|supported|honoured) are\b",
    r"\bthere are: ",
    r"\blets? go of\b",
    r"\bgoes on\b",
    r"\bgo on with\b",
    r"\blives? on\b",
    r"\b(is|are|was|were|be) told\b",
    r"\btrouble\b",
    r"\b[Ww]hoever\b",
    r"\bMost (a|steps|that)\b",
    r"\b[Ee]nds with [012]\b",
    r"\bcan be had\b",
    r"\bfor want of\b",
    r"\bend(s|ed) with (the )?exit code\b",
    r"\b[Tt]here is no (tool|task|action|argument|role|method|route|environment|participant|agent) ['{]",
    r"\bsigns? of life\b",
    r"\bhardly by chance\b",
)
PAGE_PHRASES = (
    r"\b(computed|made|scored) again\b",
    r"\bstrangers?\b",
    r"\b(tasks|agents|environments|cheats|servers?) of (others|your own)\b",
    r"\b(box|sandbox|folder|process|environment|token|network|gateway|server|client)(es|s)? of (its|their|your) own\b",
    r"\bway out of\b",
    r"\bis to blame\b",
    r"\bat one time\b",
    r"\bact(s|ed)? on the verifier\b",
    r"\bsilent\b",
)
"""Also refused on pages, where a reader does not know our own terms."""
FORBIDDEN = re.compile(r"\b(?:" + "|".join(phrase.replace(" ", r"\s+(?:# )?") for phrase in PHRASES) + ")")
ON_PAGES = re.compile(r"\b(?:" + "|".join(phrase.replace(" ", r"\s+") for phrase in PAGE_PHRASES) + ")")
ALLOWED: frozenset[tuple[str, str]] = frozenset()
"""Pairs of file and phrase that are right where they stand."""


def _prose() -> Iterator[Path]:
    yield from sorted((ROOT / "src").rglob("*.py"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from sorted((ROOT / "examples").rglob("*.md"))
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "benchmarks/README.md"))


def _found(text: str, forbidden: re.Pattern[str] = FORBIDDEN) -> Iterator[tuple[int, str]]:
    for match in forbidden.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split())


@pytest.mark.parametrize("text", ["it is no\n    job", "Go on with it", "a package that nobody has"])
def test_a_phrase_of_the_list_is_found_across_lines(text):
    assert list(_found(text.lower()))


def test_no_message_help_or_page_uses_a_phrase_of_the_list():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {phrase}"
        for path in _prose()
        for line, phrase in _found(path.read_text())
        if (str(path.relative_to(ROOT)), phrase) not in ALLOWED
    ]
    assert not found, "CONTRIBUTING.md says what to write instead:\n" + "\n".join(found)


def test_no_page_uses_a_phrase_that_only_we_understand():
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {phrase}"
        for path in pages
        for line, phrase in _found(path.read_text(), ON_PAGES)
    ]
    assert not found, "CONTRIBUTING.md says what to write instead:\n" + "\n".join(found)
