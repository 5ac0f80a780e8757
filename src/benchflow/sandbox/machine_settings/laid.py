"""What one sandbox gets of this machine's settings, and what a phase gets where the user allows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from benchflow.sandbox.machine_settings.allowance import Phase, allows
from benchflow.sandbox.protocol import Mount, NetworkMode


@dataclass(frozen=True, slots=True)
class Laid:
    """Variables and read-only mounts for the commands of one sandbox."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    mounts: tuple[Mount, ...] = ()


NOTHING: Final = Laid()


def phase_settings(phase: Phase, network: NetworkMode, machine: Mapping[str, str] | None = None) -> Laid:
    """What commands of a phase get; nothing unless the user allows it.

    The files of the environment are not looked at, so apt keeps the addresses that the environment names.
    """
    if not allows(phase, machine):
        return NOTHING
    from benchflow.sandbox.machine_settings.collected import current, lay

    return lay(current(machine), network)
