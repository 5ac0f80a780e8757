"""What a driver knows of one node over a whole job, with all hosts it had: name, clock, breaker, counts."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Final

from benchflow.evaluation.breaker import Breaker, BreakerRules, evidence_of
from benchflow.evaluation.scaled.live.clock_skew import ClockSkew
from benchflow.record import NodeNote, Result

NODE_RULES: Final = BreakerRules(failures=3)
"""Others take the work of a node that rests, so fewer failures are enough than for a machine that is alone."""


@dataclass(slots=True)
class NodeWatch:
    """One node."""

    name: str
    skew: ClockSkew = field(default_factory=ClockSkew)
    breaker: Breaker = field(default_factory=lambda: Breaker(NODE_RULES))
    finished: int = 0
    lost: int = 0
    """Tries that ended with the node."""
    last_failure: str = ""

    def begins(self, now: float, item: Hashable) -> None:
        """A rollout is sent to it."""
        self.breaker.may_start(now, item)

    def ended(self, now: float, item: Hashable, result: Result) -> None:
        """A rollout came back from it."""
        self.finished += 1
        evidence = evidence_of(result)
        if evidence == "failed" and result.error is not None:
            self.last_failure = result.error.message
        self.breaker.report(now, item, evidence)

    def interrupted(self, now: float, item: Hashable) -> None:
        """A rollout ended without a word on the node: it was cancelled, or the node was lost."""
        self.breaker.set_aside(now, item)

    def resting(self, now: float) -> str | None:
        """Why it gets nothing now, as the rest of a sentence about the node."""
        if self.given_up:
            return f"is no longer used, because starts kept failing: {self.last_failure}"
        if self.breaker.wait_sec(now) > 0:
            return f"is paused, because starts kept failing: {self.last_failure}"
        return None

    @property
    def given_up(self) -> bool:
        return self.breaker.state == "given-up"

    @property
    def note(self) -> NodeNote:
        """What the results of its rollouts say of it."""
        return NodeNote(self.name, self.skew.noted)


def node_name(host: str, taken: Collection[str]) -> str:
    """What people call a node: its host name, with a number if several nodes have it."""
    number = 1
    name = host
    while name in taken:
        number += 1
        name = f"{host}-{number}"
    return name
