"""What travels between a driver and the host of a node: orders of episodes, and answers. Plain values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from benchflow.evaluation.scaled.facts import Asked
from benchflow.rewards import Verdict
from benchflow.serve.episode import CallResult, Reason, ToolSpec
from benchflow.serve.opening import EpisodeSettings

HOST: Final = "benchflow.serve.remote.episode_host:EpisodeHost"
"""What a cluster starts on each node, with `HostSettings`."""
LEASE_SEC: Final = 60.0
"""Twice as long as a driver waits for a node: what it still waits for is not ended there."""
MOST_EPISODES: Final = 256
"""How many episodes a node plays at one time, unless its driver says otherwise."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How a host plays."""

    episodes: EpisodeSettings = field(default_factory=EpisodeSettings)
    asked: Asked = field(default_factory=Asked)
    """What the driver wants to know of nodes."""
    keeps_records: bool = False
    """Whether calls of models are recorded and sent back."""
    lease_sec: float = LEASE_SEC
    """Without a pulse for this long, everything ends."""


@dataclass(frozen=True, slots=True)
class CubeOrder:
    """A task of a cube: a node where it would be another one refuses it."""

    name: str
    config: str
    """As JSON."""
    digest: str


@dataclass(frozen=True, slots=True)
class EpisodeOrder:
    """An episode that a node is to play: a package that it has taken, or a task of a cube that is installed there."""

    id: str
    """Of the episode, chosen by the driver."""
    task: str
    """Its name, for people."""
    parcel: str | None = None
    """The digest of the parcel of a package."""
    cube: CubeOrder | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call: a result, a refusal, or an end; `verdict` is set once the episode is over."""

    result: CallResult | None = None
    refused: tuple[Reason, str] | None = None
    verdict: Verdict | None = None
    """With the whole reason, for the log of the driver."""
    told: Verdict | None = None
    """The same for clients: nothing about folders of the node or words of a verifier."""
    tools: tuple[ToolSpec, ...] | None = None
    """What can be called now; None: the same as before."""
    scores_groups: bool = False
    gone: str | None = None
    """The node does not have the episode any more; a sentence says why."""
    missing: bool = False
    """The node does not have the package, or not whole any more: it has to be sent."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What is left of an episode when it has been closed."""

    records: dict[str, bytes] = field(default_factory=dict)
    """Files in which calls of models were recorded, by their path below the folder of records."""
