"""A vector of environments: Gymnasium's own rules, on this machine and over nodes that are lost in the middle."""

import math
import threading
from contextlib import contextmanager

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from benchflow.errors import UsageError
from benchflow.gym import UnscoredError
from benchflow.gym.sandbox_container import LOOP
from benchflow.serve.opening import EpisodeSettings
from benchflow.serve.remote.cluster_opener import ClusterOpener
from benchflow.serve.remote.episode_orders import HOST
from benchflow.testing import CallFault, InProcessCluster
from benchflow.trainers import make_vector
from benchflow.trainers.package_env import PackageEnv
from benchflow.trainers.vector_env import EpisodeVectorEnv
from episode_server import write_package

DONE, SUBMIT = "echo done > /app/answer.txt", "submit"
SEEDED = "#!/bin/sh\necho ${BENCHCUBE_SEED:-0} > /logs/verifier/reward.txt\n"


@pytest.fixture
def packages(tmp_path):
    root = tmp_path / "set"
    write_package(root / "one", "set/one")
    write_package(root / "two", "set/two")
    return root


@pytest.fixture
def over_nodes(sandbox_name):
    """Vectors on clusters of nodes in this process; (environments, cluster)."""

    @contextmanager
    def over_nodes(sources, num_envs, nodes=2, most=64, **options):
        cluster = None

        def connect(host):
            nonlocal cluster
            cluster = InProcessCluster(HOST, (host,), nodes=nodes)
            return cluster

        opener = ClusterOpener(sources, EpisodeSettings(sandbox_name), connect, most=most, pulse_sec=0.05)
        entered = LOOP.portal().wrap_async_context_manager(cluster)
        entered.__enter__()
        try:
            envs = EpisodeVectorEnv(opener, num_envs, **options)
            try:
                yield envs, cluster
            finally:
                envs.close()
        finally:
            entered.__exit__(None, None, None)

    return over_nodes


@pytest.fixture
def both(over_nodes, sandbox_name):
    """The same vector on this machine, or over two nodes."""

    @contextmanager
    def both(engine, sources, num_envs, **options):
        if engine == "local":
            envs = make_vector(sources, num_envs, sandbox=sandbox_name, **options)
            try:
                yield envs
            finally:
                envs.close()
        else:
            with over_nodes(sources, num_envs, **options) as (envs, _):
                yield envs

    return both


engines = pytest.mark.parametrize("engine", ["local", "nodes"])


@engines
def test_a_vector_returns_what_gymnasium_makes_of_single_environments(both, packages, sandbox_name, engine):
    single = packages / "one"
    expected = SyncVectorEnv([lambda: PackageEnv(single, sandbox=sandbox_name)] * 3)
    script = [(DONE, "exit 7", "echo half > /app/answer.txt"), (SUBMIT, "true", SUBMIT), ("true", SUBMIT, "true")]
    try:
        with both(engine, [str(single)], 3) as envs:
            assert envs.observation_space == expected.observation_space
            assert envs.action_space == expected.action_space
            assert envs.metadata["autoreset_mode"] == expected.metadata["autoreset_mode"]
            theirs, ours = expected.reset(seed=7), envs.reset(seed=7)
            assert list(ours[1]["seed"]) == list(theirs[1]["seed"]) == [7, 8, 9]
            for actions in [None, *script]:
                if actions is not None:
                    theirs, ours = expected.step(actions), envs.step(actions)
                    assert [list(part) for part in ours[1:4]] == [list(part) for part in theirs[1:4]]
                    assert {key: _plain(ours[-1][key]) for key in theirs[-1]} == _plain(theirs[-1])
                assert ours[0] in envs.observation_space
                assert tuple(ours[0]["text"]) == tuple(theirs[0]["text"])
                assert list(ours[0]["exit_code"]) == list(theirs[0]["exit_code"])
    finally:
        expected.close()


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


