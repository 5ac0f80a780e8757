"""Reach the target."""

from typing import Any

from counter_cube.tool import CounterTool, CounterToolConfig
from cube.container import ContainerBackend
from cube.core import Content, Observation, StructuredContent
from cube.task import RuntimeContext, Task, TaskConfig, TaskMetadata


class CounterTaskMetadata(TaskMetadata):
    """Where to count to."""

    target: int


class CounterTask(Task[CounterTaskMetadata]):
    """Done once the counter shows the target."""

    @property
    def counter(self) -> CounterTool:
        assert isinstance(self.tool, CounterTool)
        return self.tool

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        self.tool.reset()
        goal = f"Bring the counter from {self.counter.value} to {self.metadata.target}."
        return Observation.from_text(goal), {}

    def evaluate(self, obs: Observation | None = None) -> tuple[float, dict[str, Any]]:
        value = self.counter.value
        return float(value == self.metadata.target), {"value": value}

    def finished(self, obs: Observation | None = None) -> bool:
        return self.counter.value == self.metadata.target

    def get_privileged_info(self) -> Content:
        return StructuredContent(data={"target": self.metadata.target})


class CounterTaskConfig(TaskConfig[CounterTaskMetadata]):
    """Everything a worker needs."""

    def make(
        self,
        runtime_context: RuntimeContext | None = None,
        container_backend: ContainerBackend | None = None,
    ) -> CounterTask:
        return CounterTask(
            metadata=self.metadata,
            tool_config=self.tool_config or CounterToolConfig(),
            runtime_context=runtime_context,
            container_backend=container_backend,
        )
