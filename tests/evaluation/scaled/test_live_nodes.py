"""Nodes while they work: clocks that differ, machines that keep failing, and what is written for those who watch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.evaluation.scaled.abilities import Demand, NodeFacts
from benchflow.evaluation.scaled.admission import Vitals
from benchflow.evaluation.scaled.fleet import Fleet
from benchflow.evaluation.scaled.live.clock_skew import ClockSkew
from benchflow.evaluation.scaled.live.node_watch import NODE_RULES, node_name
from benchflow.evaluation.scaled.orders import Pulse
from benchflow.evaluation.scaled.scaled_runner import ScaledRunner
from benchflow.evaluation.sources import Sources
from benchflow.record import JobPlaces, JobRequest, Result, outcome_of, read_nodes
from benchflow.record.reading.live_rollouts import LiveRollouts
from benchflow.rewards import Unscored
from benchflow.rollout import lifecycle
from benchflow.testing import CallFault, InProcessCluster, VirtualTimeLoop
from benchflow.testing.cluster_double import START
from made_jobs import made_result

FAILED = outcome_of(Unscored("sandbox", "environment", "sandbox-lost", "The disk is full."))


class Host:
    """A node that only says how it is."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead

    async def facts(self, name: str, processors: float | None) -> NodeFacts:
        return NodeFacts(name, processors or 2, 4096, 50_000)

    async def pulse(self, finished: frozenset[str]) -> Pulse:
        del finished
        return Pulse(Vitals(4000, 50_000), time.time() + self.ahead)

    async def close(self) -> None: ...


def in_virtual_time(work: Any) -> Any:
    return anyio.run(work, backend_options={"loop_factory": VirtualTimeLoop})


def result(*, failed: bool) -> Result:
    made = made_result("acme/task", 1, 1.0)
    return replace(made, outcome=FAILED) if failed else made


@given(
    st.floats(-1e6, 1e6),
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1)), min_size=1, max_size=40),
)
def test_the_clock_of_a_node_is_known_as_well_as_its_quickest_answer_tells(
    ahead: float, answers: list[tuple[float, float]]
) -> None:
    skew, here = ClockSkew(), 1_700_000_000.0
    for took, share in answers:
        skew.pulsed(here, here + took * share + ahead, here + took)
        here += took + 2
    offset = skew.offset
    assert offset is not None
    assert abs(offset.ahead - ahead) <= offset.uncertain + 1e-5
    assert offset.uncertain <= min(took for took, _ in answers[-30:]) / 2 + 1e-5
    assert (skew.noted is None) or abs(skew.noted) >= 0.9


def test_a_clock_that_agrees_is_not_noted_and_one_that_does_not_is_converted() -> None:
    skew = ClockSkew()
    assert (skew.noted, skew.here("2026-01-01T00:00:00.000Z")) == (None, "2026-01-01T00:00:00.000Z")
    skew.pulsed(100.0, 100.4, 100.1)
    assert skew.noted is None
    skew.pulsed(200.0, 100.0, 199.0)
    assert skew.noted is None, "the driver's own clock was set back: that says nothing of the node"
    skew = ClockSkew()
    skew.pulsed(100.0, 3700.05, 100.1)
    assert skew.noted == 3600.0
    assert skew.here("2026-01-01T02:00:00.000Z") == "2026-01-01T01:00:00.000+00:00"
    assert skew.here("") == ""


def test_nodes_of_one_machine_are_numbered() -> None:
    assert [node_name("vm", taken) for taken in ((), ("vm",), ("vm", "vm-2"))] == ["vm", "vm-2", "vm-3"]


def test_a_node_where_starts_keep_failing_rests_while_the_other_takes_its_work() -> None:
    async def main() -> tuple[Mapping[str, int], list[Any]]:
        placed: dict[str, int] = {}
        async with InProcessCluster(Host, (), nodes=2) as cluster:
            fleet = Fleet(cluster, lambda _: None)
            await fleet.open()
            bad = min(fleet.hosts)
            for number in range(60):
                async with fleet.place(Demand(), number) as host:
                    placed[host.node.id] = placed.get(host.node.id, 0) + 1
                    fleet.returned(host, number, result(failed=host.node.id == bad))
            looked = fleet.look()
            await fleet.close()
        return placed, [node for node in looked.nodes if node.id == bad]

    placed, [bad] = in_virtual_time(main)
    assert placed[bad.id] == NODE_RULES.failures
    assert (bad.state, "The disk is full." in bad.reason) == ("resting", True)


def test_after_its_pause_a_node_gets_one_trial_and_works_again_when_that_succeeds(tmp_path: Path) -> None:
    async def main() -> None:
        async with InProcessCluster(Host, (), nodes=1) as cluster:
            fleet = Fleet(cluster, lambda _: None)
            await fleet.open()
            async with fleet.working(JobPlaces(tmp_path)):
                for number in range(NODE_RULES.failures):
                    async with fleet.place(Demand(), number) as host:
                        fleet.returned(host, number, result(failed=True))
                began = anyio.current_time()
                async with fleet.place(Demand(), "trial") as host:
                    assert anyio.current_time() - began >= NODE_RULES.first_pause_sec - 0.1
                    with anyio.move_on_after(1.0) as waited:
                        async with fleet.place(Demand(), "beside"):
                            pytest.fail("another one began beside the trial")
                    assert waited.cancelled_caught
                    fleet.returned(host, "trial", result(failed=False))
                async with fleet.place(Demand(), "next"), fleet.place(Demand(), "beside"):
                    assert fleet.look().nodes[0].state == "ready"
            await fleet.close()

    in_virtual_time(main)


