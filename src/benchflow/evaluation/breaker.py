"""A breaker for starts: when the machine itself keeps failing, no further work is spent on it. Pure; time is given.

    closed ── `failures` different items in a row fail, none succeeds ──▶ open ── after a pause ──▶ half-open: one trial
    half-open ── the trial succeeds, or still runs after `trial_sec` ──▶ closed
    half-open ── the trial fails ──▶ open, for longer; after `trials` of them ──▶ given up

One breaker watches one machine: that of the local engine, or a node of a cluster. An engine asks `may_start`
before each try, and reports how it ended: `failed`, `succeeded`, or `set_aside` where it shows nothing either way.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Literal

from benchflow.record import Result

State = Literal["closed", "open", "half-open", "given-up"]
Evidence = Literal["failed", "succeeded", "nothing"]
_MACHINE: Final = frozenset({"sandbox", "infrastructure"})
_SHOWS_NOTHING: Final = frozenset({"package", "unsupported", "environment", "cancelled"})
"""The package or the user ended these, often before anything was started."""
_DEADLINE: Final = "deadline"


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a breaker opens, how long it pauses, and when it gives up."""

    failures: int = 10
    """Different items that fail in a row. A few broken packages are fewer, or others succeed between them."""
    first_pause_sec: float = 5.0
    """Twice as long after each failed trial."""
    longest_pause_sec: float = 120.0
    trials: int = 6
    """Failed trials after which it gives up: with these pauses after four and a half minutes, which a restart of an
    engine or of a model server takes less than."""
    trial_sec: float = 60.0
    """A trial that runs for so long has started: nobody waits for the end of a rollout that takes hours."""


DEFAULT_RULES: Final = BreakerRules()


class Breaker:
    """The state of one machine. Retries of an item count as that item."""

    def __init__(self, rules: BreakerRules = DEFAULT_RULES) -> None:
        self.rules: Final = rules
        self.state: State = "closed"
        self._failing: set[Hashable] = set()
        """Items that failed since the last success."""
        self._failed_trials = 0
        self._until = 0.0
        """When the pause ends; in a trial, when it has run for long enough."""
        self._trial: Hashable = None
        self._confirmed = True
        """Whether something succeeded since it was last open."""

    def may_start(self, now: float, item: Hashable) -> bool:
        """Whether a try at `item` may start; if it is the trial, nothing else may until its outcome is reported."""
        if self.state == "half-open" and now >= self._until:
            self._close(confirmed=False)
        elif self.state == "open" and now >= self._until:
            self.state, self._trial = "half-open", item
            self._until = now + self.rules.trial_sec
            return True
        return self.state == "closed"

    def wait_sec(self, now: float) -> float:
        """Time after which it is worth asking again, unless an outcome is reported before."""
        return max(self._until - now, 0.0) if self.state in ("open", "half-open") else 0.0

    def failed(self, now: float, item: Hashable) -> None:
        """A try at `item` failed because of the machine."""
        if self.state == "half-open" and item == self._trial:
            self._failed_trials += 1
            self._open(now)
        elif self.state == "closed":
            self._failing.add(item)
            if len(self._failing) >= self.rules.failures:
                self._failed_trials += not self._confirmed
                self._open(now)

    def succeeded(self, item: Hashable) -> None:
        """A try at `item` shows that the machine works. While it is open, only that of the trial does: the others
        began before."""
        if self.state == "closed" or (self.state == "half-open" and item == self._trial):
            self._close(confirmed=True)

    def set_aside(self, now: float, item: Hashable) -> None:
        """A try at `item` ended without showing anything; if it was the trial, another one may start at once."""
        if self.state == "half-open" and item == self._trial:
            self.state, self._until, self._trial = "open", now, None

    def report(self, now: float, item: Hashable, evidence: Evidence) -> None:
        """How a try ended; see `evidence_of`."""
        if evidence == "failed":
            self.failed(now, item)
        elif evidence == "succeeded":
            self.succeeded(item)
        else:
            self.set_aside(now, item)

    def _open(self, now: float) -> None:
        self._failing.clear()
        self._trial = None
        if self._failed_trials >= self.rules.trials:
            self.state = "given-up"
            return
        self.state = "open"
        pause = self.rules.first_pause_sec * 2**self._failed_trials
        self._until = now + min(pause, self.rules.longest_pause_sec)

    def _close(self, *, confirmed: bool) -> None:
        self.state, self._trial = "closed", None
        self._failing.clear()
        self._confirmed = confirmed
        if confirmed:
            self._failed_trials = 0


def evidence_of(result: Result) -> Evidence:
    """What the result of a try shows of the machine that it ran on.

    Failures of agents, verifiers and judges show that it works. A rollout that reached its deadline may have been slow
    for any reason.
    """
    error = result.error
    if error is None:
        return "succeeded"
    if error.category in _MACHINE:
        return "nothing" if error.code == _DEADLINE else "failed"
    return "nothing" if error.category in _SHOWS_NOTHING else "succeeded"
