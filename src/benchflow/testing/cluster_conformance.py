"""`check_cluster`: does a cluster keep what the protocol promises? For the tests of every implementation.

from benchflow.testing import CONFORMANCE_HOST, check_cluster

async def test_my_cluster_conforms():
    await check_cluster(MyCluster(CONFORMANCE_HOST))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from benchflow.cluster import Cluster, Link, Node, NodeLost
from benchflow.errors import UsageError

CONFORMANCE_HOST: Final = "benchflow.testing.cluster_conformance:ConformanceHost"
"""What the nodes of a cluster that is checked have to host, without arguments."""
_SECONDS: Final = 180.0
"""The checks do not take so long, even on a busy machine."""


class ConformanceHost:
    """Does what the checks ask for."""

    def __init__(self) -> None:
        self._gates: dict[str, anyio.Event] = {}
        self._passed: list[str] = []

    async def echo(self, *values: object) -> tuple[object, ...]:
        return values

    async def pass_gate(self, name: str) -> str:
        """Answered when the gate is opened."""
        await self._gate(name).wait()
        self._passed.append(name)
        return name

    async def open_gate(self, name: str) -> None:
        self._gate(name).set()

    async def waiting(self) -> list[str]:
        """The gates at which a call waits, or waited."""
        return sorted(self._gates)

    async def passed(self) -> list[str]:
        return self._passed

    async def fail(self) -> None:
        raise UsageError("This cannot work.", code="conformance")

    def _gate(self, name: str) -> anyio.Event:
        return self._gates.setdefault(name, anyio.Event())


async def check_cluster(cluster: Cluster) -> tuple[str, ...]:
    """Check every promise, on the first node; returns what was checked. The cluster is closed at the end.

    Few hosts are started, because a real cluster takes seconds for each.
    """
    with anyio.fail_after(_SECONDS):
        await _members_are_listed_by_their_id(cluster)
        node = next(iter((await cluster.members()).values()))
        link = await cluster.start(node)
        kept = ["members are listed by their id"]
        for promise in _PROMISES:
            name = promise.__name__.strip("_").replace("_", " ")
            try:
                await promise(cluster, link)
            except (AssertionError, NodeLost, TimeoutError) as error:
                raise AssertionError(f"{name}: {error}") from error
            kept.append(name)
    return tuple(kept)


async def _members_are_listed_by_their_id(cluster: Cluster) -> None:
    members = await cluster.members()
    _require(bool(members), "the cluster has no members")
    _require(all(key == member.id for key, member in members.items()), members)


async def _values_arrive_as_they_were_sent(_cluster: Cluster, link: Link) -> None:
    sent = (1, "two", b"\x00three" * 400_000, {"four": [5, None]})
    _require(await link.call("echo", *sent) == sent)
    shared: list[object] = []
    [answer] = await link.call("echo", shared)
    _require(answer is not shared)


async def _errors_of_the_host_arrive_whole(_cluster: Cluster, link: Link) -> None:
    for method, kind in (("fail", UsageError), ("missing", AttributeError), ("_gate", AttributeError)):
        error = await _error(link.call(method))
        _require(isinstance(error, kind), repr(error))
    error = await _error(link.call("fail"))
    _require((str(error), getattr(error, "code", None)) == ("This cannot work.", "conformance"), repr(error))


async def _a_call_that_waits_holds_up_no_other(_cluster: Cluster, link: Link) -> None:
    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(link.call, "pass_gate", str(number))
        await _until(link, "waiting", 50)
        for number in range(50):
            await link.call("open_gate", str(number))
    _require(len(await link.call("passed")) == 50)


async def _a_caller_that_gives_up_stops_nothing(_cluster: Cluster, link: Link) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(link.call, "pass_gate", "given up")
        await _until(link, "waiting", 51)
        group.cancel_scope.cancel()
    await link.call("open_gate", "given up")
    await _until(link, "passed", 51)


async def _hosts_share_nothing_and_a_killed_one_is_lost(cluster: Cluster, link: Link) -> None:
    other = await cluster.start(link.node)
    _require(other.node == link.node, other.node)
    _require(await other.call("waiting") == [])
    errors = []

    async def call() -> None:
        errors.append(await _error(other.call("pass_gate", "never")))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await _until(other, "waiting", 1)
        other.kill()
    errors.append(await _error(other.call("echo")))
    other.kill()
    _require([type(error) for error in errors] == [NodeLost, NodeLost], errors)
    _require(await link.call("echo") == ())


async def _a_node_that_is_not_a_member_is_lost(cluster: Cluster, link: Link) -> None:
    stranger = Node(link.node.id[::-1], "nowhere", "192.0.2.1")
    error = await _error(cluster.start(stranger))
    _require(isinstance(error, NodeLost), repr(error))


async def _closing_ends_every_host_and_can_be_repeated(cluster: Cluster, link: Link) -> None:
    await cluster.close()
    await cluster.close()
    error = await _error(link.call("echo"))
    _require(isinstance(error, NodeLost), repr(error))


_PROMISES: Final[tuple[Callable[[Cluster, Link], Awaitable[None]], ...]] = (
    _values_arrive_as_they_were_sent,
    _errors_of_the_host_arrive_whole,
    _a_call_that_waits_holds_up_no_other,
    _a_caller_that_gives_up_stops_nothing,
    _hosts_share_nothing_and_a_killed_one_is_lost,
    _a_node_that_is_not_a_member_is_lost,
    _closing_ends_every_host_and_can_be_repeated,
)


async def _until(link: Link, method: str, count: int) -> None:
    while len(await link.call(method)) < count:  # noqa: ASYNC110 - the host is in another process
        await anyio.sleep(0.01)


async def _error(call: Awaitable[object]) -> Exception | None:
    try:
        await call
    except Exception as error:  # noqa: BLE001 - what it is, is checked
        return error
    return None


def _require(holds: bool, seen: object = "") -> None:
    if not holds:
        raise AssertionError(f"not so: {seen}" if seen else "not so")
