"""The tests that failed, as far as what a verifier left says: its report (CTRF), or the words of a test runner.

Nothing is guessed: output of a runner that is not known names no failing test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchflow.files.bounded import RefusedFileError, read_regular

CTRF: Final = "ctrf.json"
MAX_REPORT: Final = 8 << 20
_MOST: Final = 100
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_RUNNERS: Final = (
    re.compile(r"^(?:FAILED|ERROR) (?P<name>\S+::\S.*?)(?: - (?P<why>.*))?$", re.MULTILINE),  # pytest
    re.compile(r"^(?:FAIL|ERROR): (?P<name>\w+ \([\w.]+\))(?P<why>)$", re.MULTILINE),  # unittest
    re.compile(r"^\s*--- FAIL: (?P<name>\S+)(?P<why>)", re.MULTILINE),  # go
    re.compile(r"^test (?P<name>\S+) \.\.\. FAILED(?P<why>)$", re.MULTILINE),  # cargo
    re.compile(r"^not ok \d+(?: -)? (?P<name>(?!.*# (?:SKIP|TODO)).+?)(?P<why>)$", re.MULTILINE),  # TAP
    re.compile(r"^\s*[✕✗×] (?P<name>\S.*?)(?: \(\d+ m?s\))?(?P<why>)$", re.MULTILINE),  # jest, mocha, vitest
)


@dataclass(frozen=True, slots=True)
class FailingTest:
    """One test that did not pass."""

    name: str
    message: str = ""
    """Why, in a line; empty if nothing says so."""


def reported_failures(path: Path) -> tuple[FailingTest, ...]:
    """The failing tests of a CTRF report; none if there is no report that can be read."""
    try:
        document = json.loads(read_regular(path, max_bytes=MAX_REPORT))
    except (OSError, RefusedFileError, ValueError, RecursionError):
        return ()
    return tuple(_reported(document))[:_MOST]


def _reported(document: Any) -> Iterator[FailingTest]:
    results = document.get("results") if isinstance(document, dict) else None
    tests = results.get("tests") if isinstance(results, dict) else None
    for test in tests if isinstance(tests, list) else ():
        if isinstance(test, dict) and test.get("status") == "failed" and isinstance(test.get("name"), str):
            said = (test.get(key) for key in ("message", "trace"))
            yield FailingTest(test["name"], next((_last_line(text) for text in said if isinstance(text, str)), ""))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def printed_failures(text: str) -> tuple[FailingTest, ...]:
    """The failing tests that the output of a test runner names."""
    plain = _ANSI.sub("", text)
    for runner in _RUNNERS:
        found = {match["name"].strip(): (match["why"] or "").strip() for match in runner.finditer(plain)}
        if found:
            return tuple(FailingTest(name, why) for name, why in found.items())[:_MOST]
    return ()
