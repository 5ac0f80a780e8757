"""The counter that the agent drives."""

from cube.container import Container
from cube.tool import Tool, ToolConfig, tool_action


class CounterTool(Tool):
    """A number with buttons."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.value = start

    def reset(self) -> None:
        self.value = self.start

    @tool_action
    def increment(self) -> int:
        """Add one and read the counter."""
        self.value += 1
        return self.value

    @tool_action
    def decrement(self) -> int:
        """Subtract one and read the counter."""
        self.value -= 1
        return self.value

    @tool_action
    def add(self, amount: int) -> int:
        """Add an amount and read the counter.

        Args:
            amount: what to add; may be negative
        """
        self.value += amount
        return self.value

    @tool_action
    def read(self) -> int:
        """Read the counter."""
        return self.value


class CounterToolConfig(ToolConfig):
    """Where the counter starts."""

    start: int = 0

    def make(self, container: Container | None = None) -> CounterTool:
        return CounterTool(self.start)
