"""An agent that applies the known patch, for `cube test` and for jobs with `--agent debug`."""

from cube.core import Action, ActionSchema, Observation
from cube.task import STOP_ACTION
from patch_cube.benchmark import PatchBenchmarkConfig
from patch_cube.issues import ISSUES


def get_debug_benchmark() -> PatchBenchmarkConfig:
    return PatchBenchmarkConfig(oracle_mode=True)


class DebugAgent:
    """Write the patch, apply it, stop."""

    def __init__(self, task_id: str) -> None:
        patch = {"path": "/tmp/own.patch", "content": ISSUES[task_id]["patch"]}  # noqa: S108  # inside the container
        self.plan = [
            Action(name="write_file", arguments=patch),
            Action(name="bash", arguments={"command": "cd /testbed && git apply /tmp/own.patch"}),
            Action(name=STOP_ACTION.name),
        ]

    def __call__(self, obs: Observation, action_set: list[ActionSchema]) -> Action:
        return self.plan.pop(0)


def make_debug_agent(task_id: str) -> DebugAgent:
    return DebugAgent(task_id)
