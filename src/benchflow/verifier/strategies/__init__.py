"""The strategies by type: each module's `score` takes a `Run` and returns a verdict.

Plugins add types in the entry-point group `benchflow.verifier_strategies`; an entry point is such a function.
"""

from __future__ import annotations

from typing import cast

from benchflow.plugins import STRATEGIES
from benchflow.verifier.strategy_run import Score


def load_strategy(kind: str) -> Score:
    """The function that scores by a strategy of this type."""
    found = STRATEGIES.load(kind)
    if not callable(found):
        raise STRATEGIES.invalid(kind, "is not a function that scores")
    return cast("Score", found)
