"""How far the clock of a node is from that of its driver, by pulses. Pure.

A node reads its clock somewhere between the sending of a pulse and its answer: the middle is the best guess, and half
of the time between is how wrong it can be. Records keep the times of the node, which agree with each other; the
difference is noted beside them where it is large enough to confuse readers. Only what is shown live is converted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

_KEPT: Final = 30
"""Pulses, of which the quickest counts: a minute, in which a clock is adjusted or drifts by very little."""
NOTED_SEC: Final = 1.0


class Offset(NamedTuple):
    """Seconds that the clock of a node is ahead, and how wrong that can be."""

    ahead: float
    uncertain: float


@dataclass(slots=True)
class ClockSkew:
    """The clock of one node."""

    _seen: Final[deque[Offset]] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def pulsed(self, sent: float, there: float, received: float) -> None:
        """An answer: the driver's time before and after it, and the node's in between. Times that run backwards,
        because the driver's own clock was set, say nothing."""
        if received >= sent:
            self._seen.append(Offset(there - (sent + received) / 2, (received - sent) / 2))

    @property
    def offset(self) -> Offset | None:
        """The best that is known; None before the first pulse."""
        return min(self._seen, key=lambda offset: offset.uncertain, default=None)

    @property
    def noted(self) -> float | None:
        """What records say of it; None where it is too small to matter, or not certain."""
        offset = self.offset
        if offset is None or abs(offset.ahead) - offset.uncertain < NOTED_SEC:
            return None
        return round(offset.ahead, 1)

    def here(self, there: str) -> str:
        """A time of the node, in ISO 8601, as the driver's clock would have told it; as it is where that is unknown."""
        offset = self.offset
        if offset is None:
            return there
        try:
            return (datetime.fromisoformat(there) - timedelta(seconds=offset.ahead)).isoformat(timespec="milliseconds")
        except (ValueError, OverflowError):
            return there
