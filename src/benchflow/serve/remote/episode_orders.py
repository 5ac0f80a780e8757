"""What travels between a driver and the host of a node: orders of episodes, and answers. Plain values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from benchflow.rewards import Verdict
from benchflow.serve.episode import CallResult, Reason, ToolSpec
from benchflow.serve.opening import EpisodeSettings

HOST: Final = "benchflow.serve.remote.episode_host:EpisodeHost"
"""What a cluster starts on each node, with `HostSettings`."""
LEASE_SEC: Final = 90.0
"""Three times as long as a driver waits for a node: what it still waits for is not ended there."""
MOST_EPISODES: Final = 256
"""How many episodes a node plays at one time, unless its driver says otherwise."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How a host plays."""

    episodes: EpisodeSettings = field(default_factory=EpisodeSettings)
    cubes: tuple[str, ...] = ()
    """Whose tasks may be ordered."""
    most: int = MOST_EPISODES
    keeps_records: bool = False
    """Whether calls of models are recorded and sent back."""
    lease_sec: float = LEASE_SEC
    """Without a pulse for this long, everything ends."""


@dataclass(frozen=True, slots=True)
class EpisodeOrder:
    """An episode that a node is to play: a package that it has taken, or a task of a cube that is installed there."""

    id: str
    """Of the episode, chosen by the driver."""
    task: str
    """The id of the task, for people and for cubes."""
    digest: str
    """The content of a package, or the identity of a cube's task: a node that has another one refuses it."""
    cube: str | None = None
    """None for a package."""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host says about its node when it has started."""

    most: int
    """How many episodes it plays at one time."""
    cubes: frozenset[str] = frozenset()
    """The cubes that are installed there."""


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


@dataclass(frozen=True, slots=True)
class Ended:
    """What is left of an episode when it has been closed."""

    records: dict[str, bytes] = field(default_factory=dict)
    """Files in which calls of models were recorded, by their path below the folder of records."""
