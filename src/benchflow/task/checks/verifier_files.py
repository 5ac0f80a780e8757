"""Whether the files exist that a verifier needs: the script, rubric, runner or criteria of its strategies.

Pure over the names of the files in the verifier folder. A strategy that another one refers to counts like
the selected one; strategies that nothing selects are judged too, because they are part of what the package
promises.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from benchflow.task.verifier.declared_strategies import LLMJudgeStrategy, RewardKitStrategy, ScriptStrategy, Strategy
from benchflow.task.verifier.verifier_document import VerifierDocument

DEFAULT_SCRIPTS: Final = ("test.sh", "test.bat")
_SCRIPT_SUFFIXES: Final = (".js", ".mjs", ".py", ".rb", ".sh", ".ts")
_QUOTING: Final = re.compile(r"['\"\\#]")
_DYNAMIC: Final = re.compile(r"[$*?\[\]{}`<>|&;()=\s]|://")


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file that a strategy names and the verifier folder lacks; `path` is the key that names it."""

    path: str
    name: str


def missing_files(document: VerifierDocument, files: Collection[str]) -> Iterator[MissingFile]:
    """Files that strategies and rubric name and `files`, relative to the verifier folder, does not hold."""
    for name, strategy in document.strategies.items():
        for key, file in _named_files(strategy):
            if file not in files:
                yield MissingFile(f"verifier.strategies.{name}.{key}", file)
    for key in ("human", "structured"):
        file = getattr(document.rubric.files, key)
        if file is not None and file not in files:
            yield MissingFile(f"verifier.rubric.files.{key}", file)


def _named_files(strategy: Strategy) -> Iterator[tuple[str, str]]:
    if isinstance(strategy, ScriptStrategy):
        for script in local_scripts(strategy.command):
            yield "command", script
    elif isinstance(strategy, RewardKitStrategy):
        yield "entrypoint", f"{strategy.root}/{strategy.entrypoint}"
        if strategy.criteria is not None:
            yield "criteria", strategy.criteria
    elif isinstance(strategy, LLMJudgeStrategy):
        yield "rubric", strategy.rubric
        if strategy.context_file is not None:
            yield "context_file", strategy.context_file


def local_scripts(command: str) -> tuple[str, ...]:
    """The words of a command that name scripts of the verifier folder, which is where it runs.

    Only words that are certain count: a relative program, `./something`, or a name with a script's suffix.
    A command that changes folder, or that no shell could split, names nothing that could be looked for.
    """
    try:
        words = shlex.split(command) if _QUOTING.search(command) else command.split()
    except ValueError:
        return ()
    if "cd" in words or "pushd" in words:
        return ()
    found: list[str] = []
    for index, word in enumerate(words):
        local = word.removeprefix("/verifier/")
        if local.startswith(("-", "/")) or _DYNAMIC.search(local) or ".." in local.split("/"):
            continue
        if local.startswith("./") or local.endswith(_SCRIPT_SUFFIXES) or (index == 0 and "/" in local):
            found.append("/".join(part for part in local.split("/") if part not in ("", ".")))
    return tuple(found)
