"""Which node gets a task, and who waits for which. Pure: the same line and the same nodes give the same answer.

Work is spread by processors: a node with fewer rollouts per processor comes first, and of those about equally busy one
that has already built the environment. A task that no node takes now waits, and later ones may overtake it. So that a
large one is not overtaken for ever, the first in line holds one node: nothing that came later starts there before it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop
from typing import Final, NamedTuple

from benchflow.evaluation.scaled.abilities import CubeNeed, Demand, NodeFacts, SandboxFacts, refusal
from benchflow.evaluation.scaled.admission import NodeLoad, Vitals, processors_of, thousandths, why_not_now

__all__ = [
    "Candidate",
    "CubeNeed",
    "Demand",
    "Line",
    "NodeFacts",
    "NodeLoad",
    "Placed",
    "SandboxFacts",
    "Vitals",
    "choose",
    "refusal",
    "why_not_now",
]


class Candidate(NamedTuple):
    """A node of the cluster, as far as placement is concerned."""

    facts: NodeFacts
    load: NodeLoad
    crowded: float = 1.0
    """See `admission.crowding`."""


class Placed(NamedTuple):
    """A task in line that a node takes now."""

    ticket: int
    demand: Demand
    node: str


def choose(demand: Demand, nodes: Mapping[str, Candidate], *, held: Collection[str] = ()) -> str | None:
    """The id of the node that gets a task now; None: wait. Nodes that are held for another are left out."""
    return _best(demand, nodes, (id_ for id_ in _open(demand, nodes) if id_ not in held))


def _open(demand: Demand, nodes: Mapping[str, Candidate]) -> list[str]:
    """The nodes that have room now, whether they can run the task or not."""
    return [id_ for id_, node in nodes.items() if why_not_now(demand, *node) is None]


def _best(demand: Demand, nodes: Mapping[str, Candidate], ids: Iterable[str]) -> str | None:
    able = ((_preference(demand, id_, nodes[id_]), id_) for id_ in ids if refusal(demand, nodes[id_].facts) is None)
    return min(able, default=(None, None))[1]


def _preference(demand: Demand, id_: str, node: Candidate) -> tuple[int, bool, float, str]:
    """Least is best. Whole rollouts per processor come first, so that a built environment never outweighs the load."""
    busy = (node.load.processors + processors_of(demand)) / max(thousandths(node.facts.processors), 1)
    unbuilt = demand.environment is not None and demand.environment not in node.load.environments
    return int(-(-busy // 1)), unbuilt, busy, id_


_Size = tuple[float | None, int | None, int | None]


def _size(demand: Demand) -> _Size:
    """What decides whether a node has room."""
    return demand.processors, demand.memory_mb, demand.storage_mb


@dataclass(slots=True)
class Line:
    """Tasks that wait for a node, in the order they came. Equal demands wait together, so that a pass over the line
    costs as much as there are different demands, not as there are tasks; where no node has room, as much as there are
    different sizes."""

    _waiting: Final[dict[Demand, deque[int]]] = field(default_factory=dict)
    _sizes: Final[Counter[_Size]] = field(default_factory=Counter)
    """How many of the demands that wait have a size."""
    _next: int = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def enter(self, demand: Demand) -> int:
        """Join the end of the line; the ticket."""
        ticket = self._next
        self._next += 1
        if demand not in self._waiting:
            self._waiting[demand] = deque()
            self._sizes[_size(demand)] += 1
        self._waiting[demand].append(ticket)
        return ticket

    def leave(self, demand: Demand, ticket: int) -> None:
        """Give up waiting."""
        self._waiting[demand].remove(ticket)
        self._forget_if_empty(demand)

    def next(self, nodes: Mapping[str, Candidate]) -> Placed | None:
        """The first in line that a node takes now has left the line; None if nobody can begin.

        The caller counts it in the load of that node before it asks for the next.
        """
        room = {size: _open(Demand(*size), nodes) for size in self._sizes}
        if not any(room.values()):
            return None
        held: str | None = None
        for place, demand in enumerate(self._by_arrival()):
            node = _best(demand, nodes, (id_ for id_ in room[_size(demand)] if id_ != held))
            if node is not None:
                ticket = self._waiting[demand].popleft()
                self._forget_if_empty(demand)
                return Placed(ticket, demand, node)
            if place == 0:
                held = held_for(demand, nodes)
        return None

    def first(self) -> Demand | None:
        """The demand of the task that has waited longest."""
        return next(self._by_arrival(), None)

    def _by_arrival(self) -> Iterator[Demand]:
        """A heap, because most often the first few are all that is looked at."""
        heads = [(tickets[0], demand) for demand, tickets in self._waiting.items()]
        heapify(heads)
        while heads:
            yield heappop(heads)[1]

    def _forget_if_empty(self, demand: Demand) -> None:
        if not self._waiting[demand]:
            del self._waiting[demand]
            size = _size(demand)
            self._sizes[size] -= 1
            if not self._sizes[size]:
                del self._sizes[size]


def held_for(demand: Demand, nodes: Mapping[str, Candidate]) -> str | None:
    """The node that a waiting task holds: the least busy one that takes it as soon as enough rollouts there have ended.

    A held node only gets emptier, and the hold moves only to one that is emptier still, so the task is placed in the
    end. A node that rests, or is short of memory or disk space anyway, is not held: that would only stop others.
    """
    return _best(demand, nodes, (id_ for id_, node in nodes.items() if _would_fit(demand, node)))


def _would_fit(demand: Demand, node: Candidate) -> bool:
    emptied = NodeLoad(vitals=node.load.vitals, resting=node.load.resting)
    return why_not_now(demand, *node._replace(load=emptied)) is None
