"""Separates the output of a command from what the code of a cube prints while it runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def own_output_to_stderr() -> Iterator[None]:
    """Redirect everything printed inside, by child processes too, to standard error."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def silence_stdout() -> None:
    """After a failed write to standard output: the flush at exit must not fail again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
