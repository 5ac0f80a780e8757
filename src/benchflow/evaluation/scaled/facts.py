"""What a machine is, asked on that machine."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from benchflow.evaluation.scaled.abilities import Demand, NodeFacts


@dataclass(frozen=True, slots=True)
class Asked:
    @classmethod
    def for_demands(cls, demands: frozenset[Demand]) -> Asked:
        del demands
        return cls()


def places(scratch: Path) -> tuple[Path, ...]:
    return (scratch,)


async def find_facts(name: str, asked: Asked, scratch: Path, *, processors: float | None = None) -> NodeFacts:
    del asked, scratch
    return NodeFacts(name, processors or float(os.cpu_count() or 1), clock=time.time())
