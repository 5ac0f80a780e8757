"""Repair a program; hidden tests on a copy of the repository judge it."""

import shlex
from typing import Any

from cube.core import Content, Observation, StructuredContent
from cube.task import RuntimeContext, Task, TaskConfig, TaskExecutionInfo, TaskMetadata
from cube.tools.terminal import ContainerTerminalTool, TerminalToolConfig

REPOSITORY = "/testbed"
RUN = "import sys, unittest; sys.path.insert(0, '.'); unittest.main(module=None, argv=sys.argv)"
"""Imports the test runner before modules of the repository can take its place."""


class IssueMetadata(TaskMetadata):
    """What listings need."""

    repository: str


class IssueInfo(TaskExecutionInfo):
    """What only the worker needs, and the agent must not see but for the problem."""

    problem_statement: str
    files: dict[str, str]
    patch: str
    tests: dict[str, str]
    fail_to_pass: list[str]
    pass_to_pass: list[str]


class IssueTask(Task[IssueMetadata, ContainerTerminalTool]):
    """Done when the agent stops."""

    oracle_mode: bool = False
    """Whether the patch is laid beside the repository, for debug agents."""

    @property
    def info(self) -> IssueInfo:
        assert isinstance(self.execution_info, IssueInfo)
        return self.execution_info

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        self.tool.reset()
        self._run(f"rm -rf {REPOSITORY} /tmp/gold.patch && mkdir {REPOSITORY}", "/")
        for path, text in self.info.files.items():
            self.tool.write_file(f"{REPOSITORY}/{path}", text)
        if self.oracle_mode:
            self.tool.write_file("/tmp/gold.patch", self.info.patch)  # noqa: S108  # inside the container
        text = f"{self.info.problem_statement}\nThe repository is in {REPOSITORY}. Stop when it is repaired."
        return Observation.from_text(text), {}

    def evaluate(self, obs: Observation | None = None) -> tuple[float, dict[str, Any]]:
        """Run the tests on a copy, with their own versions in place of what the agent made of them."""
        copy = self._run("mktemp -d", "/").strip()
        try:
            self._run(f"cp -a {REPOSITORY}/. {copy}", "/")
            own = {path: text for path, text in self.info.files.items() if path.startswith("test_")}
            for path, text in {**own, **self.info.tests}.items():
                self.tool.write_file(f"{copy}/{path}", text)
            failed = [
                test for test in (*self.info.fail_to_pass, *self.info.pass_to_pass) if not self._passes(test, copy)
            ]
        finally:
            self._run(f"rm -rf {copy}", "/")
        return float(not failed), {"resolved": not failed, "failed": failed}

    def get_privileged_info(self) -> Content:
        return StructuredContent(data={"patch": self.info.patch})

    def _passes(self, test: str, folder: str) -> bool:
        assert self.container is not None
        command = f"/usr/bin/python3 -I -B -c {shlex.quote(RUN)} {shlex.quote(test)}"
        done = self.container.exec(command, timeout=60, workdir=folder)
        return done.exit_code == 0 and done.stderr.rstrip().endswith("OK")

    def _run(self, command: str, folder: str) -> str:
        assert self.container is not None
        done = self.container.exec(command, timeout=60, workdir=folder)
        if done.exit_code:
            raise RuntimeError(f"`{command}` failed: {done.stderr.strip()}")
        return done.stdout


class IssueConfig(TaskConfig[IssueMetadata]):
    """Loads the repository on the worker."""

    oracle_mode: bool = False

    def verify_installed(self) -> None:
        self.load_task_execution_info()

    def make(self, runtime_context: RuntimeContext | None = None) -> IssueTask:
        self.verify_installed()
        return IssueTask(
            metadata=self.metadata,
            execution_info=IssueInfo.model_validate(self.load_task_execution_info()),
            tool_config=self.tool_config or TerminalToolConfig(working_dir="/", enable_file_actions=True),
            runtime_context=runtime_context,
            oracle_mode=self.oracle_mode,
        )
