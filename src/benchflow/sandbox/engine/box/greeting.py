"""Tells the engine's words on stderr from those of a command: the anchor's greeting stands between them. Pure."""

from __future__ import annotations

import struct

from benchflow.sandbox.engine.box.anchor import GREETING, GREETING_SIZE

_ENGINE_WORDS = 1 << 16


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
