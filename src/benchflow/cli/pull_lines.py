"""Pulls of images for people: the option `--pull`, and their progress on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from benchflow.cli.arguments import LateChoice
from benchflow.cli.terminal import is_terminal, note, printable

if TYPE_CHECKING:
    from benchflow.sandbox.pulling import PullProgress

Command = TypeVar("Command", bound=Callable[..., Any])
_ERASE: Final = "\r\x1b[2K"
_INTERVAL_SEC: Final = 0.1


def pull_option(command: Command) -> Command:
    """`--pull POLICY`: when images are pulled from their registries."""
    return click.option(
        "--pull",
        type=LateChoice(_policies),
        default="missing",
        show_default=True,
        help="When to pull images from their registries.",
    )(command)


def _policies() -> tuple[str, ...]:
    from benchflow.sandbox.pulling import PULL_POLICIES

    return PULL_POLICIES


class PullLines:
    """Shows pulls on stderr: a line when one begins and when it ends; with `live`, on a terminal, also between."""

    def __init__(self, *, live: bool = True) -> None:
        self._live: Final = live and is_terminal(sys.stderr)
        self._lock: Final = threading.Lock()
        """Layers report from several threads."""
        self._begun: set[str] = set()
        self._drawn_at = 0.0

    def show(self, progress: PullProgress) -> None:
        """An image is a little further."""
        with self._lock:
            if progress.image not in self._begun:
                self._begun.add(progress.image)
                self._say(f"pulling {progress.image} ({size(progress.total)})")
            if progress.finished:
                self._say(f"pulled {progress.image}")
            elif self._live and time.monotonic() - self._drawn_at >= _INTERVAL_SEC:
                self._drawn_at = time.monotonic()
                share = 100 * progress.done // progress.total if progress.total else 100
                sys.stderr.write(f"{_ERASE}  {size(progress.done)} of {size(progress.total)}, {share} %")
                sys.stderr.flush()

    def _say(self, text: str) -> None:
        if self._live:
            sys.stderr.write(_ERASE)
        note(printable(text))


def size(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
