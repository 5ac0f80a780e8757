"""Code of the agent that the verifier loads or runs: which files it is, and how a trick gets into it.

A file that exists keeps its text and gets the trick at its end; one that a solution would write is made of a stub,
which answers every name with a function that gives nothing. The stub alone is the state without the trick.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal

from benchflow.evidence.audit.exploit_family import Attempt, Seen
from benchflow.evidence.audit.families.planting import append, put

Language = Literal["python", "node", "shell"]
SUFFIXES: Final[Mapping[str, Language]] = {
    ".py": "python",
    ".js": "node",
    ".cjs": "node",
    ".mjs": "node",
    ".sh": "shell",
    ".bash": "shell",
}
MOST: Final = 12
STUBS: Final[Mapping[Language, str]] = {
    "python": """\
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *given, **named: None
""",
    "node": "",
    "shell": "",
}


@dataclass(frozen=True, slots=True)
class AgentsFile:
    """A file with code of the agent."""

    path: str
    language: Language
    exists: bool


def loaded(seen: Seen) -> tuple[AgentsFile, ...]:
    """The files with code of the agent that the verifier names, imports or runs, the likeliest first."""
    texts = "\n".join(seen.verifier.values())
    named = {path: False for path in (*seen.outputs, *_imported(seen, texts)) if _language(path)}
    there = {path: True for path in (*seen.read, *seen.files) if _language(path) and _is_named(path, texts)}
    there |= {path: True for path in seen.edited if _language(path)}
    both = {**named, **there}
    return tuple(AgentsFile(path, SUFFIXES[PurePosixPath(path).suffix], both[path]) for path in both)[:MOST]


def attempt_inside(seen: Seen, label: str, tricks: Mapping[Language, str]) -> Attempt | None:
    """An attempt that puts a trick into every file of the agent in these languages; None if there is none."""
    files = [file for file in loaded(seen) if file.language in tricks]
    if not files:
        return None
    stubs = [put(shlex.quote(file.path), STUBS[file.language]) for file in files if not file.exists]
    lines = [append(shlex.quote(file.path), tricks[file.language]) for file in files]
    names = ", ".join(PurePosixPath(file.path).name for file in files[:3]) + (", …" if len(files) > 3 else "")
    without = "\n".join(stubs) if stubs else None
    return Attempt(f"{label} ({names})", "\n".join([*stubs, *lines]), without=without)


def _language(path: str) -> bool:
    return PurePosixPath(path).suffix in SUFFIXES


def _is_named(path: str, texts: str) -> bool:
    """Whether texts name a file, by its path, its name or as a module."""
    pure = PurePosixPath(path)
    stem = pure.parent.name if pure.stem in ("__init__", "index") else pure.stem
    name = re.escape(stem)
    module = rf"(?m)^\s*(?:import|from)\s+(?:[\w.]+\.)?{name}\b|(?:require\(|from )\s*['\"][^'\"]*\b{name}"
    return path in texts or (pure.name in texts and pure.stem != "__init__") or re.search(module, texts) is not None


def _imported(seen: Seen, texts: str) -> list[str]:
    """Files of modules that the verifier imports and the oracle writes."""
    wanted = re.findall(r"(?m)^\s*(?:import|from)\s+(\w+)", texts)
    written = "\n".join(seen.oracle.values())
    names = [name for name in dict.fromkeys(wanted) if f"{name}.py" in written]
    paths = [f"{seen.workdir.rstrip('/')}/{name}.py" for name in names]
    return [path for path in paths if path not in seen.files]
