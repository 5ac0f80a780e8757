"""Episodes of debug agents: play a task, report what happened, never raise an error of the task or the agent.

A cube's debug module has `get_debug_benchmark() -> BenchmarkConfig` and `make_debug_agent(task_id)`, which returns a
callable `(observation, action_set) -> Action` that reaches reward 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean
from time import perf_counter
from typing import Any, Protocol, TypedDict

from cube.benchmark import Benchmark, BenchmarkConfig, make_benchmark
from cube.core import Action, ActionSchema, EnvironmentOutput, Observation
from cube.resource import InfraConfig
from cube.task import Task, TaskConfig

DebugAgent = Callable[[Observation, list[ActionSchema]], Action | list[Action]]


class DebugModule(Protocol):
    """What `<package>.debug` provides."""

    def get_debug_benchmark(self) -> BenchmarkConfig[Any]: ...

    def make_debug_agent(self, task_id: str) -> DebugAgent: ...


class EpisodeReport(TypedDict):
    """The outcome of an episode; `error` is "Type: message" or None."""

    task_id: str
    done: bool
    reward: float
    steps: int
    error: str | None
    tools_list_ok: bool
    tools_list_error: str | None
    close_idempotent_ok: bool
    reset_time_s: float
    step_times_s: list[float]
    episode_time_s: float
    profiling: list[dict[str, Any]]


OnStep = Callable[[int, Action | list[Action], EnvironmentOutput], None]
MAX_THREADS = 32


def run_debug_episode(
    task: Task[Any], agent: DebugAgent, *, max_steps: int = 20, on_step: OnStep | None = None
) -> EpisodeReport:
    """Reset, let the agent act until the task is done, close twice."""
    started = perf_counter()
    report = _new_report(task.id)
    try:
        _check_tools(task, report)
        _play(task, agent, report, max_steps, on_step)
    except Exception as error:  # noqa: BLE001  # whatever the task or the agent raises is the report's content
        report["error"] = f"{type(error).__name__}: {error}"
    finally:
        _close_twice(task, report)
    report["episode_time_s"] = perf_counter() - started
    return report


def _new_report(task_id: str) -> EpisodeReport:
    return {
        "task_id": task_id,
        "done": False,
        "reward": 0.0,
        "steps": 0,
        "error": None,
        "tools_list_ok": False,
        "tools_list_error": None,
        "close_idempotent_ok": False,
        "reset_time_s": 0.0,
        "step_times_s": [],
        "episode_time_s": 0.0,
        "profiling": [],
    }


def _check_tools(task: Task[Any], report: EpisodeReport) -> None:
    """Every action must be listed with a schema that explains its parameters."""
    try:
        actions = task.action_set
        complaints = [message for action in actions for ok, message in [action.validate_param_descriptions()] if not ok]
        report["tools_list_error"] = "; ".join(complaints) or (None if actions else "the action set is empty")
    except Exception as error:  # noqa: BLE001  # see run_debug_episode
        report["tools_list_error"] = f"{type(error).__name__}: {error}"
    report["tools_list_ok"] = report["tools_list_error"] is None


def _play(task: Task[Any], agent: DebugAgent, report: EpisodeReport, max_steps: int, on_step: OnStep | None) -> None:
    started = perf_counter()
    obs, _ = task.reset()
    report["reset_time_s"] = perf_counter() - started
    while not report["done"] and report["steps"] < max_steps:
        action = agent(obs, task.action_set)
        started = perf_counter()
        output = task.step(action)
        report["step_times_s"].append(perf_counter() - started)
        report["steps"] += 1
        report["reward"], report["done"], obs = output.reward, output.done, output.obs
        report["profiling"].append(output.info["profiling"])
        if on_step:
            on_step(report["steps"], action, output)
        if output.error is not None:
            report["error"] = f"{output.error.error_type}: {output.error.exception_str}"


def _close_twice(task: Task[Any], report: EpisodeReport) -> None:
    try:
        task.close()
        task.close()
        report["close_idempotent_ok"] = True
    except Exception as error:  # noqa: BLE001  # see run_debug_episode
        report["error"] = report["error"] or f"close: {type(error).__name__}: {error}"


def run_debug_suite(
    name: str,
    module: DebugModule,
    *,
    max_steps: int = 20,
    print_json: bool = True,
    workers: int = 0,
    infra: InfraConfig | None = None,
    on_episode_start: Callable[[str], None] | None = None,
    on_episode_done: Callable[[EpisodeReport], None] | None = None,
) -> list[EpisodeReport]:
    """Install the debug benchmark and play every task; reports come in the order of the task configs.

    `workers` is the number of threads: 1 plays them in sequence, 0 uses one thread per task (up to 32).
    """
    if workers < 0:
        raise ValueError("workers must be >= 0")
    config = module.get_debug_benchmark()
    config.install()

    def play(task_config: TaskConfig[Any]) -> EpisodeReport:
        if on_episode_start:
            on_episode_start(task_config.task_id)
        report = _spawn_and_play(benchmark, task_config, module, max_steps)
        if on_episode_done:
            on_episode_done(report)
        return report

    with make_benchmark(config, infra) as benchmark:
        configs = list(config.get_task_configs())
        threads = min(workers or len(configs) or 1, MAX_THREADS)
        with ThreadPoolExecutor(threads) as pool:
            reports = list(pool.map(play, configs))
    if print_json:
        json.dump({"benchmark": name, "episodes": reports}, sys.stdout, indent=2, default=str)
        sys.stdout.write("\n")
    return reports


def _spawn_and_play(
    benchmark: Benchmark[Any], task_config: TaskConfig[Any], module: DebugModule, max_steps: int
) -> EpisodeReport:
    try:
        agent = module.make_debug_agent(task_config.task_id)
        task = benchmark.spawn(task_config)
    except Exception as error:  # noqa: BLE001  # one task that cannot be made must not hide the others
        return {**_new_report(task_config.task_id), "error": f"{type(error).__name__}: {error}"}
    return {**run_debug_episode(task, agent, max_steps=max_steps), "task_id": task_config.task_id}


def assert_debug_tasks_reward_one(
    module: DebugModule, *, infra: InfraConfig | None = None, max_steps: int = 20
) -> None:
    """For pytest: every debug episode ends without error, done, with reward 1."""
    for report in run_debug_suite("debug", module, max_steps=max_steps, print_json=False, infra=infra):
        problem = episode_problem(report)
        if problem:
            raise AssertionError(f"Task '{report['task_id']}': {problem}")


def episode_problem(report: EpisodeReport) -> str | None:
    """Why an episode is not a success, or None."""
    if report["error"]:
        return f"Episode error: {report['error']}"
    if not report["done"]:
        return f"Episode did not complete in {report['steps']} steps"
    if report["reward"] != 1.0:
        return f"Expected reward=1.0, got {report['reward']}"
    return None


def aggregate_profiling(reports: Iterable[EpisodeReport]) -> dict[str, float]:
    """Mean seconds per step by operation: `step/evaluate`, `step/tool_execute/total`, …"""
    values: dict[str, list[float]] = {}
    for report in reports:
        for profiling in report["profiling"]:
            for name, value in profiling.items():
                parts = value.items() if isinstance(value, dict) else [("", value)]
                for part, number in parts:
                    values.setdefault("/".join(filter(None, ("step", name, part))), []).append(float(number))
    return {name: fmean(numbers) for name, numbers in sorted(values.items())}
