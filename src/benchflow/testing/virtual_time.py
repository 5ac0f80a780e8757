"""An event loop whose time passes only while everything waits: hours of heartbeats and backoff in milliseconds.

    anyio.run(main, backend_options={"loop_factory": VirtualTimeLoop})

`anyio.sleep`, deadlines and `anyio.current_time` follow it; `time.monotonic` and other processes do not. Time stands
still while a worker thread of anyio runs, so that a slow disk does not look like a long wait.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

import anyio.to_thread

_LOOK_AGAIN = 0.02
"""Seconds between two looks at threads that are still running."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Jumps to the next deadline when nothing is ready."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Selector(self._passes))

    def time(self) -> float:
        return self._now

    def _passes(self, seconds: float) -> bool:
        """Whether time went on: not while a thread works."""
        if anyio.to_thread.current_default_thread_limiter().borrowed_tokens:
            return False
        self._now += seconds
        return True


class _Selector(selectors.DefaultSelector):
    def __init__(self, passes: Callable[[float], bool]) -> None:
        super().__init__()
        self._passes = passes

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return super().select(None)
        return [] if self._passes(timeout) else super().select(min(timeout, _LOOK_AGAIN))
