"""Whether a node takes one more rollout now. Pure.

Processors and declared memory are reserved against what the node has; a rollout that declares no processors counts as
one. What is not declared is watched: below a floor of free memory or disk space nothing starts, and between two pulses
only so many more begin, because a rollout that has just begun has not used its memory yet. An idle node above its
floors takes any rollout that it can run at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from benchflow.evaluation.scaled.abilities import DISK_FLOOR_MB, Demand, NodeFacts

MEMORY_FLOOR_MB: Final = 512
"""Free memory that rollouts leave to the node, or a tenth of its memory if that is less."""
_RAMP_PER_PROCESSOR: Final = 4
_LEAST_RAMP: Final = 8
_THOUSAND: Final = 1000
"""Processors are counted in thousandths: fractions would not add up exactly over thousands of rollouts."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a node had free at its last pulse; None: unknown, and then not watched."""

    memory_free_mb: int | None = None
    disk_free_mb: int | None = None


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What a node does now, as its driver counts it: a rollout counts from the moment it is sent."""

    rollouts: int = 0
    processors: int = 0
    """Of what runs, in thousandths."""
    memory_mb: int = 0
    """Declared by what runs."""
    vitals: Vitals = Vitals()
    rollouts_at_pulse: int = 0
    environments: frozenset[str] = frozenset()
    """What it has built, by digest."""
    resting: str | None = None
    """Why it takes nothing for a while, as the rest of a sentence about the node; such as an open breaker."""

    def with_rollout(self, demand: Demand) -> NodeLoad:
        """One more runs."""
        return self._changed(demand, 1)

    def without_rollout(self, demand: Demand) -> NodeLoad:
        """One that ran has ended."""
        return self._changed(demand, -1)

    def pulsed(self, vitals: Vitals) -> NodeLoad:
        """The node has told what it has free."""
        return replace(self, vitals=vitals, rollouts_at_pulse=self.rollouts)

    def _changed(self, demand: Demand, by: int) -> NodeLoad:
        return replace(
            self,
            rollouts=self.rollouts + by,
            processors=self.processors + by * processors_of(demand),
            memory_mb=self.memory_mb + by * (demand.memory_mb or 0),
        )


def thousandths(processors: float) -> int:
    """Rounded up, so that what is declared is never counted too low."""
    return math.ceil(processors * _THOUSAND)


def processors_of(demand: Demand) -> int:
    """What a rollout keeps busy, in thousandths."""
    return thousandths(demand.processors) if demand.processors is not None else _THOUSAND


def crowding(concurrency: int, processors: float) -> float:
    """How many rollouts of one processor a job puts on each, where it wants more at once than the cluster has."""
    return max(concurrency / processors, 1.0) if processors > 0 else 1.0


def memory_floor(facts: NodeFacts) -> int:
    return min(MEMORY_FLOOR_MB, facts.memory_mb // 10) if facts.memory_mb is not None else MEMORY_FLOOR_MB


def ramp(facts: NodeFacts) -> int:
    """How many more rollouts may run than at the last pulse."""
    return max(_LEAST_RAMP, math.ceil(_RAMP_PER_PROCESSOR * facts.processors))


def why_not_now(demand: Demand, facts: NodeFacts, load: NodeLoad, crowded: float = 1.0) -> str | None:
    """Why a node that can run a task does not take it now, as the rest of a sentence about the node."""
    if load.resting is not None:
        return load.resting
    places, more = math.ceil(facts.processors * crowded), processors_of(demand)
    if load.processors + more > places * _THOUSAND:
        taken = f"{load.processors / _THOUSAND:g} of {places} processors"
        return f"has {taken} reserved, and this takes {more / _THOUSAND:g}"
    if demand.memory_mb is not None and load.memory_mb + demand.memory_mb > (facts.memory_mb or 0):
        taken = f"{load.memory_mb} of {facts.memory_mb} MB of memory"
        return f"has {taken} reserved, and this takes {demand.memory_mb}"
    return _scarce(demand, facts, load) or _too_fast(facts, load)


def _scarce(demand: Demand, facts: NodeFacts, load: NodeLoad) -> str | None:
    """Of memory an idle node needs its floor only: what is declared it has, as far as it can tell."""
    memory, disk = load.vitals.memory_free_mb, load.vitals.disk_free_mb
    beside = (demand.memory_mb or 0) if load.rollouts else 0
    if memory is not None and memory < memory_floor(facts) + beside:
        return f"has only {memory} MB of free memory"
    if disk is not None and disk < DISK_FLOOR_MB + (demand.storage_mb or 0):
        return f"has only {disk} MB of free disk space"
    return None


def _too_fast(facts: NodeFacts, load: NodeLoad) -> str | None:
    if load.rollouts - load.rollouts_at_pulse < ramp(facts):
        return None
    return "has begun many rollouts since its last pulse"
