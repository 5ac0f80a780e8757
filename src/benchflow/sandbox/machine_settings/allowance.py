"""How far this machine's settings reach, as the user chose with `--machine-settings`, and what a phase gets of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from benchflow.errors import UsageError
from benchflow.sandbox.protocol import Mount, NetworkMode

Phase = Literal["build", "verify", "agent"]
REACHES: Final = ("none", "build", "verify", "all")
"""Each includes those before it: builds and installations, then verifiers, then agents and services."""
VARIABLE: Final = "BENCHCUBE_MACHINE_SETTINGS"
_NEEDED: Final[Mapping[Phase, int]] = {"build": 1, "verify": 2, "agent": 3}


@dataclass(frozen=True, slots=True)
class Laid:
    """Variables and read-only mounts for the commands of one sandbox."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    mounts: tuple[Mount, ...] = ()


NOTHING: Final = Laid()


def allows(phase: Phase, machine: Mapping[str, str] | None = None) -> bool:
    """Whether commands of a phase may use this machine's settings; an unknown value is a `UsageError`."""
    chosen = (os.environ if machine is None else machine).get(VARIABLE) or REACHES[0]
    if chosen not in REACHES:
        raise UsageError(f"{VARIABLE} is {chosen!r}; choose {', '.join(REACHES)}.", code="machine-settings")
    return REACHES.index(chosen) >= _NEEDED[phase]


def phase_settings(phase: Phase, network: NetworkMode, machine: Mapping[str, str] | None = None) -> Laid:
    """What commands of a phase get; nothing unless the user allows it.

    The files of the environment are not looked at, so apt keeps the addresses that the environment names.
    """
    if not allows(phase, machine):
        return NOTHING
    from benchflow.sandbox.machine_settings.collected import current, lay

    return lay(current(machine), network)
