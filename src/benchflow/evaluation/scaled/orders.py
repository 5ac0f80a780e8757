"""What the driver and a node say to each other: values that are pickled, and never anything secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchflow.evaluation.scaled.admission import Vitals
from benchflow.evaluation.work import LineUp
from benchflow.record import Result, TaskId, WorkKey
from benchflow.record.reading.live_rollouts import LiveRollout


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What a host knows of the command that it works for."""

    builds: int = 2
    """At once."""
    machine_settings: str | None = None
    """Who may use the package settings of the node; None: as its own environment says."""


@dataclass(frozen=True, slots=True)
class OrderedTask:
    """A task as it travels: a package by the digest of its parcel, or the configuration of a cube's task."""

    id: TaskId
    path: str
    digest: str | None
    environment: str | None
    roles: tuple[str, ...]
    parcel: str | None = None
    cube: tuple[str, str] | None = None
    """The name of the benchmark, and the configuration as JSON."""


@dataclass(frozen=True, slots=True)
class Order:
    """One try at one item. Its id is used once, so that a late answer is not taken for that of another try."""

    id: str
    job: int
    """Which of the requests that the host knows."""
    rollout: str
    """The name of the folder."""
    task: OrderedTask
    attempt: int
    key: WorkKey
    line_up: LineUp | None


@dataclass(frozen=True, slots=True)
class FolderStream:
    """A folder as `tree_stream` packs it."""

    size: int
    sha256: str
    data: bytes | None
    """None: it is large and fetched piece by piece."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a try ended."""

    result: Result
    folder: FolderStream | None
    """None: the node could not keep a record, and the result says why."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a node does now."""

    vitals: Vitals
    clock: float
    """Its time, in seconds since 1970."""
    running: Mapping[str, LiveRollout] = field(default_factory=dict)
    """By order."""
    environments: frozenset[str] = frozenset()
    """What it has built, by digest."""
