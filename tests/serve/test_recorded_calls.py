"""Judges and simulated users of a package whose agent is outside: their calls of models are recorded."""

import pytest

from benchflow.gym import PackageBenchmarkConfig
from benchflow.testing import ModelServer
from cube.core import Action
from episode_server import serving, write_package
from judged_packages import MODELS, USER, YES, calls, judged

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]


def test_a_served_episode_records_what_its_user_and_its_judge_asked(tmp_path):
    judged(tmp_path / "set/judged", front=USER)
    write_package(tmp_path / "other/plain", "other/plain")
    records = tmp_path / "records"
    with ModelServer(lambda asked: YES if asked.model == "test-model" else "Please add a unit.") as models:
        sources = (tmp_path / "set", "--sandbox", "local", "--records", records)
        with serving(tmp_path, *sources, load=MODELS, **models.environment) as server:
            sid = server.session()
            assert server.get("/set/prompt", sid).status_code == 200
            server.call(sid, "bash", command="echo 42 > answer.txt")
            assert "Please add a unit." in str(server.call(sid, "submit"))
            assert server.call(sid, "submit")["output"]["reward"] == 1.0
            assert server.stop() == 0
    (episode,) = calls(records)
    assert set(episode) == {("user", "openai/test-user", "answered"), ("judge", "openai/test-model", "answered")}
    assert not [path for path in records.rglob("*") if path.is_file() and models.api_key.encode() in path.read_bytes()]
    with serving(tmp_path, tmp_path / "other", "--sandbox", "local", "--records", tmp_path / "none") as server:
        assert server.call(server.session(), "submit")["output"]["reward"] == 0.0
    assert not (tmp_path / "none").exists()


def test_a_gym_task_records_what_its_judge_asked_in_every_fork(tmp_path, monkeypatch):
    judged(tmp_path / "judged")
    records = tmp_path / "records"
    with ModelServer([YES, YES]) as models:
        for name, value in models.environment.items():
            monkeypatch.setenv(name, value)
        benchmark = PackageBenchmarkConfig(paths=[str(tmp_path / "judged")], sandbox="local", records=str(records))
        task = next(iter(benchmark.get_task_configs())).make()
        try:
            task.reset()
            task.step(Action(name="bash", arguments={"command": "echo 42 > answer.txt"}))
            fork = task.fork()
            assert fork.step(Action(name="final_step")).reward == 1.0
            fork.close()
            assert task.step(Action(name="final_step")).reward == 1.0
        finally:
            task.close()
    assert calls(records) == [[("judge", "openai/test-model", "answered")]] * 2
