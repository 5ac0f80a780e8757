"""Keeps an engine from being flooded: few starts and stops at once, not too many a second.

When the engine fails again and again, starts are refused for a while; stops never are, or leftovers would pile up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import anyio

from benchflow.errors import InfrastructureFailure


@dataclass(frozen=True, slots=True)
class GateLimits:
    """The limits on the load of an engine."""

    concurrent: int = 8
    per_second: float = 20.0
    failures: int = 5
    """So many failures of the engine in a row open the circuit."""
    pause_sec: float = 30.0
    """How long it stays open before one attempt is let through."""


class EngineGate:
    """Every start of a container passes through `slot`, every stop through `turn`."""

    def __init__(
        self, name: str, limits: GateLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._limits = limits or GateLimits()
        self._clock = clock
        self._places = anyio.Semaphore(self._limits.concurrent)
        self._next_start = 0.0
        self._failures = 0
        self._open_until = 0.0
        self._last = ""

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A place for a start. While the circuit is open it is refused at once, with the last reason."""
        self._refuse_if_open()
        async with self.turn():
            self._refuse_if_open()
            try:
                yield
            except InfrastructureFailure as error:
                self._failed(str(error))
                raise
            self._failures = 0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A place for a stop, regardless of the engine's state."""
        async with self._places:
            await self._pace()
            yield

    async def _pace(self) -> None:
        now = self._clock()
        begin = max(now, self._next_start)
        self._next_start = begin + 1 / self._limits.per_second
        if begin > now:
            await anyio.sleep(begin - now)

    def _failed(self, reason: str) -> None:
        self._failures += 1
        self._last = reason
        if self._failures >= self._limits.failures:
            self._open_until = self._clock() + self._limits.pause_sec

    def _refuse_if_open(self) -> None:
        left = self._open_until - self._clock()
        if left > 0:
            raise InfrastructureFailure(
                f"{self._name} failed {self._failures} times in a row; no more starts for {left:.0f} "
                f"seconds. Last failure: {self._last}",
                code="engine-circuit-open",
            )
