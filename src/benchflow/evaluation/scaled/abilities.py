"""What a task needs of a node, what a node has, and whether the one can ever be run on the other. Pure.

A limit that a package declares counts; the defaults of the format do not, because no machine promises them. What a node
cannot find out about itself is unknown, and a task that needs it is not given to that node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

DISK_FLOOR_MB: Final = 1024
"""Free disk space that rollouts leave to the node: below it, records and builds begin to fail in odd places."""


_HINT: Final = "set it in the environment in which the node is started"


@dataclass(frozen=True, slots=True)
class CubeNeed:
    """An installed benchmark, with the digest of its code where the job was planned."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Demand:
    """What a task needs of a node. Equal demands are interchangeable when nodes are chosen."""

    processors: float | None = None
    """Declared; so are the next two."""
    memory_mb: int | None = None
    storage_mb: int | None = None
    sandboxes: tuple[str, ...] = ()
    """Backends of which one must work; empty: any node will do, as for a package that no sandbox supports."""
    capabilities: tuple[tuple[str, str], ...] = ()
    """What the backend must support there, each with the key that needs it."""
    variables: frozenset[str] = frozenset()
    """Names of variables that must be set."""
    one_of: tuple[frozenset[str], ...] = ()
    """Groups of names of variables, of which one in each must be set."""
    agents: tuple[tuple[str, str | None], ...] = ()
    """Agents that must be able to start, each with its model."""
    cube: CubeNeed | None = None
    base_image: str | None = None
    """What replaces images that are not available, as the job says."""
    environment: str | None = None
    """What has to be built for it, by digest."""

    @property
    def names(self) -> frozenset[str]:
        """All variables that a node is asked for."""
        return self.variables.union(*self.one_of)


@dataclass(frozen=True, slots=True)
class SandboxFacts:
    """A backend on a node."""

    usable: bool
    capabilities: frozenset[str] = frozenset()
    reason: str | None = None
    """Why it is not usable."""
    missing: Mapping[str, str] = field(default_factory=dict, hash=False)
    """How to enable what it lacks."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a machine is, as long as it is in the cluster."""

    name: str
    """What people call it."""
    processors: float
    memory_mb: int | None = None
    """All of it that rollouts may use; None: unknown."""
    disk_mb: int | None = None
    """What was free for rollouts when they began; None: unknown."""
    sandboxes: Mapping[str, SandboxFacts] = field(default_factory=dict, hash=False)
    variables: frozenset[str] = frozenset()
    """Of the variables that it was asked for, those that are set."""
    agents: Mapping[tuple[str, str | None], str] = field(default_factory=dict, hash=False)
    """Why agents cannot start there, of those that it was asked for."""
    cubes: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Digests of installed benchmarks, by name, of those that it was asked for."""
    base_images: frozenset[str] = frozenset()
    """Of the substitutes for base images that it was asked for, those that it has."""
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of `benchcube` and `python`, by name."""
    clock: float = 0.0
    """Its time when it was asked, in seconds since 1970."""


def refusal(demand: Demand, facts: NodeFacts) -> str | None:
    """Why a node can never run a task, as the rest of a sentence about the node; None if it can."""
    return (
        ("has no processors for rollouts" if facts.processors <= 0 else None)
        or _processors(demand, facts)
        or _memory(demand, facts)
        or _disk(demand, facts)
        or _sandbox(demand, facts)
        or _variables(demand, facts)
        or _agents(demand, facts)
        or _cube(demand, facts)
        or _base_image(demand, facts)
    )


def _processors(demand: Demand, facts: NodeFacts) -> str | None:
    if demand.processors is None or demand.processors <= facts.processors:
        return None
    plural = "" if facts.processors == 1 else "s"
    return f"has {facts.processors:g} processor{plural}, and {demand.processors:g} are declared"


def _memory(demand: Demand, facts: NodeFacts) -> str | None:
    if demand.memory_mb is None:
        return None
    if facts.memory_mb is None:
        return f"does not know how much memory it has, and {demand.memory_mb} MB are declared"
    if demand.memory_mb > facts.memory_mb:
        return f"has {facts.memory_mb} MB of memory, and {demand.memory_mb} MB are declared"
    return None


def _disk(demand: Demand, facts: NodeFacts) -> str | None:
    if demand.storage_mb is None:
        return None
    if facts.disk_mb is None:
        return f"does not know its free disk space, and {demand.storage_mb} MB are declared"
    if demand.storage_mb + DISK_FLOOR_MB > facts.disk_mb:
        kept = f"{demand.storage_mb} MB are declared, beside {DISK_FLOOR_MB} MB that stay free"
        return f"has {facts.disk_mb} MB of free disk space, and {kept}"
    return None


def _sandbox(demand: Demand, facts: NodeFacts) -> str | None:
    """None if one of the sandboxes will do; otherwise why the first does not."""
    found = [_unfit(name, demand, facts.sandboxes.get(name)) for name in demand.sandboxes]
    return None if not found or None in found else found[0]


def _unfit(name: str, demand: Demand, there: SandboxFacts | None) -> str | None:
    if there is None:
        return f"does not have the sandbox {name}"
    if not there.usable:
        return f"cannot use the sandbox {name}: {(there.reason or 'it does not work there').rstrip('.')}"
    for capability, key in demand.capabilities:
        if capability not in there.capabilities:
            how = f" ({there.missing[capability].rstrip('.')})" if capability in there.missing else ""
            return f"lacks {capability} in the sandbox {name}, which {key} needs{how}"
    return None


def _variables(demand: Demand, facts: NodeFacts) -> str | None:
    unset = sorted(demand.variables - facts.variables)
    if unset:
        return f"has no value for the variable{'s' if len(unset) > 1 else ''} {', '.join(unset)} ({_HINT})"
    for group in demand.one_of:
        if not group & facts.variables:
            return f"has a value for none of the variables {', '.join(sorted(group))} ({_HINT})"
    return None


def _agents(demand: Demand, facts: NodeFacts) -> str | None:
    found = next((why for agent in demand.agents if (why := facts.agents.get(agent)) is not None), None)
    return f"cannot start an agent: {found.rstrip('.')}" if found is not None else None


def _cube(demand: Demand, facts: NodeFacts) -> str | None:
    if demand.cube is None:
        return None
    there = facts.cubes.get(demand.cube.name)
    if there is None:
        return f"does not have the cube '{demand.cube.name}' installed"
    return None if there == demand.cube.digest else f"has another version of the cube '{demand.cube.name}'"


def _base_image(demand: Demand, facts: NodeFacts) -> str | None:
    if demand.base_image is None or demand.base_image in facts.base_images:
        return None
    return f"does not have the base image {demand.base_image}"
