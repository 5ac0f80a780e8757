"""The program that runs inside every container, built from `anchor.c` by `scripts/build-programs` for two machines.

It is the first process, the parent of every command and the mover of files; it needs nothing from the image.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from benchflow.errors import UnsupportedError

GREETING: Final = b"\0anchor\0"
"""How the program begins what it writes to stderr; four bytes of its process id and four of zero follow."""
GREETING_SIZE: Final = 16
_MACHINES: Final = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
}


def program(machine: str) -> bytes:
    """The program for a machine as an engine names it (`x86_64`, `amd64`, `aarch64`, `arm64`)."""
    known = _MACHINES.get(machine)
    if known is None:
        raise UnsupportedError(
            f"Containers of the machine type '{machine}' are not supported, only x86-64 and aarch64."
        )
    return files(__package__).joinpath(f"anchor-{known}").read_bytes()
