"""An agent that knows the solutions, for `cube test`."""

from cube.core import Action, ActionSchema, Observation
from cube.task import STOP_ACTION
from terminal_cube.benchmark import JOBS, TerminalBenchmarkConfig


def get_debug_benchmark() -> TerminalBenchmarkConfig:
    return TerminalBenchmarkConfig()


class DebugAgent:
    """Run the solution, stop."""

    def __init__(self, task_id: str) -> None:
        self.plan = [
            Action(name="bash", arguments={"command": JOBS[task_id].solution}),
            Action(name=STOP_ACTION.name),
        ]

    def __call__(self, obs: Observation, action_set: list[ActionSchema]) -> Action:
        return self.plan.pop(0)


def make_debug_agent(task_id: str) -> DebugAgent:
    return DebugAgent(task_id)
