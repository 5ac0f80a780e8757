"""Gym tasks on nodes: the protocol of a task, carried out elsewhere, and no reward from a node that is lost."""

import pytest

from benchflow.errors import UsageError
from benchflow.gym import PackageBenchmarkConfig, UnscoredError
from benchflow.gym.sandbox_container import LOOP
from benchflow.serve.opening import EpisodeSettings
from benchflow.serve.remote.cluster_opener import ClusterOpener
from benchflow.serve.remote.episode_orders import HOST
from benchflow.serve.sessions import NoRoom
from benchflow.testing import InProcessCluster
from benchflow.trainers.gym_tasks import GymTasks
from cube.client import RpcError
from cube.core import Action
from cube.task import UnscoredError as UnscoredByCube
from episode_server import write_package


@pytest.fixture
def packages(tmp_path):
    write_package(tmp_path / "set/plain", "set/plain")
    write_package(tmp_path / "set/crash", "set/crash", tests="#!/bin/sh\nexit 3\n")
    return tmp_path / "set"


@pytest.fixture
def on_nodes(packages, sandbox_name):
    """The tasks of packages and of a cube on two nodes in this process, and the cluster."""
    made = []

    def connect(host):
        made.append(InProcessCluster(HOST, (host,), nodes=2))
        return made[0]

    sources = [str(packages), "cube:counter-cube"]
    opener = ClusterOpener(sources, EpisodeSettings(sandbox_name), connect, pulse_sec=0.05)
    entered = LOOP.portal().wrap_async_context_manager(made[0])
    entered.__enter__()
    try:
        with GymTasks(opener) as tasks:
            yield tasks, made[0]
            assert all(not made[0].host(node)._held for node in made[0].nodes), "a test left a task"
    finally:
        entered.__exit__(None, None, None)


def test_a_task_of_a_cube_is_reset_stepped_and_evaluated_on_a_node(on_nodes):
    tasks, _ = on_nodes
    assert {"set/plain", "up-3"} <= set(tasks.task_ids)
    task = tasks.spawn("up-3")
    assert task.reset()[0].contents
    assert "increment" in [action.name for action in task.tools_list()]
    for _ in range(2):
        assert not task.step(Action(name="increment")).done
    assert task.evaluate()[0] == 0.0
    output = task.step(Action(name="increment"))
    assert (output.done, output.reward) == (True, 1.0)
    with pytest.raises(RpcError, match="nope"):
        task.step(Action(name="nope"))
    task.close()
    task.close()
    with pytest.raises(UsageError, match="is closed"):
        task.reset()


def test_a_package_is_the_gym_task_that_it_is_here(on_nodes, packages, sandbox_name):
    tasks, _ = on_nodes
    configs = PackageBenchmarkConfig(paths=[str(packages / "plain")], sandbox=sandbox_name).get_task_configs()
    here, there = next(iter(configs)).make(), tasks.spawn("set/plain", seed=5)
    try:
        (expected, _), (observed, info) = here.reset(), there.reset()
        assert observed == expected
        assert info["seed"] == 5
        assert [action.name for action in there.tools_list()] == [action.name for action in here.action_set]
        done = Action(name="bash", arguments={"command": "echo done > /app/answer.txt"})
        assert there.step(done).obs == here.step(done).obs
        assert there.evaluate()[0] == here.evaluate()[0] == 1.0
    finally:
        here.close()
        there.close()
    crash = tasks.spawn("set/crash")
    crash.reset()
    with pytest.raises(UnscoredByCube) as caught:
        crash.evaluate()
    assert caught.value.unscored["category"] == "verifier"
    crash.close()


def test_a_task_of_a_lost_node_has_no_reward_and_can_be_spawned_again(on_nodes):
    tasks, cluster = on_nodes
    first, second = tasks.spawn("up-3"), tasks.spawn("up-3")
    first.reset()
    second.reset()
    lost, alive = cluster.nodes

    async def lose(node):
        cluster.lose(node)

    LOOP.run(lose, lost)
    with pytest.raises(UnscoredError, match="node-lost") as caught:
        first.step(Action(name="increment"))
    assert caught.value.unscored["category"] == "infrastructure"
    first.close()
    second.step(Action(name="increment"))
    again = tasks.spawn("up-3")
    assert again.node == second.node == str(alive)
    for task in (again, second):
        task.close()
    LOOP.run(lose, alive)
    with pytest.raises((NoRoom, UnscoredError)):
        tasks.spawn("up-3")


def test_a_task_that_is_not_there_is_one_sentence(on_nodes):
    tasks, _ = on_nodes
    with pytest.raises(UsageError, match="Unknown task 'up-4'; available: .*Did you mean"):
        tasks.spawn("up-4")
