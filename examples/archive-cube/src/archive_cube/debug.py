"""An agent that searches as a person would, for `cube test`."""

from archive_cube.benchmark import ArchiveBenchmarkConfig
from cube.core import Action, ActionSchema, Observation, StructuredContent, TextContent
from cube.task import STOP_ACTION


def get_debug_benchmark() -> ArchiveBenchmarkConfig:
    return ArchiveBenchmarkConfig()


class DebugAgent:
    """Search, read the hit, submit the last word, stop."""

    def __init__(self) -> None:
        self.turn = 0

    def __call__(self, obs: Observation, action_set: list[ActionSchema]) -> Action:
        self.turn += 1
        content = obs.contents[0]
        if self.turn == 1:
            return Action(name="search", arguments={"words": "inspector signed"})
        if self.turn == 2 and isinstance(content, StructuredContent):
            return Action(name="read", arguments={"document": content.data[0]})
        if self.turn == 3 and isinstance(content, TextContent):
            return Action(name="submit", arguments={"answer": content.data.split()[-1].rstrip(".")})
        return Action(name=STOP_ACTION.name)


def make_debug_agent(task_id: str) -> DebugAgent:
    return DebugAgent()