@engines
def test_tasks_are_dealt_to_environments_and_can_be_chosen(both, packages, engine):
    with both(engine, [str(packages)], 3) as envs:
        _, infos = envs.reset()
        assert list(infos["task"]) == ["set/one", "set/two", "set/one"]
        _, infos = envs.reset()
        assert list(infos["task"]) == ["set/two", "set/one", "set/two"]
        assert "seed" not in infos
        _, infos = envs.reset(options={"tasks": ["set/two"] * 3})
        assert set(infos["task"]) == {"set/two"}
        with pytest.raises(UsageError, match="Unknown task 'set/nope'"):
            envs.reset(options={"tasks": ["set/nope"] * 3})
        with pytest.raises(UsageError, match="options of reset"):
            envs.reset(options={"task": 1})


@engines
def test_cubes_are_stepped_by_calls_as_json_or_by_name(both, engine):
    with both(engine, ["cube:counter-cube"], 2) as envs:
        _, infos = envs.reset(options={"tasks": ["up-3", "up-3"]})
        assert "increment" in {tool["name"] for tool in infos["tools"][0]}
        envs.step(['{"name": "increment", "arguments": {}}', "increment"])
        envs.step(["increment", "increment"])
        _, rewards, terminated, truncated, infos = envs.step(["increment", "no such action {"])
        assert (rewards[0], terminated[0]) == (1.0, True)
        assert (rewards[1], terminated[1], truncated[1], infos["refused"][1]) == (0.0, False, False, "not_found")


@engines
def test_steps_run_at_the_same_time(both, packages, sandbox_name, engine, monkeypatch):
    together = threading.Barrier(3, timeout=30)
    from benchflow.testing import InMemorySandbox

    real = InMemorySandbox.exec

    async def meet(self, command, **options):
        import anyio

        if "meet" in str(command):
            await anyio.to_thread.run_sync(together.wait)
        return await real(self, command, **options)

    monkeypatch.setattr(InMemorySandbox, "exec", meet)
    with both(engine, [str(packages)], 3) as envs:
        envs.reset()
        envs.step(["echo meet"] * 3)
        assert not together.broken


def test_same_step_and_disabled_resets_follow_gymnasium(packages, sandbox_name):
    envs = make_vector(packages / "one", 2, sandbox=sandbox_name, autoreset_mode="SameStep")
    prompts, _ = envs.reset()
    observations, rewards, terminated, _, infos = envs.step((SUBMIT, DONE))
    assert (rewards.tolist(), terminated.tolist()) == ([0.0, 0.0], [True, False])
    assert observations["text"][0] == prompts["text"][0]
    assert infos["final_obs"][0]["text"] == "The episode is over."
    assert infos["final_info"]["ended_by"][0] == "submit"
    assert envs.step((DONE, SUBMIT))[1].tolist() == [0.0, 1.0]
    envs.close()
    envs = make_vector(packages / "one", 2, sandbox=sandbox_name, autoreset_mode="Disabled")
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step((DONE, DONE))
    envs.reset()
    envs.step((SUBMIT, DONE))
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step((DONE, SUBMIT))
    observations, infos = envs.reset(options={"reset_mask": np.array([True, False])})
    assert infos["_task"].tolist() == [True, False]
    assert envs.step((SUBMIT, SUBMIT))[1].tolist() == [0.0, 1.0]
    with pytest.raises(UsageError, match="reset_mask"):
        envs.reset(options={"reset_mask": np.array([False, False])})
    envs.close()


def test_an_environment_without_a_score_is_nan_and_says_why(tmp_path, sandbox_name):
    crash = write_package(tmp_path / "crash", "set/crash", tests="#!/bin/sh\nexit 3\n")
    good = write_package(tmp_path / "good", "set/good")
    envs = make_vector([crash, good], 2, sandbox=sandbox_name)
    envs.reset()
    _, rewards, terminated, _, infos = envs.step((SUBMIT, SUBMIT))
    assert math.isnan(rewards[0])
    assert rewards[1] == 0.0
    assert terminated.tolist() == [True, True]
    assert infos["unscored"]["category"].tolist() == ["verifier", None]
    assert infos["scored"].tolist() == [False, True]
    envs.close()


