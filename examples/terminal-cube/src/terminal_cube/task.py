"""A job in a shell: files are laid out in the container, and a command judges what the agent left there."""

from typing import Any

from cube.core import Content, Observation, StructuredContent
from cube.task import RuntimeContext, Task, TaskConfig, TaskMetadata
from cube.tools.terminal import ContainerTerminalTool, TerminalToolConfig

WORK = "/work"


class JobMetadata(TaskMetadata):
    """A job and how it is judged."""

    objective: str
    files: dict[str, str]
    """What is there when the agent begins."""
    check: str
    """A command that succeeds if the job is done; it changes nothing."""
    solution: str


class JobTask(Task[JobMetadata, ContainerTerminalTool]):
    """Done when the agent stops."""

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        self.tool.reset()
        self._shell(f"rm -rf {WORK} && mkdir -p {WORK}", "/")
        for path, text in self.metadata.files.items():
            self.tool.write_file(path, text)
        return Observation.from_text(f"{self.metadata.objective}\nYou are in {WORK}. Stop when you are done."), {}

    def evaluate(self, obs: Observation | None = None) -> tuple[float, dict[str, Any]]:
        assert self.container is not None
        done = self.container.exec(self.metadata.check, timeout=30, workdir=WORK)
        return float(done.exit_code == 0), {"exit_code": done.exit_code}

    def get_privileged_info(self) -> Content:
        return StructuredContent(data={"solution": self.metadata.solution})

    def _shell(self, command: str, folder: str) -> None:
        assert self.container is not None
        done = self.container.exec(command, timeout=30, workdir=folder)
        if done.exit_code:
            raise RuntimeError(f"`{command}` failed: {done.stderr.strip()}")


class JobConfig(TaskConfig[JobMetadata]):
    """Makes the task in a container of the infrastructure."""

    def make(self, runtime_context: RuntimeContext | None = None) -> JobTask:
        return JobTask(
            metadata=self.metadata,
            tool_config=self.tool_config or TerminalToolConfig(working_dir=WORK, enable_file_actions=True),
            runtime_context=runtime_context,
        )
