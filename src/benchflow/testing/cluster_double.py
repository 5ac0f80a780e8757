"""A cluster in this process, with machines that fail when a test says so.

    async with InProcessCluster(NodeHost, arguments, nodes=2) as cluster:
        one, two = cluster.nodes
        cluster.inject(one, "run", CallFault(lost="during"))
        ...
        cluster.cut(two)        # nothing passes either way; its host keeps working
        cluster.mend(two)       # what was held back arrives, late

Hosts are ordinary objects. What goes to and fro is pickled, so that nothing is shared by accident and its size is
known. As on real clusters, a caller that gives up does not stop what the host does. What cannot be shown here: hosts
share one process, so that one that is killed still runs its `finally` blocks, and modules keep their state.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Any, Final, Literal, Self

import anyio
import anyio.abc
import anyio.lowlevel

from benchflow.cluster import Node, NodeLost, NodeRefused

START: Final = "start"
"""The name under which faults of `Cluster.start` are injected."""


START_SEC: Final = 120.0
"""A start that hangs is given up, as real clusters do."""


@dataclass(frozen=True, slots=True)
class CallFault:
    """What goes wrong with one call."""

    lost: Literal["before", "during", "after"] | None = None
    """The node is lost before the host sees the call, as soon as the call waits for something, or when it has been
    answered but the answer has not left."""
    unnoticed: bool = False
    """The cluster does not notice that loss: the node stays a member, and its calls stay open."""
    delay: float = 0.0
    """Seconds until the call reaches the host; `math.inf` for never."""
    late: float = 0.0
    """Seconds until the answer reaches the caller, measured from when the host gave it; `math.inf` for never."""
    change: Callable[[Any], Any] | None = None
    """The answer arrives as this function returns it: a skewed clock, a damaged byte."""


NO_FAULT: Final = CallFault()
Weather = Callable[[Node, str], CallFault | None]
"""Decides on every call; see `InProcessCluster.weather`."""
_Work = Callable[..., Awaitable[Any]]


class InProcessCluster:
    """A `Cluster` whose hosts live in this process."""

    def __init__(
        self, host: Callable[..., object] | str, arguments: tuple[object, ...] = (), *, nodes: int = 0
    ) -> None:
        self._host, self._arguments = host, pickle.dumps(tuple(arguments))
        self._machines: dict[str, _Machine] = {}
        self._numbers = itertools.count(1)
        self._faults: defaultdict[tuple[str, str], deque[CallFault]] = defaultdict(deque)
        self._group: anyio.abc.TaskGroup | None = None
        self.weather: Weather = lambda _node, _method: None
        """Asked about every call without an injected fault."""
        self.unreachable = False
        """Whether `members` fails, as when the head of a cluster is gone."""
        self.calls: Counter[tuple[str, str]] = Counter()
        """How often a method of a node was called, by node and method."""
        self.sent = 0
        """Bytes of all arguments."""
        self.received = 0
        """Bytes of all answers that were delivered."""
        self.grow(nodes)

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    @property
    def _tasks(self) -> anyio.abc.TaskGroup:
        if self._group is None:
            raise RuntimeError("Enter the cluster before it is used: `async with InProcessCluster(...) as cluster`.")
        return self._group

    # What every cluster offers

    async def members(self) -> Mapping[str, Node]:
        await anyio.lowlevel.checkpoint()
        if self.unreachable:
            raise NodeLost("The cluster cannot be reached.")
        return {machine.node.id: machine.node for machine in self._machines.values() if machine.listed}

    async def start(self, node: Node) -> _InProcessLink:
        machine = self._machines.get(node.id)
        if machine is None or not machine.listed:
            raise NodeLost(f"Node {node} is not in the cluster.")
        link = _InProcessLink(self, machine, self._tasks)
        machine.links.append(link)
        with anyio.move_on_after(START_SEC) as limit:
            await link.begin(self._host, self._arguments)
        if limit.cancelled_caught:
            link.kill()
            raise NodeLost(f"Node {node} did not start a host within {START_SEC:g} s.")
        return link

    async def close(self) -> None:
        for machine in self._machines.values():
            machine.end("the cluster was closed")
        await anyio.lowlevel.checkpoint()

    # What tests do to it

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All that are in the cluster, in the order in which they joined."""
        return tuple(machine.node for machine in self._machines.values() if machine.listed)

    def grow(self, count: int = 1) -> tuple[Node, ...]:
        """Machines join."""
        added = []
        for number in itertools.islice(self._numbers, count):
            node = Node(f"node-{number}", f"machine-{number}", f"10.0.{number // 250}.{number % 250 + 1}")
            self._machines[node.id] = _Machine(node)
            added.append(node)
        return tuple(added)

    def lose(self, node: Node, *, unnoticed: bool = False) -> None:
        """A machine stops. Until the cluster notices, it stays a member and its open calls stay open."""
        self._machines[node.id].stop(unnoticed=unnoticed)

    def notice(self, node: Node) -> None:
        """The cluster notices a loss that it had not noticed."""
        self._machines[node.id].stop(unnoticed=False)

    def cut(self, node: Node) -> None:
        """Nothing passes between a machine and its callers; its host keeps working, and nobody notices."""
        machine = self._machines[node.id]
        if machine.reachable.is_set():
            machine.reachable = anyio.Event()

    def mend(self, node: Node) -> None:
        """What was held back by `cut` arrives, also that a host was killed."""
        machine = self._machines[node.id]
        machine.reachable.set()
        for link in machine.links:
            link.stop_if_ended()

    def refuse(self, node: Node, sentence: str | None) -> None:
        """No host can be started on a node, for this reason; None: it can again."""
        self._machines[node.id].refusal = sentence

    def inject(self, node: Node, method: str, *faults: CallFault | None) -> None:
        """The next calls of a method on a node fail like this, one after the other; None leaves one alone.

        `START` is the method for the start of a host.
        """
        self._faults[node.id, method].extend(fault or NO_FAULT for fault in faults)

    def host(self, node: Node) -> Any:
        """The host that was started last on a node, for a test that looks inside."""
        return self._machines[node.id].links[-1].host

    def fault(self, node: Node, method: str) -> CallFault:
        """What happens to the call that is made now; it is counted."""
        self.calls[node.id, method] += 1
        waiting = self._faults.get((node.id, method))
        return waiting.popleft() if waiting else self.weather(node, method) or NO_FAULT


