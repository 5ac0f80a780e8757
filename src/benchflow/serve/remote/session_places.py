"""`SessionPlaces`: the places that the nodes of a cluster have for episodes, and who has which.

Nodes come, go and are watched as for jobs (`evaluation.scaled.fleet`). An episode goes to the node with the fewest
among those that can play it: it waits for its agent most of the time, so that processors are not reserved for it, but
declared memory is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any, Final

import anyio

from benchflow.cluster import Cluster, NodeLost
from benchflow.evaluation.scaled.abilities import Demand, refusal
from benchflow.evaluation.scaled.admission import NodeLoad, Vitals, why_not_now
from benchflow.evaluation.scaled.fleet import PULSE_SEC, Fleet, Host
from benchflow.evaluation.scaled.launch_check import check_launch
from benchflow.serve.remote.episode_orders import MOST_EPISODES
from benchflow.serve.server_log import Log, silent
from benchflow.serve.sessions import NoRoom

_UNCROWDED: Final = 1e6
"""Processors are not what an episode waits for."""


class NoNode(NoRoom):
    """No node can play now; `str()` is a sentence for clients."""


@dataclass(eq=False, slots=True)
class Place:
    """A place on a node, taken for one episode; `call` asks the host there."""

    host: Host
    demand: Demand
    _fleet: Fleet
    name: str = field(default_factory=lambda: token_hex(12))
    """Of the episode, on that node."""

    async def call(self, method: str, *arguments: object) -> Any:
        """What the host answers; `NodeLost` as soon as the node is lost, and then nothing is placed there."""
        try:
            return await self.host.call(method, *arguments)
        except NodeLost as error:
            self._fleet.lost(self.host, error)
            raise


class SessionPlaces:
    """All places of a cluster. `open` joins its nodes and leaves with everything on them ended."""

    def __init__(
        self, cluster: Cluster, *, most: int = MOST_EPISODES, log: Log = silent, pulse_sec: float = PULSE_SEC
    ) -> None:
        """`most` is how many episodes a node plays at one time."""
        self._fleet: Final = Fleet(cluster, self._say, pulse_sec=pulse_sec)
        self._most: Final = most
        self._log: Final = log
        self._pulse_sec: Final = pulse_sec
        self._taken: Final[dict[Host, dict[str, Place]]] = {}
        self._changed = anyio.Event()
        """Set, and replaced, when there may be room where there was none."""

    @asynccontextmanager
    async def open(self, demands: Sequence[tuple[str, Demand]]) -> AsyncIterator[None]:
        """The nodes of the cluster; a `UsageError` if there are none, or if no node can ever play one of the tasks.

        `demands` are the names of tasks and what they need.
        """
        try:
            await self._fleet.open()
            for sentence in check_launch(demands, list(self._fleet.facts.values())):
                self._say(sentence)
            async with self._fleet.watched() as group:
                group.start_soon(self._keep)
                yield
        finally:
            await self._fleet.close()

    def take(self, demand: Demand, task: str) -> Place:
        """A place for an episode of a task, on the node with the fewest; `NoNode` if none can play it now."""
        demand = replace(demand, processors=None)
        able = [host for host in self._fleet.hosts.values() if refusal(demand, host.facts) is None]
        free = [host for host in able if self._why_not(host, demand) is None]
        if not free:
            raise NoNode(self._sentence(able, demand, task))
        host = min(free, key=lambda each: (self._played(each), each.node.id))
        place = Place(host, demand, self._fleet)
        self._taken.setdefault(host, {})[place.name] = place
        return place

    def free(self, place: Place) -> None:
        places = self._taken.get(place.host, {})
        if places.pop(place.name, None) is not None:
            if not places:
                del self._taken[place.host]
            self._change()

    def room(self) -> int:
        """How many more episodes the nodes may play now, as far as their number goes."""
        return sum(max(self._most - self._played(host), 0) for host in self._fleet.hosts.values())

    async def wait_for_change(self) -> None:
        """Until there may be room where there was none."""
        await self._changed.wait()

    def _played(self, host: Host) -> int:
        return len(self._taken.get(host, ()))

    def _why_not(self, host: Host, demand: Demand) -> str | None:
        """Why a node that can play it does not take it now, as the rest of a sentence about the node."""
        played = self._played(host)
        if played >= self._most:
            return f"plays {played} episodes, as many as it may"
        memory = sum(place.demand.memory_mb or 0 for place in self._taken.get(host, {}).values())
        vitals = host.pulse.vitals if host.pulse is not None else Vitals()
        load = NodeLoad(rollouts=played, memory_mb=memory, vitals=vitals, rollouts_at_pulse=played)
        return why_not_now(demand, host.facts, load, _UNCROWDED)

    def _sentence(self, able: Sequence[Host], demand: Demand, task: str) -> str:
        if able:
            reasons = "; ".join(f"{host.node.host} {self._why_not(host, demand)}" for host in able[:3])
            return f"No node has room for an episode of {task} now: {reasons}. Try again later."
        if self._fleet.hosts:
            reasons = "; ".join(
                f"{host.node.host} {refusal(demand, host.facts)}" for host in self._fleet.hosts.values()
            )
            return f"No node of the cluster can play {task}: {reasons}."
        return "No node is left in the cluster; sessions begin again when one joins."

    async def _keep(self) -> None:
        """Tell nodes which episodes are wanted: an order that was cancelled on its way is ended there."""
        while True:
            await anyio.sleep(self._pulse_sec)
            async with anyio.create_task_group() as group:
                for host in self._fleet.hosts.values():
                    group.start_soon(self._keep_on, host)

    async def _keep_on(self, host: Host) -> None:
        try:
            await host.call("keep", frozenset(self._taken.get(host, ())))
        except NodeLost as error:
            self._fleet.lost(host, error)

    def _say(self, text: str) -> None:
        self._log("cluster", message=text)
        self._change()

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
