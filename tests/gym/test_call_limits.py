"""Limits on what the judges of gym tasks call: of an episode with its forks, and of a live benchmark."""

import pytest

from benchflow.errors import UsageError
from benchflow.gym import PackageBenchmarkConfig, PackageTaskConfig, UnscoredError
from benchflow.models.gateway import CallLimits
from benchflow.testing import ModelServer
from cube.core import Action
from judged_packages import YES, calls, judged

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]
ONE = CallLimits(max_calls=1)


@pytest.fixture
def models(monkeypatch):
    with ModelServer(YES) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def folder(tmp_path):
    judged(tmp_path / "judged")
    return tmp_path / "judged"


def benchmark(folder, **settings):
    return PackageBenchmarkConfig(paths=[str(folder)], sandbox="local", **settings)


def begin(task):
    """Reset, and leave something to judge."""
    task.reset()
    task.step(Action(name="bash", arguments={"command": "echo 42 > answer.txt"}))


def why(task, verb="evaluate"):
    """Category, code and reason of the `UnscoredError` that a verb raises."""
    with pytest.raises(UnscoredError) as caught:
        getattr(task, verb)()
    found = caught.value.verdict
    return found.category, found.code, found.reason


def test_an_episode_and_its_forks_share_one_limit_and_a_reset_begins_another(models, folder, tmp_path):
    records = tmp_path / "records"
    (config,) = benchmark(folder, call_limits=ONE, records=str(records)).get_task_configs()
    task = PackageTaskConfig.model_validate_json(config.model_dump_json()).make()  # as a worker gets it
    try:
        begin(task)
        fork = task.fork()
        assert fork.evaluate()[0] == 1.0
        reached = ("judge", "judge-unavailable", "The episode reached its limit of 1 model calls.")
        assert why(task) == why(fork) == reached
        fork.close()
        begin(task)
        assert task.evaluate()[0] == 1.0
    finally:
        task.close()
    assert len(models.requests) == 2
    outcomes = sorted([outcome for _, _, outcome in episode] for episode in calls(records))
    assert outcomes == [["answered"], ["answered", "limited"], ["limited"]]


def test_all_tasks_of_a_live_benchmark_share_its_limit_and_none_is_begun_at_it(models, folder):
    config = benchmark(folder, benchmark_limits=ONE)
    (task_config,) = config.get_task_configs()
    with config.make() as live:
        first, second = live.spawn(task_config), live.spawn(task_config)
        try:
            for task in (first, second):
                begin(task)
            assert first.evaluate()[0] == 1.0
            assert why(second) == ("judge", "judge-unavailable", "The benchmark reached its limit of 1 model calls.")
            first.close()
            category, code, reason = why(second, "reset")
            assert (category, code) == ("cancelled", "benchmark-limit")
            assert reason == "The benchmark reached its limit of 1 model calls. It was not begun."
        finally:
            for task in (first, second):
                task.close()
    assert len(models.requests) == 1
    with config.make() as live:  # another run has a limit of its own
        task = live.spawn(task_config)
        begin(task)
        assert task.evaluate()[0] == 1.0
        task.close()


def test_a_limit_of_nothing_asks_no_judge(models, folder):
    (config,) = benchmark(folder, call_limits=CallLimits(max_calls=0)).get_task_configs()
    task = config.make()
    try:
        begin(task)
        assert why(task)[1] == "judge-unavailable"
    finally:
        task.close()
    assert models.requests == ()


def test_limits_of_a_benchmark_are_refused_where_nobody_counts_for_all_of_it(folder):
    (config,) = benchmark(folder, benchmark_limits=ONE).get_task_configs()
    with pytest.raises(UsageError, match="benchmark_limits hold for the tasks of one live benchmark"):
        config.make()
