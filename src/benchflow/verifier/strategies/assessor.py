"""`assessor`: scored during the interaction by a live peer, which no verification afterwards can do; refused."""

from __future__ import annotations

from benchflow.errors import UnsupportedError
from benchflow.rewards import Verdict
from benchflow.verifier.strategy_run import Run


async def score(run: Run) -> Verdict:
    """Always an `UnsupportedError`: an arena runs its assessor beside the agent and records reward events."""
    message = (
        f"The strategy {run.name!r} is an assessor, which scores while the agent acts, not afterwards; score the"
        " events that it recorded with the strategy ors-episode."
    )
    raise UnsupportedError(message, code="assessor-unsupported", path=f"verifier.strategies.{run.name}.type")
