"""A config is all that a worker needs: fresh processes that have imported nothing of the benchmark."""

import json
import os
import subprocess
import sys

import pytest

from archive_cube.benchmark import ArchiveBenchmarkConfig
from counter_cube.benchmark import CounterBenchmarkConfig
from counter_cube.tool import CounterToolConfig
from cube.composite import CompositeBenchmarkConfig

pytestmark = pytest.mark.slow

WORKER = """
import json, sys
from cube.core import Action
from cube.task import TaskConfig
config = TaskConfig.model_validate_json(sys.stdin.read())
before = sorted(name for name in sys.modules if name.endswith(".benchmark") and not name.startswith("cube."))
task = config.make()
obs, _ = task.reset()
for action in json.loads(sys.argv[1]):
    output = task.step(Action(**action))
task.close()
print(json.dumps({"task": config.task_id, "class": type(task).__name__, "objective": obs.to_markdown(),
                  "reward": output.reward, "done": output.done, "imported": before}))
"""


def work(config, actions, **environment):
    """Run a config in a fresh interpreter and return what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", WORKER, json.dumps(actions)],
        input=config.model_dump_json(),
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd="/",
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_fresh_process_makes_and_plays_the_task():
    config = list(CounterBenchmarkConfig(tool_config=CounterToolConfig(start=95)).get_task_configs())[3]
    report = work(config, [{"name": "add", "arguments": {"amount": 5}}])
    assert report == {
        "task": "far-100",
        "class": "CounterTask",
        "objective": "Bring the counter from 95 to 100.",
        "reward": 1.0,
        "done": True,
        "imported": [],
    }


@pytest.mark.parametrize("composite", [False, True])
def test_a_fresh_process_finds_the_data_that_install_wrote(tmp_path, composite):
    install = "from archive_cube.benchmark import ArchiveBenchmarkConfig; ArchiveBenchmarkConfig.install()"
    environment = {"CUBE_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", install], env=os.environ | environment, check=True)
    benchmark = ArchiveBenchmarkConfig()
    if composite:
        benchmark = CompositeBenchmarkConfig(sub_bench_configs=[benchmark])
    config = next(iter(benchmark.get_task_configs()))
    actions = [{"name": "submit", "arguments": {"answer": "Aldebaran"}}, {"name": "final_step"}]
    report = work(config, actions, **environment)
    assert (report["reward"], report["imported"]) == (1.0, [])
    assert report["task"] == config.task_id


def test_a_worker_without_the_data_is_told_the_command(tmp_path):
    config = next(iter(ArchiveBenchmarkConfig().get_task_configs()))
    result = subprocess.run(
        [sys.executable, "-c", WORKER, "[]"],
        input=config.model_dump_json(),
        capture_output=True,
        text=True,
        env=os.environ | {"CUBE_CACHE_DIR": str(tmp_path)},
    )
    assert result.returncode == 1
    assert "cube install" in result.stderr.splitlines()[-1]


TASK_MODULE = """
from cube.task import TaskConfig
class SealedTaskConfig(TaskConfig):
    def make(self, runtime_context=None, container_backend=None): ...
"""
BENCHMARK_MODULE = """
from pathlib import Path
with Path(__file__).with_name("imports").open("a") as log:
    log.write("imported\\n")
raise ImportError("this machine has no browser")
from cube.benchmark import BenchmarkConfig, BenchmarkMetadata
from sealed_cube.task import SealedTaskConfig as Mine
{constants}
class SealedBenchmarkConfig(BenchmarkConfig):
    {metadata}
    task_metadata = dict()
    task_config_class = Mine
"""
READER = """
import sys
from cube.task import TaskConfig
config = TaskConfig.model_validate_json(sys.stdin.read())
print([config.load_task_execution_info()["n"] for _ in range(3)])
"""


@pytest.mark.parametrize(
    ("constants", "metadata", "beside", "folder", "imports"),
    [
        (
            "",
            "benchmark_metadata = BenchmarkMetadata(name='the seal', version='1')",
            "",
            "the seal",
            0,
        ),
        ("NAME = 'the seal'; ABOUT = BenchmarkMetadata(name=NAME)", "benchmark_metadata = ABOUT", "", "the seal", 0),
        ("", "", '{"name": "the seal"}', "the seal", 0),
        ("", "benchmark_metadata = BenchmarkMetadata(name=computed())", "", "sealed_cube", 1),
        ("", "def cache_dir(cls): ...", '{"name": "the seal"}', "sealed_cube", 1),
    ],
    ids=["written out", "constants", "a file", "computed", "a folder of its own"],
)
def test_a_worker_finds_its_data_without_importing_the_benchmark(
    tmp_path, constants, metadata, beside, folder, imports
):
    package, info = tmp_path / "site/sealed_cube", tmp_path / "site/sealed_cube-1.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").touch()
    (package / "task.py").write_text(TASK_MODULE)
    (package / "suite.py").write_text(BENCHMARK_MODULE.format(constants=constants, metadata=metadata))
    if beside:
        (package / "benchmark_metadata.json").write_text(beside)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sealed-cube\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[cube.benchmarks]\nsealed = sealed_cube.suite:SealedBenchmarkConfig\n")
    data = tmp_path / "cache" / folder / "tasks_execution_info" / "a.json"
    data.parent.mkdir(parents=True)
    data.write_text('{"n": 7}')
    config = {"metadata": {"id": "a"}, "_type": "sealed_cube.task.SealedTaskConfig"}
    result = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(config),
        capture_output=True,
        text=True,
        env=os.environ | {"CUBE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path / "site")},
    )
    assert result.stdout == "[7, 7, 7]\n", result.stderr
    log = package / "imports"
    assert (len(log.read_text().splitlines()) if log.exists() else 0) == imports
    assert result.stderr.count("cannot be imported: ImportError: this machine has no browser") == imports


def test_the_gym_layer_imports_no_server_image_or_http_library():
    script = "import sys, cube.task, cube.benchmark, cube.composite; print(*sys.modules)"
    modules = set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )
    heavy = {
        "PIL",
        "httpx",
        "starlette",
        "uvicorn",
        "mcp",
        "rich",
        "click",
        "docstring_parser",
        "yaml",
        "anyio",
        "asyncio",
    }
    assert not heavy & modules
