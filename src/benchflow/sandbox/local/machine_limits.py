"""What this machine can limit, and how a sandbox's limits are turned into settings; found once per process."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass
from typing import Final

from benchflow.errors import UnsupportedError
from benchflow.sandbox.local import cgroups
from benchflow.sandbox.local.inside.box_plan import SHM_BYTES
from benchflow.sandbox.protocol import Limits

_turn: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class Machine:
    """Processors and control groups."""

    cpus: tuple[int, ...]
    hierarchies: tuple[cgroups.Hierarchy, ...]

    @classmethod
    def find(cls) -> Machine:
        return cls(tuple(sorted(os.sched_getaffinity(0))), cgroups.find_hierarchies())

    @property
    def controllers(self) -> frozenset[cgroups.Controller]:
        return cgroups.available(self.hierarchies)


@dataclass(frozen=True, slots=True)
class Restraints:
    """A sandbox's limits as this machine enforces them."""

    cpus: tuple[int, ...] = ()
    pin_cpus: bool = False
    rlimits: tuple[tuple[str, int], ...] = ()
    memory_watch: int = 0
    shm_bytes: int = SHM_BYTES


def restrain(limits: Limits, machine: Machine) -> Restraints:
    """How the limits are kept where no control group keeps them; an `UnsupportedError` where nothing can."""
    controllers = machine.controllers
    rlimits: dict[str, int] = {"CORE": 0}
    watch = 0
    if limits.gpus:
        raise UnsupportedError("The local sandbox has no GPUs.", path="environment.gpus")
    if limits.pids is not None and "pids" not in controllers:
        rlimits["NPROC"] = limits.pids
    if limits.memory_mb is not None and "memory" not in controllers:
        watch = limits.memory_mb << 20
        rlimits["DATA"] = watch
    chosen: tuple[int, ...] = ()
    if limits.cpus is not None:
        if limits.cpus <= 0:
            raise UnsupportedError(f"A sandbox cannot have {limits.cpus:g} cpus.", path="environment.cpus")
        if "cpu" not in controllers and limits.cpus != int(limits.cpus):
            raise UnsupportedError(
                f"Without control groups only whole numbers of cpus are supported, not {limits.cpus:g}.",
                path="environment.cpus",
            )
        chosen = _choose(machine.cpus, math.ceil(limits.cpus))
    shared = SHM_BYTES
    if limits.memory_mb is not None:  # files there count as memory and outlive their process
        shared = min(shared, limits.memory_mb << 19)
    return Restraints(chosen, bool(chosen) and "cpuset" not in controllers, tuple(rlimits.items()), watch, shared)


def _choose(cpus: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Some processors, each sandbox beginning at the next one, so that they spread."""
    if count >= len(cpus):
        return cpus
    start = next(_turn) * count
    return tuple(sorted(cpus[(start + index) % len(cpus)] for index in range(count)))
