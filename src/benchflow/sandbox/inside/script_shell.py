"""How a script of a package is started: by the interpreter it names, otherwise in bash if there is one, else in sh.

The kernel refuses a script without `#!`, and what runs it then depends on the caller: sh where that is the shell,
nothing at all in a container engine. Authors who leave the line out have written for bash.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

BASH_OR_SH: Final = '"$(command -v bash || echo sh)"'
"""A word of a shell command: the shell for scripts that name no interpreter."""
_RUNS_BY_ITSELF: Final = (b"#!", b"\x7fELF")
_MARK: Final = 4


def names_interpreter(script: Path | bytes) -> bool:
    """Whether a file can be executed as it is: it begins with `#!` or is a program."""
    if isinstance(script, bytes):
        return script.startswith(_RUNS_BY_ITSELF)
    with script.open("rb") as stream:
        return stream.read(_MARK).startswith(_RUNS_BY_ITSELF)


def starter(script: Path | bytes) -> str:
    """What to write before the name of a script in a shell command; empty if it starts by itself."""
    return "" if names_interpreter(script) else f"{BASH_OR_SH} "


def script_command(script: Path | bytes, path: str) -> list[str]:
    """The command that runs a script at `path` inside, where it is executable."""
    return [path] if names_interpreter(script) else ["sh", "-c", f'exec {BASH_OR_SH} "$0"', path]
