"""How far the package-mirror settings of this machine reach, as the user chose with `--machine-settings`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal

from benchflow.errors import UsageError

Phase = Literal["build", "verify", "agent"]
REACHES: Final = ("none", "build", "verify", "all")
"""Each includes those before it: builds and installations, then verifiers, then agents and services."""
VARIABLE: Final = "BENCHCUBE_MACHINE_SETTINGS"
_NEEDED: Final[Mapping[Phase, int]] = {"build": 1, "verify": 2, "agent": 3}


def allows(phase: Phase, machine: Mapping[str, str] | None = None) -> bool:
    """Whether commands of a phase may use this machine's settings; an unknown value is a `UsageError`."""
    chosen = (os.environ if machine is None else machine).get(VARIABLE) or REACHES[0]
    if chosen not in REACHES:
        raise UsageError(f"{VARIABLE} is {chosen!r}; choose {', '.join(REACHES)}.", code="machine-settings")
    return REACHES.index(chosen) >= _NEEDED[phase]
