"""`nodes.json`: what the machines of a job on a cluster do now, written by its driver about once per second.

It is for people who watch and is never read by a job. When the job has ended it says so. A driver that was killed
leaves it as it was: the lock of the job shows whether it runs, as for every job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record.codec import plain, read

NODES_SCHEMA: Final = "benchcube.nodes.v1"
_MAX_BYTES: Final = 64 << 20
LivePhase = Literal["environment", "agent", "verify"]
NodeState = Literal["ready", "resting", "silent", "lost", "refused"]


@dataclass(frozen=True, slots=True)
class LiveRollout:
    """One running rollout."""

    rollout: str
    """The name of its folder."""
    task: str
    attempt: int
    agent: str
    model: str | None
    started_at: str
    """ISO 8601 in UTC; empty if it is not known."""
    phase: LivePhase
    step: str | None
    """Of a task with steps."""
    last: str
    """The last action in a few words; as the agent wrote it."""
    events: int
    usage: Mapping[str, float]
    """What the agent has reported so far."""
    node: str | None = None
    """The machine it runs on; None: that of the job."""


@dataclass(frozen=True, slots=True)
class JobNode:
    """One machine."""

    id: str
    name: str
    state: NodeState
    """`ready` for work; `resting` because starts kept failing there; `silent`: its last pulse is overdue; `lost`;
    `refused`, because it cannot be used."""
    reason: str | None = None
    """Why it is not ready, or why it takes nothing more now."""
    processors: float | None = None
    memory_mb: int | None = None
    memory_free_mb: int | None = None
    disk_free_mb: int | None = None
    clock_offset_sec: float | None = None
    """How far its clock is ahead of the driver's, where that is worth noting."""
    finished: int = 0
    """Rollouts that came back from it."""
    lost: int = 0
    """Tries that were lost with it."""
    rollouts: tuple[LiveRollout, ...] = ()


@dataclass(frozen=True, slots=True)
class JobNodes:
    """The whole document."""

    state: Literal["running", "ended"]
    written_at: str
    waiting: int
    """Rollouts that wait for a node."""
    nodes: tuple[JobNode, ...]
    message: str | None = None
    """Why nothing begins, where all wait."""

    @property
    def live(self) -> tuple[LiveRollout, ...]:
        """All rollouts, each with the name of its node."""
        return tuple(replace(rollout, node=node.name) for node in self.nodes for rollout in node.rollouts)

    def to_dict(self) -> dict[str, Any]:
        return {"schema": NODES_SCHEMA, **plain(self)}


def read_nodes(path: Path) -> JobNodes | None:
    """The document; None if there is none, or it cannot be read: it is only shown, and written again soon."""
    try:
        document = parse_json(read_regular(path, max_bytes=_MAX_BYTES))
        if not isinstance(document, dict) or document.pop("schema", None) != NODES_SCHEMA:
            return None
        return read(JobNodes, document)
    except (OSError, RefusedFileError, StrictJSONError, ValueError):
        return None
