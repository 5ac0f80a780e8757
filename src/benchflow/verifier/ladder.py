"""Isolation by proof, pure: which rung to verify an oracle's state at next, and what the outcomes so far prove.

The rung of a package that declares `auto` is the strictest one at which its own oracle scores full. Full is the reward
of the same state at `open`, if that reaches the required reward. The caller runs the oracle, verifies its state as
`decide` says, and reports each outcome, until it gets a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from benchflow.task.config.task_config import OPEN, RUNGS

if TYPE_CHECKING:
    from benchflow.record import Rung, RungOutcome

SYSTEM: Final = "system"
SERVICES: Final = "services"
MAX_RUNS: Final = 4
"""Oracle runs per proof."""
MISSES: Final = 2
"""A rung is refused when so many verifications at it were scored below full."""
TRIES: Final = 2
"""How many verifications at one rung may stay unscored in one oracle run."""

Reason = Literal["proven", "open-only", "oracle-fails", "undecided"]


@dataclass(frozen=True, slots=True)
class Try:
    """Verify at this rung next. The number of the run is that of the last outcome, or that of a new oracle run."""

    run: int
    rung: Rung


@dataclass(frozen=True, slots=True)
class Decision:
    """The rung, and why."""

    rung: Rung
    reason: Reason
    """`open-only`: the oracle scores full at `open` and nowhere else; `oracle-fails`: not even there."""
    full: float | None = None
    settled: bool = False
    """Whether every stricter rung was refused, so that the proof may be kept. An unscored verification refuses none."""


def decide(outcomes: Sequence[RungOutcome], rungs: Sequence[Rung], required: float) -> Try | Decision:
    """The next verification, or the decision. `rungs` are those to try before `open`, strictest first.

    Rungs come first and `open` last in each run, because verifying at `open` may change the state. Only runs whose
    state scores at `open` count for or against a rung: the others say something about the oracle.
    """
    return _Ladder(outcomes, rungs, required).next()


def wider(rung: Rung) -> Rung | None:
    """The next rung at which a verifier sees more; None for `open`."""
    following = RUNGS[RUNGS.index(rung) + 1 :]
    return following[0] if following else None  # type: ignore[return-value] # the values are rungs


class _Ladder:
    def __init__(self, outcomes: Sequence[RungOutcome], rungs: Sequence[Rung], required: float) -> None:
        self.outcomes: Final = outcomes
        self.rungs: Final = rungs
        self.required: Final = required
        self.run: Final = max((outcome.run for outcome in outcomes), default=1)
        self.opened: Final = {item.run: item.reward for item in outcomes if item.rung == OPEN}
        scored = {run: reward for run, reward in self.opened.items() if reward is not None}
        self.full: Final = {run: reward for run, reward in scored.items() if reward >= required}

    def next(self) -> Try | Decision:
        for rung in self.rungs:
            if self._proven(rung):
                settled = all(self._refused(stricter) for stricter in self.rungs[: self.rungs.index(rung)])
                return Decision(rung, "proven", self.full[self.run], settled)
            if self._promising(rung):
                break
            if self._may_try(rung):
                return Try(self.run, rung)
        if self.run not in self.opened:
            return Try(self.run, OPEN)
        return self._after_open()

    def _after_open(self) -> Try | Decision:
        """Nothing is left to verify in this run: take another one, or decide."""
        left = [rung for rung in self.rungs if not self._refused(rung)]
        if self.run in self.full:
            if left and self.run < MAX_RUNS:
                return Try(self.run + 1, left[0])
            return Decision(OPEN, "undecided" if left else "open-only", self.full[self.run], settled=not left)
        failures = sum(reward is not None and reward < self.required for reward in self.opened.values())
        if failures >= MISSES:
            return Decision(OPEN, "oracle-fails")
        return Try(self.run + 1, (*left, OPEN)[0]) if self.run < MAX_RUNS else Decision(OPEN, "undecided")

    def _here(self, rung: Rung) -> list[float | None]:
        return [item.reward for item in self.outcomes if item.run == self.run and item.rung == rung]

    def _proven(self, rung: Rung) -> bool:
        full = self.full.get(self.run)
        return full is not None and any(reward is not None and reward >= full for reward in self._here(rung))

    def _promising(self, rung: Rung) -> bool:
        """Whether only `open` can tell if the rung scores full."""
        enough = any(reward is not None and reward >= self.required for reward in self._here(rung))
        return enough and self.run not in self.opened

    def _misses(self, rung: Rung) -> int:
        """How often the rung was scored below full."""
        scored = [(item.run, item.reward) for item in self.outcomes if item.rung == rung and item.reward is not None]
        return sum(run in self.full and reward < self.full[run] for run, reward in scored)

    def _refused(self, rung: Rung) -> bool:
        return self._misses(rung) >= MISSES

    def _may_try(self, rung: Rung) -> bool:
        if self._refused(rung) or (rung == SERVICES and self.run in self.opened):
            return False
        if self.run in self.opened and self.run not in self.full:
            return False
        here = self._here(rung)
        scored = sum(reward is not None for reward in here)
        earlier = self._misses(rung) - (scored if self.run in self.full else 0)
        return earlier + scored < MISSES and len(here) - scored < TRIES
