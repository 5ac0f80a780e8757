"""Before a launch: a job that no node can run is refused, and nodes that get only a part of it are named."""

from __future__ import annotations

import pytest

from benchflow.errors import UsageError
from benchflow.evaluation.scaled.abilities import Demand, NodeFacts, SandboxFacts
from benchflow.evaluation.scaled.launch_check import check_launch

SMALL = NodeFacts("small", 1, 2048, 50_000, {"local": SandboxFacts(usable=True, capabilities=frozenset())})
LARGE = NodeFacts(
    "large", 8, 32_000, 90_000, {"local": SandboxFacts(usable=True, capabilities=frozenset({"limits.memory"}))}
)
MEMORY = (("limits.memory", "environment.memory_mb"),)


def test_tasks_that_no_node_can_run_are_refused_with_the_reason_of_each_node() -> None:
    tasks = [("fits", Demand()), ("huge", Demand(processors=64)), ("vast", Demand(processors=64))]
    with pytest.raises(UsageError) as refused:
        check_launch(tasks, [SMALL, LARGE])
    assert str(refused.value) == (
        "No node of the cluster can run 2 of the 3 tasks. huge, vast: node small has 1 processor, and 64 are declared; "
        "node large has 8 processors, and 64 are declared."
    )
    assert refused.value.code == "no-node"


def test_nodes_with_the_same_reason_are_named_together_and_long_lists_are_cut() -> None:
    nodes = [NodeFacts(f"n{number}", 2) for number in range(8)]
    tasks = [(f"t{number}", Demand(variables=frozenset({"KEY"}))) for number in range(9)]
    with pytest.raises(UsageError) as refused:
        check_launch(tasks, nodes)
    assert str(refused.value) == (
        "No node of the cluster can run 9 of the 9 tasks. t0, t1, t2, t3, t4 and 4 more: each of the nodes n0, n1, n2, "
        "n3, n4 and 3 more has no value for the variable KEY (set it in the environment in which the node is started)."
    )


def test_a_node_that_gets_only_a_part_of_the_job_is_named_with_a_reason() -> None:
    needs = Demand(sandboxes=("local",), capabilities=MEMORY)
    idle = NodeFacts("head", 0)
    notes = check_launch([("a", needs), ("b", Demand())], [SMALL, LARGE, idle])
    lacks = "lacks limits.memory in the sandbox local, which environment.memory_mb needs"
    assert notes == [
        f"Node small cannot run 1 of the 2 tasks: it {lacks}.",
        "Node head gets no rollouts: it has no processors for rollouts.",
    ]
