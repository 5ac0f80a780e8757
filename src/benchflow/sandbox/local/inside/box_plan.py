"""What the driver tells the helper processes about one sandbox: plain tuples that travel as JSON.

A location is `store:REL` (below the store), `volume:REL` (below the limited volumes, which only the zygote has mounted)
or an absolute path of the machine.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from benchflow.sandbox.inside.accounts import AGENT

Identity = Literal["idmap", "identity", "range", "single"]
"""How user ids inside relate to the machine's: shifted for a driver that is root; the same where mounts cannot be
shifted; a range that `newuidmap` granted; or one id only, the driver's own."""

SHM_BYTES: Final = 64 << 20
"""The size of `/dev/shm` where no limit asks for less."""


def group_prefix(owner: str) -> str:
    """How the control groups of a driver's sandboxes begin."""
    return f"benchcube-{owner}-"


class Overlay(NamedTuple):
    """One copy-on-write mount: `lowers` top first, written to `upper`."""

    target: str
    lowers: tuple[str, ...]
    upper: str
    work: str


class Attachment(NamedTuple):
    """A file or folder of the machine that appears read-only at a path inside."""

    source: str
    target: str
    directory: bool


class Plan(NamedTuple):
    """All that the zygote and the supervisor need to bring one sandbox up."""

    hostname: str
    identity: Identity
    overlays: tuple[Overlay, ...]
    attachments: tuple[Attachment, ...]
    environment: dict[str, str]
    rlimits: dict[str, int]
    workdir: str = "/"
    user: str = AGENT
    cpus: tuple[int, ...] = ()
    pin_cpus: bool = False
    memory_watch: int = 0
    """Bytes that all processes together may use where no control group counts them; 0 for no watch."""
    shm_bytes: int = SHM_BYTES
    waits: bool = False
    """Whether the layers are mounted only when a message says so."""

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        overlays = tuple(Overlay(*item) for item in values["overlays"])
        attachments = tuple(Attachment(*item) for item in values["attachments"])
        return cls(**{**values, "overlays": overlays, "attachments": attachments, "cpus": tuple(values["cpus"])})
