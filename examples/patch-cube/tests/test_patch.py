"""Repairs in real containers that are none; `cube test patch-cube` checks the contract."""

import pytest

from cube.core import Action
from patch_cube.benchmark import PatchBenchmarkConfig
from patch_cube.task import IssueConfig

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("cube._CUBE_CACHE_ROOT", tmp_path)
    monkeypatch.setattr(IssueConfig, "_benchmark_cache_dir", tmp_path)


def test_heavy_data_is_not_part_of_what_listings_and_workers_are_sent():
    config = next(iter(PatchBenchmarkConfig().get_task_configs()))
    assert "def slug" not in config.model_dump_json()


@pytest.mark.parametrize(
    "command", ["true", "echo 'raise SystemExit(0)' > unittest.py", "echo 'import os; os._exit(0)' > slugs.py"]
)
def test_an_agent_that_repairs_nothing_scores_nothing(command):
    PatchBenchmarkConfig.install()
    config = PatchBenchmarkConfig().subset_from_list(["slugs-1"])
    with config.make() as benchmark:
        task = benchmark.spawn(next(iter(config.get_task_configs())))
        try:
            task.reset()
            output = task.step(
                [Action(name="bash", arguments={"command": f"cd /testbed && {command}"}), Action(name="final_step")]
            )
            assert (output.reward, output.info["resolved"]) == (0.0, False)
        finally:
            task.close()
