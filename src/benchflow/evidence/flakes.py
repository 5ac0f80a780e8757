"""How often a verifier gives another verdict on one state, with an exact upper bound; pure.

No failure in n runs does not show a rate of 0: it shows, at 95 %, a rate of at most 1 - 0.05 ** (1 / n), which is 0.63
for 3 runs and 0.05 for 59.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from benchflow.record.evidence import Flake

ALPHA: Final = 0.05
_STEPS: Final = 60
"""Bisections: more than the digits of a float."""


def flake(passed: Iterable[bool]) -> Flake:
    """The flake rate of verifications that should all have passed."""
    runs = list(passed)
    failures = runs.count(False)
    return Flake(len(runs), failures, upper_bound(failures, len(runs)))


def upper_bound(failures: int, runs: int, alpha: float = ALPHA) -> float:
    """The largest rate at which so few failures still have the probability `alpha` (Clopper and Pearson, one-sided).

    Without runs nothing is known, and the bound is 1.
    """
    if not 0 <= failures <= runs:
        raise ValueError(f"{failures} of {runs} runs cannot have failed")
    if failures == runs:
        return 1.0
    low, high = failures / runs, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(failures, runs, middle) > alpha else (low, middle)
    return high


def runs_needed(rate: float, alpha: float = ALPHA) -> int:
    """How many runs without a failure show that the rate is at most `rate`."""
    if not 0 < rate < 1:
        raise ValueError("the rate must lie between 0 and 1")
    return math.ceil(math.log(alpha) / math.log1p(-rate))


def _at_most(failures: int, runs: int, rate: float) -> float:
    """The probability of at most so many failures."""
    return sum(math.comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(failures + 1))
