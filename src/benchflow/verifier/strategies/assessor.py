"""`assessor`: scored by a live peer while the agents of an arena talk; no verification afterwards can do that."""

from __future__ import annotations

from benchflow.errors import UnsupportedError
from benchflow.rewards import Verdict
from benchflow.verifier.strategy_run import Run


async def score(run: Run) -> Verdict:
    """The verdict of the game that the driver plays; an `UnsupportedError` where there is no game to play."""
    if run.assess is not None:
        return await run.assess(run)
    message = (
        f"The strategy {run.name!r} is an assessor, which scores while the participants of an arena talk, not"
        " afterwards; run the package again."
    )
    raise UnsupportedError(message, code="assessor-unsupported", path=f"verifier.strategies.{run.name}.type")
