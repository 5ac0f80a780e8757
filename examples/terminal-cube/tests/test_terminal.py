"""Conformance in real containers, and what a wrong answer scores."""

import pytest

import terminal_cube.debug
from cube import LocalInfraConfig
from cube.core import Action
from cube.testing import check_benchmark
from terminal_cube.benchmark import TerminalBenchmarkConfig

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("cube._CUBE_CACHE_ROOT", tmp_path)


def test_the_cube_keeps_the_contract_and_leaves_no_container():
    assert check_benchmark(terminal_cube.debug) == []
    assert LocalInfraConfig().list_active() == []


def test_a_wrong_answer_scores_nothing_and_files_can_be_read():
    config = TerminalBenchmarkConfig().subset_from_list(["count-errors"])
    with config.make(infra=LocalInfraConfig(network="none")) as benchmark:
        task = benchmark.spawn(next(iter(config.get_task_configs())))
        try:
            task.reset()
            read = task.step(Action(name="read_file", arguments={"path": "server.log"}))
            assert "ERROR net" in read.obs.to_markdown()
            wrong = Action(name="write_file", arguments={"path": "answer.txt", "content": "4\n"})
            output = task.step([wrong, Action(name="final_step")])
            assert (output.reward, output.done, output.error) == (0.0, True, None)
        finally:
            task.close()
