"""One line of progress on stderr, on a terminal only, once the work has taken more than a second."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from benchflow.cli.terminal import is_terminal

Item = TypeVar("Item")

_PATIENCE: Final = 1.0
_INTERVAL: Final = 0.1
_ERASE: Final = "\r\x1b[2K"


class Progress:
    """Counts work and draws the count; `hide` makes room before a line is printed on the same terminal."""

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = total
        self._done = 0
        self._enabled = is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._next = time.monotonic() + _PATIENCE
        self._drawn = False

    def advance(self) -> None:
        """Count one more finished item."""
        self._done += 1
        now = time.monotonic()
        if self._enabled and now >= self._next and self._done < self._total:
            sys.stderr.write(f"{_ERASE}{self._label} {self._done:,} of {self._total:,}")
            sys.stderr.flush()
            self._drawn = True
            self._next = now + _INTERVAL

    def hide(self) -> None:
        """Clear the line."""
        if self._drawn:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()
            self._drawn = False

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items and count them; the line is cleared while the caller handles an item."""
        try:
            for item in items:
                self.hide()
                yield item
                self.advance()
        finally:
            self.hide()
