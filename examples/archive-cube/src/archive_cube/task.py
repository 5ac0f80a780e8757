"""Answer a question from documents that only the worker has."""

from typing import Any, Literal

from archive_cube.tool import ArchiveTool, ArchiveToolConfig
from cube.container import ContainerBackend
from cube.core import Content, Observation, StructuredContent
from cube.task import RuntimeContext, Task, TaskConfig, TaskExecutionInfo, TaskMetadata


class ArchiveTaskMetadata(TaskMetadata):
    """What listings need: small and typed."""

    topic: Literal["harbour", "railway", "weather"]
    document_count: int


class ArchiveExecutionInfo(TaskExecutionInfo):
    """What only the worker needs: the question, its answer, and all documents."""

    question: str
    answer: str
    documents: dict[str, str]


class ArchiveTask(Task[ArchiveTaskMetadata]):
    """Done when the agent stops; scored by its last answer."""

    @property
    def info(self) -> ArchiveExecutionInfo:
        assert isinstance(self.execution_info, ArchiveExecutionInfo)
        return self.execution_info

    @property
    def desk(self) -> ArchiveTool:
        assert isinstance(self.tool, ArchiveTool)
        return self.tool

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        self.tool.reset()
        self.desk.documents = dict(self.info.documents)
        return Observation.from_text(f"{self.info.question}\nSubmit the answer, then stop."), {}

    def evaluate(self, obs: Observation | None = None) -> tuple[float, dict[str, Any]]:
        given = self.desk.answer
        right = given is not None and given.strip().lower() == self.info.answer.lower()
        return float(right), {"answered": given is not None}

    def get_privileged_info(self) -> Content:
        return StructuredContent(data={"answer": self.info.answer})


class ArchiveTaskConfig(TaskConfig[ArchiveTaskMetadata]):
    """Loads the archive on the worker."""

    def verify_installed(self) -> None:
        self.load_task_execution_info()

    def make(
        self,
        runtime_context: RuntimeContext | None = None,
        container_backend: ContainerBackend | None = None,
    ) -> ArchiveTask:
        return ArchiveTask(
            metadata=self.metadata,
            execution_info=ArchiveExecutionInfo.model_validate(self.load_task_execution_info()),
            tool_config=self.tool_config or ArchiveToolConfig(),
            runtime_context=runtime_context,
            container_backend=container_backend,
        )