@dataclass(slots=True)
class _Machine:
    """One machine and the hosts on it."""

    node: Node
    listed: bool = True
    """Whether the cluster believes that it is alive."""
    running: bool = True
    refusal: str | None = None
    reachable: anyio.Event = field(default_factory=anyio.Event)
    links: list[_InProcessLink] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reachable.set()

    def stop(self, *, unnoticed: bool) -> None:
        self.running = False
        for link in self.links:
            link.stop_work()
        if not unnoticed:
            self.listed = False
            self.end(f"node {self.node} left the cluster")

    def end(self, reason: str) -> None:
        for link in self.links:
            link.end(reason)


class _Exchange:
    """One open call."""

    __slots__ = ("_answer", "_done", "_error")

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._answer: Any = None
        self._error: BaseException | None = None

    def answer(self, value: Any) -> None:
        self._answer = value
        self._done.set()

    def fail(self, error: BaseException) -> None:
        if not self._done.is_set():
            self._error = error
            self._done.set()

    async def result(self) -> Any:
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._answer


class _InProcessLink:
    """A host, and the calls to it."""

    def __init__(self, cluster: InProcessCluster, machine: _Machine, group: anyio.abc.TaskGroup) -> None:
        self.node = machine.node
        self.host: Any = None
        self._cluster, self._machine, self._group = cluster, machine, group
        self._open: set[_Exchange] = set()
        self._work: set[anyio.CancelScope] = set()
        self._ended: str | None = None

    async def begin(self, host: Callable[..., object] | str, arguments: bytes) -> None:
        """Make the host, or raise what a cluster raises."""

        async def made() -> None:
            if self._machine.refusal is not None:
                raise NodeRefused(self._machine.refusal)
            try:
                self.host = _named(host)(*pickle.loads(arguments))  # noqa: S301 - pickled above, in this process
            except Exception as error:
                raise NodeRefused(f"The host could not be started on {self.node}: {error}") from error

        await self._exchange(START, made, ())

    async def call(self, method: str, /, *arguments: object) -> Any:
        if method.startswith("_"):
            raise AttributeError(f"'{method}' is not a method for others.")
        return await self._exchange(method, partial(self._work_of_host, method), arguments)

    async def _work_of_host(self, method: str, *arguments: object) -> Any:
        return await getattr(self.host, method)(*arguments)

    async def _exchange(self, method: str, work: _Work, arguments: tuple[object, ...]) -> Any:
        if self._ended is not None:
            await anyio.lowlevel.checkpoint()
            raise NodeLost(self._ended)
        request = pickle.dumps(arguments)
        self._cluster.sent += len(request)
        exchange = _Exchange()
        self._open.add(exchange)
        fault = self._cluster.fault(self.node, method)
        self._group.start_soon(self._carry, exchange, fault, work, request)
        try:
            return await exchange.result()
        finally:
            self._open.discard(exchange)

    async def _carry(self, exchange: _Exchange, fault: CallFault, work: _Work, request: bytes) -> None:
        """The way of a call to the host and of its answer back. The caller may have left by then."""
        with anyio.CancelScope() as scope:
            self._work.add(scope)
            try:
                await self._pass(fault.delay)
                if fault.lost == "before" or not self._machine.running:
                    await self._lose(fault)
                answer, failed = await self._worked(fault, work, request)
                if fault.lost == "after":
                    await self._lose(fault)
                await self._pass(fault.late)
                self._deliver(exchange, fault, answer, failed=failed)
            finally:
                self._work.discard(scope)

    async def _pass(self, seconds: float) -> None:
        """Time on the way; a cut wire holds everything back."""
        await (anyio.sleep_forever() if math.isinf(seconds) else anyio.sleep(seconds))
        await self._machine.reachable.wait()

    async def _lose(self, fault: CallFault) -> None:
        if self._machine.running:
            self._machine.stop(unnoticed=fault.unnoticed)
        await anyio.sleep_forever()  # nothing more happens on this machine

    async def _worked(self, fault: CallFault, work: _Work, request: bytes) -> tuple[bytes, bool]:
        """The pickled answer, or the pickled error."""
        try:
            if fault.lost == "during":
                self._group.start_soon(self._lose, fault)
            return pickle.dumps(await work(*pickle.loads(request))), False  # noqa: S301 - pickled in this process
        except Exception as error:  # noqa: BLE001 - whatever the host raises travels to the caller
            return _pickled_error(error), True

    def _deliver(self, exchange: _Exchange, fault: CallFault, answer: bytes, *, failed: bool) -> None:
        if exchange not in self._open:
            return
        self._cluster.received += len(answer)
        value = pickle.loads(answer)  # noqa: S301 - pickled above, in this process
        if failed:
            exchange.fail(value)
        else:
            exchange.answer(fault.change(value) if fault.change else value)

    def kill(self) -> None:
        self.end(f"the host on {self.node} was killed")

    def stop_work(self) -> None:
        """End what the host does; its callers wait on."""
        for scope in self._work:
            scope.cancel()

    def stop_if_ended(self) -> None:
        """A host that was killed stops when it hears of it."""
        if self._ended is not None and (self._machine.reachable.is_set() or not self._machine.running):
            self.stop_work()

    def end(self, reason: str) -> None:
        """Nothing comes back from this host any more."""
        if self._ended is None:
            self._ended = f"{reason[0].upper()}{reason[1:]}."
            self.stop_if_ended()
            for exchange in self._open:
                exchange.fail(NodeLost(self._ended))


def _pickled_error(error: Exception) -> bytes:
    """An error that does not survive the journey is described instead."""
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - pickled above, in this process
    except Exception:  # noqa: BLE001 - the error's own code runs in both directions
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return pickled


def _named(host: Callable[..., object] | str) -> Callable[..., object]:
    """A class, or the one that `module:Class` names."""
    if not isinstance(host, str):
        return host
    module, _, name = host.partition(":")
    found: Callable[..., object] = getattr(import_module(module), name)
    return found
