"""The program that runs inside every container, built from `anchor.c` by `scripts/build-programs` for two machines.

It is the first process, the parent of every command and the mover of files; it needs nothing from the image. Its
greeting on stderr tells the engine's words from those of a command.
"""

from __future__ import annotations

import struct
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
_ENGINE_WORDS = 1 << 16


def program(machine: str) -> bytes:
    """The program for a machine as an engine names it (`x86_64`, `amd64`, `aarch64`, `arm64`)."""
    known = _MACHINES.get(machine)
    if known is None:
        raise UnsupportedError(
            f"Containers of the machine type '{machine}' are not supported, only x86-64 and aarch64."
        )
    return files(__package__).joinpath(f"anchor-{known}").read_bytes()


class Greeting:
    """Fed with stderr as it arrives. `pid` is None until the greeting was seen; `words` is what the engine said."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.over = False
        """Set once the command has ended, so that nobody tries to stop it."""
        self._before = b""

    @property
    def words(self) -> str:
        return self._before.decode(errors="replace")

    def feed(self, data: bytes) -> bytes:
        """What of the data belongs to the command."""
        if self.pid is not None:
            return data
        self._before = (self._before + data)[-_ENGINE_WORDS:]
        start = self._before.find(GREETING)
        if start < 0 or len(self._before) < start + GREETING_SIZE:
            return b""
        rest = self._before[start + GREETING_SIZE :]
        (self.pid,) = struct.unpack_from("<I", self._before, start + len(GREETING))
        self._before = self._before[:start]
        return rest
