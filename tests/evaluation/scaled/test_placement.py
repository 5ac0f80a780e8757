"""Which node gets a task: never more than a node has, never one that cannot, and nobody waits for ever."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.evaluation.scaled.abilities import DISK_FLOOR_MB
from benchflow.evaluation.scaled.admission import crowding, ramp
from benchflow.evaluation.scaled.placement import (
    Candidate,
    CubeNeed,
    Demand,
    Line,
    NodeFacts,
    NodeLoad,
    Placed,
    SandboxFacts,
    Vitals,
    choose,
    refusal,
    why_not_now,
)

LOCAL = SandboxFacts(usable=True, capabilities=frozenset({"limits.memory", "network.none"}))
NODE = NodeFacts("one", 4, 8192, 50_000, {"local": LOCAL}, frozenset({"KEY"}), cubes={"maze": "sha256:a"})
IDLE = NodeLoad(vitals=Vitals(8000, 50_000))

demands = st.builds(
    Demand,
    processors=st.none() | st.sampled_from([0.1, 0.3, 0.5, 1, 2, 3.7, 8]),
    memory_mb=st.none() | st.integers(1, 20_000),
    storage_mb=st.none() | st.integers(1, 60_000),
    capabilities=st.sampled_from([(), (("limits.memory", "environment.memory_mb"),), (("services", "x"),)]),
    sandboxes=st.sampled_from([("local",), ("docker", "local"), ("docker",)]),
    environment=st.none() | st.sampled_from(["a", "b"]),
)
machines = st.builds(
    NodeFacts,
    name=st.just("n"),
    processors=st.sampled_from([0.5, 1, 2, 4, 16]),
    memory_mb=st.none() | st.integers(100, 32_000),
    disk_mb=st.none() | st.integers(0, 100_000),
    sandboxes=st.sampled_from([{}, {"local": LOCAL}, {"docker": LOCAL, "local": SandboxFacts(usable=False)}]),
)
clusters = st.dictionaries(st.sampled_from("abcdef"), machines, max_size=6)


def idle(facts: NodeFacts) -> Candidate:
    return Candidate(facts, NodeLoad(vitals=Vitals(facts.memory_mb, facts.disk_mb)))


@pytest.mark.parametrize(
    ("demand", "reason"),
    [
        (Demand(processors=8), "has 4 processors, and 8 are declared"),
        (Demand(memory_mb=9000), "has 8192 MB of memory, and 9000 MB are declared"),
        (Demand(storage_mb=49_999), "has 50000 MB of free disk space, and 49999 MB are declared"),
        (Demand(sandboxes=("docker",)), "does not have the sandbox docker"),
        (Demand(sandboxes=("local",), capabilities=(("services", "the.key"),)), "lacks services in the sandbox local"),
        (Demand(variables=frozenset({"B", "A", "KEY"})), "has no value for the variables A, B"),
        (Demand(one_of=(frozenset({"X", "Y"}),)), "has a value for none of the variables X, Y"),
        (Demand(cube=CubeNeed("maze", "sha256:b")), "has another version of the cube 'maze'"),
        (Demand(cube=CubeNeed("chess", "sha256:b")), "does not have the cube 'chess' installed"),
    ],
)
def test_a_node_that_cannot_run_a_task_says_why(demand: Demand, reason: str) -> None:
    assert (refusal(demand, NODE) or "").startswith(reason)
    assert choose(demand, {"one": Candidate(NODE, IDLE)}) is None


def test_what_a_node_does_not_know_about_itself_it_does_not_promise() -> None:
    unknown = NodeFacts("one", 4)
    assert "does not know" in (refusal(Demand(memory_mb=1), unknown) or "")
    assert "does not know" in (refusal(Demand(storage_mb=1), unknown) or "")
    assert refusal(Demand(), unknown) is None


def test_one_of_several_sandboxes_is_enough() -> None:
    demand = Demand(sandboxes=("docker", "local"), capabilities=(("network.none", "network"),))
    assert refusal(demand, NODE) is None


@given(st.lists(demands, max_size=60), clusters, st.data())
def test_no_node_ever_gets_more_than_it_has_or_what_it_cannot_run(
    wanted: list[Demand], facts: dict[str, NodeFacts], data: Any
) -> None:
    nodes = {name: idle(found) for name, found in facts.items()}
    running: list[tuple[str, Demand]] = []
    line = Line()
    for demand in wanted:
        line.enter(demand)
        while (placed := line.next(nodes)) is not None:
            node = nodes[placed.node]
            assert refusal(placed.demand, node.facts) is None
            nodes[placed.node] = node._replace(load=node.load.with_rollout(placed.demand))
            running.append((placed.node, placed.demand))
        if running and data.draw(st.booleans()):
            name, ended = running.pop(data.draw(st.integers(0, len(running) - 1)))
            nodes[name] = nodes[name]._replace(load=nodes[name].load.without_rollout(ended))
        for name, found in facts.items():
            here = [each for place, each in running if place == name]
            assert sum(each.processors or 1 for each in here) <= math.ceil(found.processors) + 1e-9
            assert sum(each.memory_mb or 0 for each in here) <= (found.memory_mb or 0)
            assert len(here) <= ramp(found)
            assert nodes[name].load.rollouts == len(here)


@given(demands, clusters)
def test_the_choice_does_not_depend_on_the_order_in_which_nodes_are_listed(
    demand: Demand, facts: dict[str, NodeFacts]
) -> None:
    nodes = {name: idle(found) for name, found in facts.items()}
    assert choose(demand, nodes) == choose(demand, dict(reversed(nodes.items())))


@given(demands, clusters, st.lists(demands, max_size=10), st.sampled_from("abcdef"), machines)
def test_another_node_or_an_ended_rollout_never_makes_a_task_wait(
    demand: Demand, facts: dict[str, NodeFacts], running: list[Demand], joins: str, joining: NodeFacts
) -> None:
    loads = NodeLoad(vitals=Vitals(20_000, 80_000))
    for each in running:
        loads = loads.with_rollout(each)
    nodes = {name: Candidate(found, loads.pulsed(loads.vitals)) for name, found in facts.items()}
    before = choose(demand, nodes)
    if before is None:
        return
    assert choose(demand, {joins: idle(joining), **nodes}) is not None
    if running:
        freed = {name: node._replace(load=node.load.without_rollout(running[0])) for name, node in nodes.items()}
        assert choose(demand, freed) is not None


@given(st.lists(demands, min_size=1, max_size=30), clusters)
def test_whatever_can_run_somewhere_is_placed_in_the_order_of_endings(
    wanted: list[Demand], facts: dict[str, NodeFacts]
) -> None:
    """Nothing hangs: rollouts end one after the other, and everything that an idle cluster takes has been placed."""
    nodes = {name: idle(found) for name, found in facts.items()}
    possible = [demand for demand in wanted if choose(demand, nodes) is not None]
    line, done = Line(), 0
    running: list[Placed] = []
    for demand in possible:
        line.enter(demand)
    while line or running:
        while (placed := line.next(nodes)) is not None:
            node = nodes[placed.node]
            nodes[placed.node] = node._replace(load=node.load.with_rollout(placed.demand))
            running.append(placed)
        assert running, f"{len(line)} wait, and nothing runs"
        ended = running.pop(0)
        done += 1
        load = nodes[ended.node].load.without_rollout(ended.demand)
        nodes[ended.node] = nodes[ended.node]._replace(load=load.pulsed(load.vitals))
    assert done == len(possible)


@pytest.mark.parametrize("count", [1, 2])
def test_a_large_task_is_not_overtaken_for_ever_by_a_stream_of_small_ones(count: int) -> None:
    small, large = Demand(0.5, memory_mb=1000), Demand(memory_mb=8000)
    nodes = {str(number): Candidate(NODE, IDLE) for number in range(count)}
    line, running = Line(), []

    def fill() -> bool:
        while (placed := line.next(nodes)) is not None:
            if placed.demand is large:
                return True
            node = nodes[placed.node]
            load = node.load.with_rollout(small)
            nodes[placed.node] = node._replace(load=load.pulsed(load.vitals))
            running.append(placed.node)
        return False

    for _ in range(8 * count):
        line.enter(small)
    assert not fill()
    line.enter(large)
    for ended in range(1, 8 * count + 1):
        line.enter(small)
        name = running.pop(0)
        nodes[name] = nodes[name]._replace(load=nodes[name].load.without_rollout(small))
        if fill():
            assert ended >= 8, "it began before it fitted"
            break
    else:
        pytest.fail("the large task still waits, although every small one that ran when it came has ended")


def test_while_one_node_is_held_the_others_take_what_came_later() -> None:
    full = NodeLoad(vitals=Vitals(8000, 50_000)).with_rollout(Demand(memory_mb=8000))
    nodes = {"busy": Candidate(NODE, full), "small": Candidate(replace(NODE, memory_mb=2000), IDLE)}
    line = Line()
    line.enter(Demand(memory_mb=4000))
    later = line.enter(Demand(memory_mb=1000))
    placed = line.next(nodes)
    assert placed is not None
    assert (placed.ticket, placed.node) == (later, "small")


def test_work_spreads_by_processors_and_an_equally_busy_node_with_the_environment_comes_first() -> None:
    nodes = {name: Candidate(replace(NODE, processors=size), IDLE) for name, size in (("a", 2), ("b", 8))}
    counts = dict.fromkeys(nodes, 0)
    for _ in range(10):
        name = choose(Demand(), nodes)
        assert name is not None
        counts[name] += 1
        nodes[name] = nodes[name]._replace(load=nodes[name].load.with_rollout(Demand()))
    assert counts == {"a": 2, "b": 8}
    built = {"a": Candidate(NODE, IDLE), "b": Candidate(NODE, replace(IDLE, environments=frozenset({"image"})))}
    assert choose(Demand(environment="image"), built) == "b"
    busy = built["b"].load
    for _ in range(4):
        busy = busy.with_rollout(Demand())
    assert choose(Demand(environment="image"), {**built, "b": Candidate(NODE, busy, 2.0)}) == "a"


def test_a_task_that_leaves_the_line_is_not_placed() -> None:
    line = Line()
    ticket = line.enter(Demand())
    stays = line.enter(Demand())
    line.leave(Demand(), ticket)
    placed = line.next({"one": Candidate(NODE, IDLE)})
    assert placed is not None
    assert placed.ticket == stays
    assert (len(line), line.first()) == (0, None)


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (replace(IDLE, resting="rests after 3 failed starts"), "rests after 3 failed starts"),
        (IDLE.with_rollout(Demand(memory_mb=8000)), "has 8000 of 8192 MB of memory reserved, and this takes 1000"),
        (IDLE.with_rollout(Demand(processors=3.5)), "has 3.5 of 4 processors reserved, and this takes 1"),
        (IDLE.pulsed(Vitals(500, 50_000)), "has only 500 MB of free memory"),
        (IDLE.with_rollout(Demand()).pulsed(Vitals(1500, 50_000)), "has only 1500 MB of free memory"),
        (IDLE.pulsed(Vitals(8000, DISK_FLOOR_MB + 1)), f"has only {DISK_FLOOR_MB + 1} MB of free disk space"),
    ],
)
def test_a_node_that_takes_nothing_now_says_why(load: NodeLoad, reason: str) -> None:
    demand = Demand(processors=1, memory_mb=1000, storage_mb=2)
    assert (why_not_now(demand, NODE, load) or "").startswith(reason)


def test_an_idle_node_above_its_floor_takes_what_it_has_memory_for() -> None:
    assert why_not_now(Demand(memory_mb=8192), NODE, IDLE.pulsed(Vitals(600, 50_000))) is None


def test_between_two_pulses_only_so_many_begin() -> None:
    load = IDLE
    for _ in range(ramp(NODE)):
        assert why_not_now(Demand(), NODE, load, 100.0) is None
        load = load.with_rollout(Demand())
    assert "since its last pulse" in (why_not_now(Demand(), NODE, load, 100.0) or "")
    assert why_not_now(Demand(), NODE, load.pulsed(load.vitals), 100.0) is None


@given(st.integers(1, 400), st.lists(st.sampled_from([1, 2, 4, 16]), min_size=1, max_size=8))
def test_a_job_gets_the_concurrency_it_asks_for_spread_over_the_nodes(concurrency: int, sizes: list[int]) -> None:
    crowded = crowding(concurrency, sum(sizes))
    nodes = {str(n): Candidate(replace(NODE, processors=size), IDLE, crowded) for n, size in enumerate(sizes)}
    for _ in range(concurrency):
        name = choose(Demand(), nodes)
        assert name is not None
        load = nodes[name].load.with_rollout(Demand())
        nodes[name] = nodes[name]._replace(load=load.pulsed(load.vitals))
    for node in nodes.values():
        assert node.load.rollouts <= math.ceil(node.facts.processors * max(concurrency / sum(sizes), 1))
