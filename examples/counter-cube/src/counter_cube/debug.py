"""Agents that solve the tasks, for `cube test`."""

from collections.abc import Callable

from counter_cube.benchmark import CounterBenchmarkConfig
from cube.core import Action, ActionSchema, Observation


def get_debug_benchmark() -> CounterBenchmarkConfig:
    return CounterBenchmarkConfig()


def make_debug_agent(task_id: str) -> Callable[[Observation, list[ActionSchema]], Action]:
    """Counts short distances step by step and jumps long ones."""
    distance = CounterBenchmarkConfig.task_metadata[task_id].target

    def act(obs: Observation, action_set: list[ActionSchema]) -> Action:
        if abs(distance) > 5:
            return Action(name="add", arguments={"amount": distance})
        return Action(name="increment" if distance > 0 else "decrement")

    return act