def test_a_vector_that_cannot_start_whole_fails_and_leaves_nothing(tmp_path, sandbox_name, over_nodes, packages):
    good = write_package(tmp_path / "good", "set/good")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/task.md").write_text("---\ntask: {name: set/broken}\nagent: {tmieout_sec: 3}\n---\nDo.\n")
    envs = make_vector([good, tmp_path / "broken"], 2, sandbox=sandbox_name)
    with pytest.raises(UnscoredError, match="tmieout_sec"):
        envs.reset()
    assert all(seat.episode is None for seat in envs._seats)
    envs.close()
    with pytest.raises(UsageError, match="3 episodes .* room for 2"), over_nodes([str(packages)], 3, most=1):
        pass
    with pytest.raises(UsageError, match="No node of the cluster"), over_nodes([str(packages)], 1, nodes=0):
        pass
    with pytest.raises(UsageError, match="at least one environment"):
        make_vector(good, 0, sandbox=sandbox_name)
    with pytest.raises(UsageError, match="engine is 'local' or 'ray'"):
        make_vector(good, 1, engine="slurm")


def test_environments_of_a_lost_node_are_unscored_and_start_again_on_others(over_nodes, packages):
    with over_nodes([str(packages)], 8) as (envs, cluster):
        _, infos = envs.reset()
        lost, alive = cluster.nodes
        there = infos["node"] == str(lost)
        assert there.sum() == 4
        LOOP.run(_lose, cluster, lost)
        _, rewards, terminated, truncated, infos = envs.step((DONE,) * 8)
        assert np.isnan(rewards).tolist() == there.tolist() == truncated.tolist()
        assert not terminated.any()
        assert set(infos["unscored"]["code"][there]) == {"node-lost"}
        assert infos["_unscored"].tolist() == there.tolist()
        _, rewards, _, truncated, infos = envs.step((SUBMIT,) * 8)
        assert set(infos["node"][there]) == {str(alive)}
        assert rewards.tolist() == [0.0 if gone else 1.0 for gone in there]
        assert not truncated.any()


async def _lose(cluster, node):
    cluster.lose(node)


def test_an_episode_whose_node_is_lost_before_it_begins_is_started_elsewhere(over_nodes, packages):
    with over_nodes([str(packages)], 4) as (envs, cluster):
        lost, alive = cluster.nodes
        cluster.inject(lost, "begin", CallFault(lost="before"))
        _, infos = envs.reset()
        assert set(infos["node"]) == {str(alive)}
        assert envs.step((SUBMIT,) * 4)[1].tolist() == [0.0] * 4


def test_a_vector_without_nodes_waits_and_then_says_so_and_continues_when_one_joins(over_nodes, packages):
    with over_nodes([str(packages)], 2, nodes=1, wait_sec=0.2) as (envs, cluster):
        envs.reset()
        LOOP.run(_lose, cluster, cluster.nodes[0])
        assert np.isnan(envs.step((DONE,) * 2)[1]).all()
        _, rewards, _, truncated, infos = envs.step((DONE,) * 2)
        assert np.isnan(rewards).all()
        assert truncated.all()
        assert set(infos["unscored"]["code"]) == {"no-node"}

        async def grow():
            cluster.grow()

        LOOP.run(grow)
        LOOP.run(envs._opener.places.wait_for_change)
        _, rewards, _, truncated, infos = envs.step((DONE,) * 2)
        assert (rewards.tolist(), truncated.any()) == ([0.0, 0.0], False)
        assert infos["_node"].all()


def test_seeds_reach_the_packages_and_later_ones_are_drawn_as_a_single_environment_draws_them(tmp_path, sandbox_name):
    seeded = write_package(
        tmp_path / "seeded", "set/seeded", tests=SEEDED, front="verifier: {reward_range: [0, 4294967296]}\n"
    )
    envs, single = make_vector(seeded, 2, sandbox=sandbox_name), PackageEnv(seeded, sandbox=sandbox_name)
    try:
        envs.reset(seed=[5, 11])
        drawn = [single.reset(seed=5)[1]["seed"], single.reset()[1]["seed"]]
        assert envs.reset()[1]["seed"][0] == drawn[1]
    finally:
        envs.close()
        single.close()
