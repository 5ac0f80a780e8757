"""The nodes of a job as its driver sees them: who is there, who is lost, and who gets the next rollout.

Every node is pulsed: one that gives no answer for `SILENT_SLICES` seconds is lost, whatever the cluster says of it. Its
orders end at once, the host is killed, and what it may still send is dropped. A node that is still a member gets a new
host after a pause. A node where starts keep failing rests. If there are no nodes, work waits.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from benchflow.cluster import Cluster, Link, Node, NodeLost, NodeRefused
from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.evaluation.scaled.abilities import Demand, NodeFacts
from benchflow.evaluation.scaled.admission import NodeLoad, crowding
from benchflow.evaluation.scaled.live.node_board import NodeBoard
from benchflow.evaluation.scaled.live.node_view import gone_node, seen_node, why_waiting
from benchflow.evaluation.scaled.live.node_watch import NodeWatch, node_name
from benchflow.evaluation.scaled.orders import Order, Pulse
from benchflow.evaluation.scaled.placement import Candidate, Line
from benchflow.record import JobNodes, JobPlaces, Result
from benchflow.record.trajectory import timestamp

PULSE_SEC: Final = 2.0
SILENT_SLICES: Final = 30
"""Silence is counted in seconds in which this process ran: one that was stopped for an hour must not lose its nodes."""
FACTS_SEC: Final = 60.0
CLOSE_SEC: Final = 30.0
_LONGEST_REST: Final = 60.0

Say = Callable[[str], None]


@dataclass(slots=True, eq=False)
class Host:
    """The host on one node."""

    node: Node
    link: Link
    facts: NodeFacts
    calls: set[anyio.CancelScope] = field(default_factory=set)
    parcels: dict[str, anyio.Event] = field(default_factory=dict)
    """Sent, or being sent, by digest."""
    lost: str | None = None
    pulse: Pulse | None = None
    heard_at: float = field(default_factory=anyio.current_time)
    orders: dict[str, Order] = field(default_factory=dict)
    """What it carries out."""
    finished: set[str] = field(default_factory=set)
    """Orders whose folders nobody wants any more; the next pulse says so."""

    async def call(self, method: str, /, *arguments: object) -> Any:
        """Call the host; `NodeLost` as soon as the node is, whether or not there is an answer."""
        if self.lost is not None:
            raise NodeLost(self.lost)
        with anyio.CancelScope() as scope:
            self.calls.add(scope)
            try:
                return await self.link.call(method, *arguments)
            except NodeLost as error:
                raise NodeLost(self._why(str(error))) from None
            finally:
                self.calls.discard(scope)
        raise NodeLost(self._why(f"Node {self.node} was lost."))

    def _why(self, otherwise: str) -> str:
        """What the driver knows comes first: it has killed the host that now says so."""
        return self.lost or otherwise


@dataclass(slots=True)
class _Waiting:
    placed: anyio.Event
    item: Hashable
    host: Host | None = None


class Fleet:
    """All nodes of a cluster, each with a host. `open` starts them; `working` keeps them while a job runs."""

    def __init__(self, cluster: Cluster, say: Say, *, pulse_sec: float = PULSE_SEC) -> None:
        self._cluster: Final = cluster
        self.say = say
        self._pulse_sec: Final = pulse_sec
        self.hosts: Final[dict[str, Host]] = {}
        self.refused: Final[dict[str, str]] = {}
        """Nodes without a host, and why."""
        self.watches: Final[dict[str, NodeWatch]] = {}
        """All nodes that there have been."""
        self._candidates: Final[dict[str, Candidate]] = {}
        self._crowded = 1.0
        self._losses: Final[dict[str, str]] = {}
        self._line: Final = Line()
        self._waiting: Final[dict[int, _Waiting]] = {}
        self._starting: Final[set[str]] = set()
        self._failures: Final[dict[str, int]] = {}
        self._empty = False
        self._told = ""
        """Why rollouts wait, as it was last said."""

    @property
    def facts(self) -> dict[str, NodeFacts]:
        return {id_: host.facts for id_, host in self.hosts.items()}

    async def open(self) -> None:
        """Start a host on every node. A `UsageError` if none has one."""
        members = await self._cluster.members()
        async with anyio.create_task_group() as group:
            for node in sorted(members.values(), key=lambda node: node.id):
                group.start_soon(self._start, node)
        if not self.hosts:
            reasons = [f"{members[id_]}: {reason}" for id_, reason in self.refused.items() if id_ in members]
            reasons += [reason for id_, reason in self._losses.items() if id_ in members]
            why = f" {' '.join(reasons)}" if reasons else " Start one with `ray start --address=…` and --num-cpus."
            message = f"No node of the cluster can run rollouts.{why}"
            raise UsageError(message, code="no-nodes")

    def _watch(self, node: Node) -> NodeWatch:
        if node.id not in self.watches:
            self.watches[node.id] = NodeWatch(node_name(node.host, {watch.name for watch in self.watches.values()}))
        return self.watches[node.id]

    def crowd(self, concurrency: int) -> None:
        """How many rollouts the next job wants at once, which is shared by the nodes as they are now."""
        self._crowded = crowding(concurrency, sum(facts.processors for facts in self.facts.values()))
        for id_, candidate in self._candidates.items():
            self._candidates[id_] = candidate._replace(crowded=self._crowded)

    async def _start(self, node: Node) -> Host | None:
        self._starting.add(node.id)
        name = self._watch(node).name
        node = replace(node, host=name)  # messages call it what displays and results call it
        link: Link | None = None
        try:
            link = await self._cluster.start(node)
            with anyio.fail_after(FACTS_SEC):
                facts = await link.call("facts", name, node.processors)
        except BaseException as error:
            if link is not None:
                link.kill()
            if not isinstance(error, Exception):
                raise
            self._not_used(node, error)
            return None
        finally:
            self._starting.discard(node.id)
        self.refused.pop(node.id, None)
        host = self.hosts[node.id] = Host(node, link, facts)
        self._candidates[node.id] = Candidate(facts, NodeLoad(), self._crowded)
        return host

    def _not_used(self, node: Node, error: Exception) -> None:
        """A host could not be started: a node that was lost or silent has another chance later, another has not."""
        self._failures[node.id] = self._failures.get(node.id, 0) + 1
        if isinstance(error, NodeLost | TimeoutError):
            silent = f"Node {node} did not report what it has within {FACTS_SEC:g} s."
            self._losses[node.id] = silent if isinstance(error, TimeoutError) else str(error)
            self.say(self._losses[node.id])
            return
        self.refused[node.id] = str(error) if isinstance(error, NodeRefused) else f"{type(error).__name__}: {error}"
        self.say(f"Node {node} is not used: {self.refused[node.id]}")

    @asynccontextmanager
    async def working(self, places: JobPlaces) -> AsyncIterator[None]:
        """`watched`, with the nodes shown in the folder of the job."""
        board = NodeBoard(places, self.look)
        async with self.watched() as group:
            group.start_soon(board.keep)
            try:
                yield
            finally:
                board.end()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[TaskGroup]:
        """Pulse all nodes and take in those that join, until the block ends; the group ends with it."""
        async with anyio.create_task_group() as group:
            for host in self.hosts.values():
                group.start_soon(self._pulse, host)
            group.start_soon(self._watch_members, group)
            try:
                yield group
            finally:
                group.cancel_scope.cancel()

    async def _watch_members(self, group: TaskGroup) -> None:
        while True:
            await anyio.sleep(self._pulse_sec)
            try:
                members = await self._cluster.members()
            except NodeLost as error:
                self.say(str(error))
                continue
            for id_ in self.hosts.keys() - members.keys():
                self._lose(self.hosts[id_], f"Node {self.hosts[id_].node} has left the cluster.")
            for id_ in members.keys() - self.hosts.keys() - self._starting - self.refused.keys():
                self._starting.add(id_)
                group.start_soon(self._join, members[id_])
            self._tell_if_empty()
            self._tell_if_stuck()

    async def _join(self, node: Node) -> None:
        failures = self._failures.get(node.id, 0)
        if failures:
            await anyio.sleep(min(2.0**failures, _LONGEST_REST))
        host = await self._start(node)
        if host is not None:
            self.say(f"Node {host.node} has joined.")
            self._serve()
            await self._pulse(host)

    def _tell_if_empty(self) -> None:
        empty = not self.hosts
        if empty and not self._empty:
            self.say("No node is left in the cluster; the job waits until one joins.")
        self._empty = empty

    def _tell_if_stuck(self) -> None:
        """Say once why nothing runs, although rollouts wait and there are nodes."""
        idle = all(not candidate.load.rollouts for candidate in self._candidates.values())
        why = why_waiting(self._line.first(), self._candidates) if self.hosts and idle else None
        if why is not None and why != self._told:
            self.say(f"{len(self._line)} rollouts wait for a node: {why}.")
        self._told = why or ""

    def look(self) -> JobNodes:
        """All nodes and what they do now."""
        now = anyio.current_time()
        nodes = []
        for id_, watch in self.watches.items():
            if id_ in self.hosts:
                nodes.append(seen_node(id_, watch, self.hosts[id_], self._candidates[id_], now))
            elif id_ in self.refused or id_ in self._losses:
                nodes.append(gone_node(id_, watch, self.refused.get(id_), self._losses.get(id_)))
        waiting = why_waiting(self._line.first(), self._candidates)
        return JobNodes("running", timestamp(), len(self._line), tuple(nodes), waiting)

    async def _pulse(self, host: Host) -> None:
        """Pulse one node until it is lost."""
        while host.lost is None:
            answered = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(self._ask, host, answered)
                for _ in range(SILENT_SLICES):
                    with anyio.move_on_after(1.0):
                        await answered.wait()
                        break
                else:
                    self._lose(host, f"Node {host.node} has not responded for {SILENT_SLICES} s.")
                group.cancel_scope.cancel()
            await anyio.sleep(self._pulse_sec)

    async def _ask(self, host: Host, answered: anyio.Event) -> None:
        sent = time.time()
        try:
            finished = frozenset(host.finished)
            pulse: Pulse = await host.call("pulse", finished)
        except NodeLost as error:
            self._lose(host, str(error))
        except Exception as error:  # noqa: BLE001  # the boundary: a host that cannot tell how it is cannot be used
            self._lose(host, f"Node {host.node} was lost: {type(error).__name__}: {error}")
        else:
            host.pulse, host.heard_at = pulse, anyio.current_time()
            host.finished -= finished
            self.watches[host.node.id].skew.pulsed(sent, pulse.clock, time.time())
            candidate = self._candidates.get(host.node.id)
            if candidate is not None:
                load = replace(candidate.load.pulsed(pulse.vitals), environments=pulse.environments)
                self._candidates[host.node.id] = candidate._replace(load=load)
                self._serve()
        answered.set()

    def _lose(self, host: Host, reason: str) -> None:
        """A node is gone: all that it was doing ends here, and nothing that it still sends is taken."""
        if host.lost is not None:
            return
        host.lost = self._losses[host.node.id] = reason
        self.watches[host.node.id].lost += len(host.orders)
        if self.hosts.get(host.node.id) is host:
            del self.hosts[host.node.id], self._candidates[host.node.id]
        self._failures[host.node.id] = self._failures.get(host.node.id, 0) + 1
        host.link.kill()
        for scope in tuple(host.calls):
            scope.cancel()
        self.say(reason)
        self._tell_if_empty()

    @asynccontextmanager
    async def place(self, demand: Demand, item: Hashable) -> AsyncIterator[Host]:
        """A node for a rollout, as soon as one takes it; it counts there until the block ends.

        Raises `InfrastructureFailure` once no node is used any more, because starts kept failing on all.
        """
        self._require_hope()
        ticket = self._line.enter(demand)
        waiting = self._waiting[ticket] = _Waiting(anyio.Event(), item)
        self._serve()
        try:
            await waiting.placed.wait()
        except BaseException:
            if waiting.host is None:
                del self._waiting[ticket]
                self._line.leave(demand, ticket)
            else:
                self._ended(waiting.host, demand, item)
            raise
        host = waiting.host
        if host is None:
            self._require_hope()
            raise RuntimeError("A rollout was not placed on any node.")
        try:
            yield host
        finally:
            self._ended(host, demand, item)

    def returned(self, host: Host, item: Hashable, result: Result) -> None:
        """A rollout came back from a node with this result."""
        self.watches[host.node.id].ended(anyio.current_time(), item, result)
        if self._hopeless:
            for waiting in self._waiting.values():
                waiting.placed.set()

    @property
    def _hopeless(self) -> bool:
        return bool(self.hosts) and all(self.watches[id_].given_up for id_ in self.hosts)

    def _require_hope(self) -> None:
        if self._hopeless:
            last = next(watch.last_failure for id_, watch in self.watches.items() if id_ in self.hosts)
            message = (
                f"Starts kept failing on every node of the cluster, at last with: {last.rstrip('.')}. "
                "`bench eval resume` runs the rollouts that are left."
            )
            raise InfrastructureFailure(message, code="nodes-failing")

    def _ended(self, host: Host, demand: Demand, item: Hashable) -> None:
        self.watches[host.node.id].interrupted(anyio.current_time(), item)
        self._count(host, demand, begins=False)
        self._serve()

    def _serve(self) -> None:
        """Give nodes to those in line."""
        now = anyio.current_time()
        for id_ in self._candidates:
            self._rest(id_, now)
        while (placed := self._line.next(self._candidates)) is not None:
            waiting = self._waiting.pop(placed.ticket)
            waiting.host = self.hosts[placed.node]
            self._count(waiting.host, placed.demand, begins=True)
            self.watches[placed.node].begins(now, waiting.item)
            self._rest(placed.node, now)
            waiting.placed.set()

    def _rest(self, id_: str, now: float) -> None:
        candidate, resting = self._candidates[id_], self.watches[id_].resting(now)
        if candidate.load.resting != resting:
            self._candidates[id_] = candidate._replace(load=replace(candidate.load, resting=resting))

    def _count(self, host: Host, demand: Demand, *, begins: bool) -> None:
        candidate = self._candidates.get(host.node.id)
        if candidate is not None and self.hosts.get(host.node.id) is host:
            load = candidate.load.with_rollout(demand) if begins else candidate.load.without_rollout(demand)
            self._candidates[host.node.id] = candidate._replace(load=load)

    def lost(self, host: Host, error: NodeLost) -> None:
        """A call to a node has failed."""
        self._lose(host, str(error))

    async def close(self) -> None:
        """End the hosts with everything they run, then the connection."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for host in self.hosts.values():
                    group.start_soon(_close, host)
            self.hosts.clear()
            self._candidates.clear()
            await self._cluster.close()


async def _close(host: Host) -> None:
    with anyio.move_on_after(CLOSE_SEC):
        with suppress(Exception):  # it is ended either way
            await host.link.call("close")
    host.link.kill()
