"""The cluster in this process: what can be made to fail, and what a caller sees of it."""

import math
from collections.abc import Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from benchflow.cluster import Node, NodeLost, NodeRefused
from benchflow.testing import CallFault, InProcessCluster, VirtualTimeLoop
from benchflow.testing.cluster_double import START

pytestmark = pytest.mark.anyio


class Host:
    """Works when it is told, and remembers it."""

    def __init__(self, started: str = "ready") -> None:
        self.started = started
        self.worked: list[object] = []
        self.may_finish = anyio.Event()
        self.may_let_go = anyio.Event()

    async def work(self, order: object) -> list[object]:
        await anyio.lowlevel.checkpoint()
        self.worked.append(order)
        return [self.started, order]

    async def wait(self, order: object) -> object:
        await self.may_finish.wait()
        self.worked.append(order)
        return order

    async def hold(self, order: object) -> None:
        await self.may_let_go.wait()
        self.worked.append(order)

    async def clock(self) -> float:
        return 100.0


@asynccontextmanager
async def open_call(link, method: str, *arguments: object):
    """A call that is under way, and where its outcome will be."""
    outcome: list[object] = []

    async def call() -> None:
        try:
            outcome.append(await link.call(method, *arguments))
        except NodeLost as error:
            outcome.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        yield outcome


async def lost(call) -> str:
    with pytest.raises(NodeLost) as caught:
        await call
    return str(caught.value)


@pytest.mark.parametrize(("moment", "worked"), [("before", []), ("during", []), ("after", ["an order"])])
async def test_a_node_is_lost_at_the_chosen_moment_of_a_call(moment, worked):
    async with InProcessCluster(Host, nodes=2) as cluster:
        link = await cluster.start(cluster.nodes[0])
        host = cluster.host(link.node)
        cluster.inject(link.node, "work", CallFault(lost=moment))
        assert await lost(link.call("work", "an order")) == "Node machine-1 (10.0.0.2, node-1) left the cluster."
        assert host.worked == worked
        assert list(await cluster.members()) == ["node-2"]
        assert await lost(link.call("work", "another")) == "Node machine-1 (10.0.0.2, node-1) left the cluster."
        assert await lost(cluster.start(link.node)) == "Node machine-1 (10.0.0.2, node-1) is not in the cluster."


async def test_a_loss_that_nobody_notices_leaves_calls_open_until_it_is_noticed():
    async with InProcessCluster(Host, nodes=1) as cluster:
        link = await cluster.start(cluster.nodes[0])
        async with open_call(link, "wait", 1) as first:
            cluster.lose(link.node, unnoticed=True)
            cluster.host(link.node).may_finish.set()
            async with open_call(link, "work", 2) as second:
                assert (first, second, cluster.host(link.node).worked) == ([], [], [])
                assert list(await cluster.members()) == ["node-1"]
                cluster.notice(link.node)
        assert [type(outcome) for outcome in (*first, *second)] == [NodeLost, NodeLost]
        assert await cluster.members() == {}


async def test_a_cut_node_keeps_working_and_its_answer_is_late():
    async with InProcessCluster(Host, nodes=1) as cluster:
        link = await cluster.start(cluster.nodes[0])
        async with open_call(link, "wait", "order") as outcome:
            cluster.cut(link.node)
            cluster.host(link.node).may_finish.set()
            await anyio.wait_all_tasks_blocked()
            assert (outcome, cluster.host(link.node).worked) == ([], ["order"])
            assert list(await cluster.members()) == ["node-1"]
            cluster.mend(link.node)
        assert outcome == ["order"]


async def test_a_cut_host_hears_that_it_was_killed_when_the_node_is_back():
    async with InProcessCluster(Host, nodes=1) as cluster:
        link = await cluster.start(cluster.nodes[0])
        host = cluster.host(link.node)
        async with open_call(link, "wait", "order") as outcome, open_call(link, "hold", "longer") as other:
            cluster.cut(link.node)
            link.kill()
            host.may_finish.set()
            await anyio.wait_all_tasks_blocked()
            assert host.worked == ["order"]
            cluster.mend(link.node)
            await anyio.wait_all_tasks_blocked()
            host.may_let_go.set()
        assert host.worked == ["order"]
        assert [type(each) for each in (*outcome, *other)] == [NodeLost, NodeLost]