def test_a_node_that_is_slow_to_start_is_tried_again_and_joins(tmp_path: Path) -> None:
    said: list[str] = []

    async def main() -> None:
        async with InProcessCluster(Host, (), nodes=2) as cluster:
            slow = cluster.nodes[1]
            cluster.inject(slow, START, CallFault(delay=math.inf))
            fleet = Fleet(cluster, said.append)
            await fleet.open()
            assert slow.id not in fleet.hosts
            async with fleet.working(JobPlaces(tmp_path)):
                await anyio.sleep(60)
                assert slow.id in fleet.hosts
            await fleet.close()

    in_virtual_time(main)
    assert [each for each in said if "within 120 s" in each or "has joined" in each] == said[:2]


def test_where_no_node_starts_in_time_the_job_is_refused_with_that_reason() -> None:
    async def main() -> None:
        async with InProcessCluster(Host, (), nodes=1) as cluster:
            cluster.inject(cluster.nodes[0], START, CallFault(delay=math.inf))
            with pytest.raises(UsageError, match=r"No node .* did not start a host within 120 s"):
                await Fleet(cluster, lambda _: None).open()

    in_virtual_time(main)


def test_a_job_ends_with_a_reason_when_every_node_has_been_given_up(tmp_path: Path) -> None:
    tried: list[int] = []

    async def work(fleet: Fleet) -> None:
        request = JobRequest((), "nop")
        async with ScaledRunner(fleet, request, Sources(request), JobPlaces(tmp_path)):
            while True:
                tried.append(len(tried))
                async with fleet.place(Demand(), tried[-1]) as host:
                    fleet.returned(host, tried[-1], result(failed=True))

    async def main() -> None:
        async with InProcessCluster(Host, (), nodes=2) as cluster:
            fleet = Fleet(cluster, lambda _: None)
            await fleet.open()
            with pytest.raises(InfrastructureFailure, match=r"on every node .*, at last with: The disk is full\."):
                await work(fleet)
            await fleet.close()

    in_virtual_time(main)
    assert len(tried) < 50, "each node is tried only a few times"


def test_who_watches_sees_nodes_their_clocks_and_why_others_wait_until_the_job_ends(tmp_path: Path) -> None:
    places = JobPlaces(tmp_path)
    places.lock.touch()

    async def main() -> None:
        async with InProcessCluster(Host, (5.0,), nodes=1) as cluster:
            fleet = Fleet(cluster, lambda _: None)
            await fleet.open()

            async def second() -> None:
                async with fleet.place(Demand(memory_mb=1000), 2):
                    pytest.fail("it was placed beside the first")

            async with (
                fleet.working(places),
                fleet.place(Demand(memory_mb=4000), 1),
                anyio.create_task_group() as group,
            ):
                group.start_soon(second)
                await anyio.sleep(5)
                seen = LiveRollouts(tmp_path).nodes()
                group.cancel_scope.cancel()
            await fleet.close()
            assert seen is not None
            [node] = seen.nodes
            assert (node.state, node.memory_free_mb) == ("ready", 4000)
            assert node.clock_offset_sec == pytest.approx(5.0, abs=0.9)
            assert (seen.state, seen.waiting) == ("running", 1)
            assert "has 4000 of 4096 MB of memory reserved, and this takes 1000" in (seen.message or "")

    in_virtual_time(main)
    ended = read_nodes(places.nodes)
    assert ended is not None
    assert (ended.state, ended.waiting, ended.live) == ("ended", 0, ())
    assert json.loads(places.nodes.read_bytes())["schema"] == "benchcube.nodes.v1"


def test_a_clock_that_is_set_back_does_not_end_a_rollout_before_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(["2026-11-18T03:00:00.000Z", "2026-11-18T02:00:00.000Z"])
    monkeypatch.setattr(lifecycle, "timestamp", lambda: next(times))
    made = made_result("acme/task")
    draft = lifecycle.Draft(made.task, made.agent, made.sandbox, made.key, 1)
    ended = draft.result(Unscored("infrastructure", "plan", "x", "It failed."))
    assert ended.started_at == ended.finished_at == "2026-11-18T03:00:00.000Z"
    assert ended.timing["total"] >= 0


def test_a_node_that_is_lost_while_it_starts_is_named_once_and_not_refused() -> None:
    said: list[str] = []

    async def main() -> int:
        async with InProcessCluster(Host, (), nodes=2) as cluster:
            one = cluster.nodes[0]
            cluster.inject(one, START, CallFault(lost="before"))
            fleet = Fleet(cluster, said.append)
            await fleet.open()
            await fleet.close()
        return len(fleet.refused)

    assert in_virtual_time(main) == 0
    assert [text.count("Node ") for text in said] == [1]
