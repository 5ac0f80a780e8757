"""Valid reward numbers: finite, not booleans; rewards within a range.

The range is 0 to 1 unless the package widens it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from benchflow.errors import PackageError
from benchflow.rewards.reward_errors import RewardError

TOLERANCE: Final = 1e-9
"""How much two statements of one reward may differ, and how much rounding is accepted at the ends of a range."""


def finite(value: object) -> float | None:
    """The value as a float if it is a finite number and not a boolean, otherwise None; -0.0 becomes 0.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number + 0.0 if math.isfinite(number) else None


def take_finite(value: object, what: str) -> float:
    """Validate a number, named `what` in errors; raises `RewardError`."""
    number = finite(value)
    if number is None:
        raise RewardError(f"{what} must be a finite number, not {shown(value)}", path=what)
    return number


def agree(one: float, other: float) -> bool:
    """Whether two statements of one reward agree."""
    return abs(one - other) <= TOLERANCE


@dataclass(frozen=True, slots=True)
class RewardRange:
    """The range of rewards (`verifier.reward_range`): 0 to 1, or wider."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        low, high = finite(self.low), finite(self.high)
        if low is None or high is None or low > 0 or high < 1:
            given = shown([self.low, self.high])
            raise PackageError(
                f"reward_range must be two finite numbers with low <= 0 and high >= 1, not {given}",
                code="invalid-value",
                path="verifier.reward_range",
            )

    def __str__(self) -> str:
        return f"[{self.low:g}, {self.high:g}]"

    def take(self, value: object, what: str) -> float:
        """Validate a reward, named `what` in errors; raises `RewardError`."""
        number = take_finite(value, what)
        if not self.low <= number <= self.high:
            raise RewardError(f"{what} is {number!r}, outside {self}", path=what)
        return number

    def settle(self, value: float, what: str) -> float:
        """Validate a computed reward: rounding at the ends of the range is undone, anything beyond is an error."""
        number = finite(value)
        if number is None:
            raise RewardError(f"{what} is not finite", path=what)
        return self.take(min(max(number, self.low), self.high) if self._nearly_contains(number) else number, what)

    def _nearly_contains(self, number: float) -> bool:
        return self.low - TOLERANCE <= number <= self.high + TOLERANCE


UNIT: Final = RewardRange()


def shown(value: object) -> str:
    """`repr` of a value, cut to a length that fits a sentence."""
    try:
        text = repr(value)
    except ValueError:  # an integer with too many digits for Python
        text = "a number with too many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
