"""Testing tools for authors of cubes: debug episodes and suites, reproducible resets, conformance.

Everything is re-exported here; see `cube.episodes` and `cube.conformance`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cube.benchmark import make_benchmark
from cube.conformance import CHECKS, check_benchmark, check_task
from cube.core import Observation
from cube.differences import observation_difference
from cube.episodes import (
    DebugAgent,
    DebugModule,
    EpisodeReport,
    aggregate_profiling,
    assert_debug_tasks_reward_one,
    episode_problem,
    run_debug_episode,
    run_debug_suite,
)
from cube.findings import Finding
from cube.resource import InfraConfig
from cube.task import TaskConfig

__all__ = [
    "CHECKS",
    "DebugAgent",
    "DebugModule",
    "EpisodeReport",
    "Finding",
    "aggregate_profiling",
    "assert_debug_tasks_reward_one",
    "check_benchmark",
    "check_reset_reproducibility",
    "check_task",
    "episode_problem",
    "observation_difference",
    "run_debug_episode",
    "run_debug_suite",
]

RESET_REPRO_OBS_MISMATCH_MSG = "Two tasks made from one config start with different observations"


def check_reset_reproducibility(module: DebugModule, *, infra: InfraConfig | None = None) -> tuple[bool, str, str]:
    """Reset two tasks of the first config in parallel; return whether they agree, a message, and the difference."""
    config = module.get_debug_benchmark()
    config.install()
    with make_benchmark(config, infra) as benchmark:
        task_config = next(iter(config.get_task_configs()), None)
        if task_config is None:
            return False, f"Benchmark '{config.name}' has no tasks", ""

        def first_observation(task_config: TaskConfig[Any]) -> Observation:
            task = benchmark.spawn(task_config)
            try:
                return task.reset()[0]
            finally:
                task.close()

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(first_observation, [task_config, task_config])
    difference = observation_difference(first, second)
    return (False, RESET_REPRO_OBS_MISMATCH_MSG, difference) if difference else (True, "", "")
