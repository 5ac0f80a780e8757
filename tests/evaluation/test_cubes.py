"""Cubes in the engine: whose failure a failed action is, rewards that are no numbers, code that does not come back."""

import json
import os
import signal
import subprocess
import time

import pytest

from benchflow.errors import SandboxFailure
from benchflow.evaluation.cube_driver import trouble_of
from benchflow.record import read_model_calls
from benchflow.testing import Answer, ModelServer, ToolCall
from cube.core import StepError
from loaded_commands import BENCH

pytestmark = pytest.mark.slow


CUBE = """
import os, time
from pathlib import Path
from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata
from cube.core import Observation
from cube.task import Task, TaskConfig, TaskMetadata
from cube.tool import Tool, ToolConfig, tool_action


class PressTool(Tool):
    @tool_action
    def press(self, times: int) -> str:
        "Press the button."
        {press}
        return "pressed"


class PressToolConfig(ToolConfig):
    def make(self, container=None):
        return PressTool()


class PressTask(Task[TaskMetadata]):
    def reset(self):
        return Observation.from_text("Press."), {{}}

    def evaluate(self, obs=None):
        return {reward}, {{}}


class PressConfig(TaskConfig[TaskMetadata]):
    def make(self, runtime_context=None, container_backend=None):
        return PressTask(metadata=self.metadata, tool_config=PressToolConfig())


class PressBenchmark(Benchmark["PressBenchmarkConfig"]):
    def _setup(self):
        pass

    def close(self):
        pass


class PressBenchmarkConfig(BenchmarkConfig[TaskMetadata]):
    benchmark_metadata = BenchmarkMetadata(name="press-cube", version="1", description="A button.")
    task_metadata = {{"one": TaskMetadata(id="one")}}
    task_config_class = PressConfig
    benchmark_class = PressBenchmark
"""
DEBUG = """
from cube.core import Action


def make_debug_agent(task_id):
    actions = iter([Action(name="press", arguments={{"times": {times}}}), Action(name="final_step")])
    return lambda obs, action_set: next(actions)
"""


