"""Values with their uncertainty, as summaries have them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval, and the number of tasks and results behind it."""

    value: float | None
    low: float | None
    high: float | None
    tasks: int
    results: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and the largest possible value."""

    low: float | None
    high: float | None
