"""What families share that forge what the verifier reads: which files these are. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

from benchflow.evidence.audit.exploit_family import Seen

CODE: Final = frozenset({".bash", ".c", ".cjs", ".cpp", ".go", ".java", ".js", ".mjs", ".pl", ".py", ".R", ".rb"}) | {
    ".rs",
    ".sh",
    ".ts",
}
MOST: Final = 24
NO_TARGETS: Final = "No file is known that a solution would write."


def quoted(paths: Iterable[str]) -> str:
    """Words of the shell."""
    return " ".join(map(shlex.quote, paths))


def overwriting(contents: Mapping[str, str]) -> str:
    """A script that writes texts into files that exist, and leaves their permissions."""
    lines = [
        f"[ -f {shlex.quote(path)} ] && printf %s {shlex.quote(text)} > {shlex.quote(path)}"
        for path, text in contents.items()
    ]
    return "\n".join([*lines, "true"])


def references(seen: Seen) -> list[str]:
    """The files of the environment that the verifier names and that are not part of a solution.

    Of a folder that it names, the files in it.
    """
    solution = {*seen.outputs, *seen.edited}
    found: dict[str, None] = {}
    for path in seen.read:
        inside = [file for file in seen.files if file.startswith(f"{path}/")]
        found.update(dict.fromkeys(inside or [path]))
    return [path for path in found if path not in solution][:MOST]


def is_code(path: str) -> bool:
    return PurePosixPath(path).suffix in CODE


def verifier_text(seen: Seen) -> str:
    """All text of the verifier."""
    return "\n".join(seen.verifier.values())


def mentions(seen: Seen, pattern: str) -> bool:
    """Whether the verifier's text has a match for a regular expression."""
    return re.search(pattern, verifier_text(seen)) is not None