async def test_a_caller_that_gives_up_does_not_stop_the_host():
    async with InProcessCluster(Host, nodes=1) as cluster:
        link = await cluster.start(cluster.nodes[0])
        with anyio.move_on_after(0) as given_up:
            await link.call("wait", "order")
        assert given_up.cancelled_caught
        cluster.host(link.node).may_finish.set()
        await anyio.wait_all_tasks_blocked()
        assert cluster.host(link.node).worked == ["order"]


async def test_a_call_can_hang_before_the_host_sees_it_and_after_it_answered():
    async with InProcessCluster(Host, nodes=1) as cluster:
        link = await cluster.start(cluster.nodes[0])
        cluster.inject(link.node, "work", CallFault(delay=math.inf), CallFault(late=math.inf), None)
        async with open_call(link, "work", 1) as never_arrives, open_call(link, "work", 2) as never_answered:
            assert await link.call("work", 3) == ["ready", 3]
            assert cluster.host(link.node).worked == [2, 3]
            link.kill()
        assert [str(outcome) for outcome in (*never_arrives, *never_answered)] == 2 * [
            "The host on machine-1 (10.0.0.2, node-1) was killed."
        ]


async def test_an_answer_can_be_changed_on_its_way_like_that_of_a_skewed_clock():
    async with InProcessCluster(Host, nodes=1) as cluster:
        link = await cluster.start(cluster.nodes[0])
        cluster.inject(link.node, "clock", CallFault(change=lambda seconds: seconds + 3600))
        assert [await link.call("clock") for _ in range(2)] == [3700.0, 100.0]


async def test_a_node_on_which_no_host_starts_says_why():
    def broken() -> None:
        raise ImportError("No module named 'benchflow'")

    async with InProcessCluster(broken, nodes=1) as cluster:
        [node] = cluster.nodes
        with pytest.raises(NodeRefused, match="could not be started on machine-1 .*: No module named 'benchflow'"):
            await cluster.start(node)
        cluster.refuse(node, "Node machine-1 runs version 0.1.")
        with pytest.raises(NodeRefused, match="runs version 0.1"):
            await cluster.start(node)
        cluster.inject(node, START, CallFault(lost="before"))
        assert "machine-1" in await lost(cluster.start(node))


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": VirtualTimeLoop})])
async def test_a_start_that_hangs_is_given_up():
    async with InProcessCluster(Host, nodes=1) as cluster:
        cluster.inject(cluster.nodes[0], START, CallFault(delay=math.inf))
        with pytest.raises(NodeLost, match="did not start a host within 120 s"):
            await cluster.start(cluster.nodes[0])


async def test_a_cluster_shrinks_to_nothing_and_grows_again_with_new_nodes():
    async with InProcessCluster(Host, nodes=2) as cluster:
        for node in cluster.nodes:
            cluster.lose(node)
        assert await cluster.members() == {}
        [new] = cluster.grow()
        assert await cluster.members() == {"node-3": new}
        assert await (await cluster.start(new)).call("work", 1) == ["ready", 1]


async def test_a_cluster_that_cannot_be_reached_is_lost_as_a_whole():
    async with InProcessCluster(Host, nodes=1) as cluster:
        cluster.unreachable = True
        assert await lost(cluster.members()) == "The cluster cannot be reached."


async def test_a_new_host_is_started_where_one_was_killed():
    async with InProcessCluster(Host, nodes=1) as cluster:
        first = await cluster.start(cluster.nodes[0])
        first.kill()
        second = await cluster.start(cluster.nodes[0])
        assert "was killed" in await lost(first.call("work", 1))
        assert await second.call("work", 1) == ["ready", 1]


async def test_weather_decides_on_every_call_that_no_injected_fault_decides():
    def weather(node: Node, method: str) -> CallFault | None:
        return CallFault(change=lambda answer: [*answer, "rain"]) if method == "work" else None

    async with InProcessCluster(Host, nodes=1) as cluster:
        cluster.weather = weather
        link = await cluster.start(cluster.nodes[0])
        cluster.inject(link.node, "work", None)
        assert await link.call("work", 1) == ["ready", 1]
        assert await link.call("work", 1) == ["ready", 1, "rain"]
        assert cluster.calls == {("node-1", START): 1, ("node-1", "work"): 2}


async def test_nothing_of_a_host_runs_after_the_cluster_was_left():
    async with InProcessCluster(Host, nodes=1) as cluster:
        link = await cluster.start(cluster.nodes[0])
        host: Callable[..., object] = cluster.host(link.node)
        with anyio.move_on_after(0):
            await link.call("wait", "order")
    host.may_finish.set()
    await anyio.wait_all_tasks_blocked()
    assert host.worked == []
    assert "The cluster was closed." in await lost(link.call("work", 1))
