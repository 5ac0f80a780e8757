"""The contract of clusters: nodes, one host object on each, and the two ways in which a node fails.

A call raises what the host raised, or `NodeLost`. Nothing is retried here: whether a call that was lost has been
carried out is unknown, and only the caller can decide what that means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, or a part of one, that is in the cluster now."""

    id: str
    host: str
    address: str
    processors: float | None = None
    """How many the cluster counts there; None if it does not say."""

    def __str__(self) -> str:
        return f"{self.host} ({self.address}, {self.id[:8]})"


class NodeLost(Exception):
    """A node, or the host on it, is gone; the sentence says which one and what is known."""


class NodeRefused(Exception):
    """A host cannot be started on a node: another version, benchcube is missing, wrong settings."""


class Link(Protocol):
    """A host object that is on a node."""

    @property
    def node(self) -> Node: ...

    async def call(self, method: str, /, *arguments: object) -> Any:
        """What the method returned. Raises what it raised, or `NodeLost`; after that the host must not be used."""

    def kill(self) -> None:
        """End the host at once, with everything it started; nothing is raised."""


class Cluster(Protocol):
    """Nodes that come and go."""

    async def members(self) -> Mapping[str, Node]:
        """The nodes that are alive now, by id; cheap enough to ask every two seconds. Raises `NodeLost` if the whole
        cluster cannot be reached."""

    async def start(self, node: Node) -> Link:
        """Start the host on a node. Raises `NodeRefused`, or `NodeLost`."""

    async def close(self) -> None:
        """End all hosts, and the connection; safe to call again."""
