"""What a cluster offers: its machines, a host object started on one, calls to that object.

Nothing here knows what runs on the machines or what carries the calls. An answer may never come: callers watch their
nodes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that is in the cluster now."""

    id: str
    host: str
    address: str


class NodeLost(Exception):
    """A node, or the host on it, is gone; the sentence says which and what is known."""


class NodeRefused(Exception):
    """A host could not be started on a node: version mismatch, benchcube missing, ..."""


class Link(Protocol):
    """A host object on a node."""

    node: Node

    async def call(self, method: str, /, *arguments: object) -> Any:
        """What the method returns; raises what it raised, or `NodeLost`."""

    def kill(self) -> None:
        """End the host at once, without any cleanup of its own; open calls raise `NodeLost`."""


class Cluster(Protocol):
    """Machines that come and go."""

    async def members(self) -> Mapping[str, Node]:
        """Those that are alive now, by id; cheap enough for every two seconds."""

    async def start(self, node: Node) -> Link:
        """Start the host there; raises `NodeRefused` or `NodeLost`."""

    async def close(self) -> None:
        """End all hosts; safe to call again."""