@pytest.fixture
def cube(tmp_path):
    """Install a cube with one button into a folder of its own; gives a way to start `bench` that knows it."""

    def install(press="pass", reward="0.0", times="1"):
        package = tmp_path / "site" / "press_cube"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "benchmark.py").write_text(CUBE.format(press=press, reward=reward))
        (package / "debug.py").write_text(DEBUG.format(times=times))
        info = tmp_path / "site" / "press_cube-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: press-cube\nVersion: 1\n")
        target = "press_cube.benchmark:PressBenchmarkConfig"
        (info / "entry_points.txt").write_text(f"[cube.benchmarks]\npress-cube = {target}\n")

        def start(*options, agent="debug"):
            command = [
                *BENCH,
                "eval",
                "run",
                "cube:press-cube",
                "--agent",
                agent,
                "--json",
                "--name",
                "job",
                *options,
            ]
            return subprocess.Popen(
                command,
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "CUBE_TOKEN": "value-of-the-token"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        return start

    return install


def strict(text):
    """JSON as others read it, without NaN."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def only_result(process):
    out, err = process.communicate(timeout=120)
    assert out, err
    [result] = strict(out)["results"]
    return result


def test_a_lost_connection_of_a_tool_is_unscored_and_keeps_secrets_out(cube, tmp_path):
    start = cube("raise ConnectionRefusedError('111 with value-of-the-token')")
    result = only_result(start())
    assert (result["status"], result["reward"]) == ("unscored", None)
    assert [result["error"][key] for key in ("category", "code", "phase")] == ["infrastructure", "tool-failed", "agent"]
    assert "ConnectionRefusedError: 111 with" in result["error"]["message"]
    lines = (tmp_path / "jobs/job/results.jsonl").read_text()
    assert len(lines.splitlines()) == 3, "trouble of the machine is tried again"
    assert "value-of-the-token" not in lines


def test_bad_arguments_are_the_agents_own(cube):
    result = only_result(cube("self.count = 1 + times", times="'many'")())
    assert (result["status"], result["reward"]) == ("scored", 0.0)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ConnectionResetError("gone"), ("infrastructure", "tool-failed")),
        (MemoryError(), ("infrastructure", "tool-failed")),
        (TimeoutError("no answer"), ("infrastructure", "tool-failed")),
        (OSError(28, "No space left on device"), ("infrastructure", "tool-failed")),
        (ModuleNotFoundError("No module named 'x'"), ("environment", "tool-crashed")),
        (NameError("name 'x' is not defined"), ("environment", "tool-crashed")),
        (SandboxFailure("The sandbox is gone."), ("sandbox", "tool-failed")),
        (TypeError("missing 1 required positional argument"), None),
        (ValueError("there is no square z9"), None),
        (KeyError("z9"), None),
        (FileNotFoundError(2, "No such file or directory"), None),
        (OSError(36, "File name too long"), None),
        (subprocess.TimeoutExpired("sleep", 1), None),
        (type("TimeoutError", (Exception,), {"__module__": "browser"})("nothing to click on"), None),
    ],
)
def test_a_failed_action_is_the_agents_unless_the_machine_or_the_cube_failed(error, verdict):
    found = trouble_of(StepError.from_exception(error))
    assert (found and (found.category, found.code)) == verdict


@pytest.mark.parametrize("reward", ["float('nan')", "float('inf')"])
def test_a_reward_that_is_no_finite_number_is_no_score_and_leaves_readable_records(cube, tmp_path, reward):
    result = only_result(cube(reward=reward)())
    assert (result["error"]["category"], result["error"]["code"]) == ("verifier", "reward-invalid")
    for path in (tmp_path / "jobs/job").rglob("*.json*"):
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            strict(line)


def test_an_action_that_does_not_end_is_left_behind_when_time_is_over(cube):
    result = only_result(cube("time.sleep(1000)")("--agent-timeout", "3"))
    assert (result["error"]["category"], result["error"]["code"]) == ("environment", "timeout")
    assert "press" in result["error"]["message"]
    assert result["agent"]["timed_out"] is True


def test_an_action_that_ends_soon_after_the_agents_time_is_scored(cube):
    result = only_result(cube("time.sleep(3)", reward="1.0")("--agent-timeout", "2"))
    assert (result["reward"], result["agent"]["timed_out"]) == (1.0, True)


def test_the_deadline_of_the_whole_ends_an_evaluation_that_does_not(cube):
    result = only_result(cube(reward="time.sleep(1000) or 1.0")("--timeout", "0.5"))
    assert (result["error"]["category"], result["error"]["code"]) == ("infrastructure", "deadline")


def test_an_interrupt_does_not_wait_for_an_action(cube, tmp_path):
    process = cube("Path('pressed').touch(); time.sleep(1000)")()
    while not (tmp_path / "pressed").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    assert "bench eval resume job" in errors


def test_a_tool_that_ends_the_process_ends_its_own_episode_only(cube):
    result = only_result(cube("raise SystemExit(3)")())
    assert (result["error"]["category"], "SystemExit" in result["error"]["message"]) == ("environment", True)


def test_the_policy_of_a_cube_is_recorded_and_what_it_left_at_a_limit_is_scored(cube, tmp_path, monkeypatch):
    with ModelServer(Answer(tool_calls=[ToolCall("press", {"times": 1})])) as models:
        for name, value in models.environment.items():
            monkeypatch.setenv(name, value)
        result = only_result(cube(reward="0.5")("--max-calls", "2", agent="model:openai/gpt-4o"))
        assert len(models.requests) == 2
    assert (result["status"], result["reward"], result["limits_reached"]) == ("scored", 0.5, ["max_calls"])
    (folder,) = (tmp_path / "jobs/job/rollouts").iterdir()
    outcomes = [call.outcome for call in read_model_calls(folder / "model_calls.jsonl")]
    assert outcomes == ["answered", "answered", "limited"]
