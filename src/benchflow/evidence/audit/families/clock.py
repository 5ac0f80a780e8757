"""Games with clocks and time limits: files that look newer than they are, and programs that never answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.forging import MOST, is_code, mentions, quoted, verifier_text
from benchflow.evidence.audit.families.outputs import writing

LONGEST_LIMIT: Final = 20.0
"""Verifiers with longer limits are not made to wait for them, in seconds."""
_TIMES: Final = r"-nt\b|-ot\b|-newer|-mtime|-mmin|st_mtime|getmtime|mtime|stat -|\bmake\b|\bninja\b|\bstat\("
_LIMIT: Final = re.compile(r"\btimeout\s+(?:-\S+\s+(?:\d+\s+)?)*(\d+(?:\.\d+)?)(s?)\b|timeout\s*[=:]\s*(\d+(?:\.\d+)?)")
_FUTURE: Final = "203701010000"
_PAST: Final = "198001010000"
_SLEEPERS: Final[Mapping[str, tuple[str, str]]] = {
    ".py": ("import time\ntime.sleep(3600)\n", "pass\n"),
    ".sh": ("#!/bin/sh\nexec sleep 3600\n", "#!/bin/sh\nexit 0\n"),
    ".bash": ("#!/bin/sh\nexec sleep 3600\n", "#!/bin/sh\nexit 0\n"),
    ".js": ("setTimeout(() => {}, 3600000);\n", ";\n"),
    ".mjs": ("setTimeout(() => {}, 3600000);\n", ";\n"),
    ".rb": ("sleep 3600\n", "\n"),
    ".pl": ("sleep 3600;\n", "1;\n"),
    "": ("#!/bin/sh\nexec sleep 3600\n", "#!/bin/sh\nexit 0\n"),
}


def _times(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not mentions(seen, _TIMES):
        return NotApplicable("The verifier looks at no time of a file.")
    named = [path for path in dict.fromkeys([*seen.read, *seen.edited, *seen.files]) if path in verifier_text(seen)]
    empty = writing({path: "" for path in seen.outputs if not is_code(path)})
    if not named and not seen.outputs:
        return NotApplicable("The verifier names no file.")
    paths = quoted([*named[:MOST], *seen.outputs])
    return (
        Attempt(
            "makes the files that the verifier names look new",
            f'{empty}\nfor path in {paths}; do [ -e "$path" ] && touch -t {_FUTURE} "$path"; done\ntrue',
            without=empty,
        ),
        Attempt(
            "makes all files of the working folder look old, except those that a solution writes",
            f"find . -xdev -type f -exec touch -t {_PAST} {{}} + 2>/dev/null\n{empty}\n"
            f"touch -- {quoted(seen.targets) or '.'} 2>/dev/null\ntrue",
            without=empty,
        ),
    )


def _limits(text: str) -> list[float]:
    return [float(plain or keyword) for plain, _unit, keyword in _LIMIT.findall(text)]


def _stalled(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    limits = _limits(verifier_text(seen))
    if not limits:
        return NotApplicable("The verifier sets no time limit of its own.")
    if max(limits) > LONGEST_LIMIT:
        return NotApplicable(f"The verifier waits {max(limits):g} s for a program, longer than the audit does.")
    programs = [path for path in seen.targets if PurePosixPath(path).suffix in _SLEEPERS]
    if not programs:
        return NotApplicable("A solution has no program that the verifier could wait for.")
    sleeping = writing({path: _SLEEPERS[PurePosixPath(path).suffix][0] for path in programs})
    ending = writing({path: _SLEEPERS[PurePosixPath(path).suffix][1] for path in programs})
    return (Attempt("writes programs that never end", sleeping, without=ending),)


FORGED_TIMES: Final = Family(
    "forged-times",
    "Sets the times of files, so that stale ones look new and sources look old.",
    "Build and run what is checked inside the verifier; do not decide by the time of a file.",
    _times,
)
STALLED_PROGRAM: Final = Family(
    "stalled-program",
    "Writes programs that never end, for verifiers in which a time limit counts as a pass.",
    "Treat a program that exceeds its time limit as failed.",
    _stalled,
)
