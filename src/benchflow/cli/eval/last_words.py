"""A sentence for the case that this process is ended from outside and cannot say anything itself any more."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_WAIT = 'read -r _ || printf "%s\\n" "$1" >&2'


@contextmanager
def last_words(sentence: str) -> Iterator[None]:
    """Let a small process print the sentence on stderr if this one ends before the block does."""
    command = ["sh", "-c", _WAIT, "last-words", sentence]
    waiting = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        with suppress(OSError):
            waiting.communicate(b"\n")
