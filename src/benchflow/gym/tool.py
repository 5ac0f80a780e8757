"""The actions of an agent in a package's sandbox: a terminal, and the step from one step of the package to the next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from benchflow.agents.workspace import Workspace, WorkspaceError
from benchflow.gym.driver import ActionDriver
from benchflow.gym.game_driver import GameDriver
from benchflow.gym.sandbox_container import LOOP
from benchflow.rollout.policies import normal_tool
from cube.container import Container
from cube.core import Action, Observation, StepError, StructuredContent
from cube.tool import Tool, ToolConfig, tool_action

NEXT_STEP: Final = "next_step"
REPLY: Final = "reply"
NO_MESSAGE: Final = "Nobody talks to you in this task."
NO_NEXT_STEP: Final = "This is the last step; use final_step to end the task."


class PackageToolConfig(ToolConfig):
    """A terminal; `timeout_sec` bounds one command."""

    timeout_sec: float = 600.0

    def make(self, container: Container | None = None) -> PackageTool:
        del container  # the task connects it when it starts its sandbox
        return PackageTool(self.timeout_sec)


class PackageTool(Tool):
    """What an agent can do in a package's sandbox: run commands, read, write and edit files.

    A failure (a missing file, text that does not occur) is reported as an observation and does not end the episode.
    """

    def __init__(self, timeout_sec: float) -> None:
        self.timeout_sec = timeout_sec
        self._driver: ActionDriver | None = None
        self._workspace: Workspace | None = None

    def connect(self, driver: ActionDriver | None) -> None:
        """Use this task from now on; None: no task."""
        self._driver = driver
        self._workspace = driver.workspace() if driver is not None else None

    def forbids(self, action: str) -> bool:
        """Whether the package forbids an action by name."""
        driver = self._driver
        return driver is not None and bool(driver.forbidden) and normal_tool(action) in driver.forbidden

    def refusal(self, action: str) -> Observation | None:
        """Why an action of the tool cannot be called now; None if it can, or if there is no such action."""
        if self.forbids(action):
            return Observation.from_text(f"The package forbids the action '{action}'.")
        if action == REPLY and self._driver is not None and not isinstance(self._driver, GameDriver):
            return Observation(contents=[StructuredContent(data={"error": NO_MESSAGE})])
        if action == NEXT_STEP and self._driver is not None and self._driver.course.following is None:
            return Observation(contents=[StructuredContent(data={"error": NO_NEXT_STEP})])
        return None

    def execute_action(self, action: Action) -> Observation | StepError:
        return self.refusal(action.name) or super().execute_action(action)

    def _do(self, action: Callable[[Workspace], Awaitable[Any]]) -> Any:
        workspace = self._workspace
        if workspace is None:
            raise RuntimeError("The task has not been reset: there is no sandbox yet.")
        try:
            return LOOP.run(lambda: action(workspace))
        except WorkspaceError as error:
            return {"error": str(error)}

    @tool_action
    def bash(self, command: str) -> Any:
        """Run a shell command in the working folder and see its output and exit code.

        Args:
            command: the command line
        """
        return self._do(self._bash(command))

    def _bash(self, command: str) -> Callable[[Workspace], Awaitable[dict[str, Any]]]:
        async def run(workspace: Workspace) -> dict[str, Any]:
            result = await workspace.bash(command, timeout=self.timeout_sec)
            return {
                "stdout": result.stdout.decode(errors="replace"),
                "stderr": result.stderr.decode(errors="replace"),
                "exit_code": result.exit_code,
                **({"timed_out": True} if result.timed_out else {}),
            }

        return run

    @tool_action
    def read_file(self, path: str) -> Any:
        """Read a text file.

        Args:
            path: absolute, or relative to the working folder
        """
        return self._do(lambda workspace: workspace.read_text(path))

    @tool_action
    def write_file(self, path: str, text: str) -> Any:
        """Write a text file, replacing what was there.

        Args:
            path: absolute, or relative to the working folder
            text: the whole new content
        """
        return self._do(lambda workspace: workspace.write_text(path, text))

    @tool_action
    def edit_file(self, path: str, old: str, new: str) -> Any:
        """Replace a piece of text that occurs exactly once in a file.

        Args:
            path: absolute, or relative to the working folder
            old: the text as it is in the file
            new: the text that takes its place
        """
        return self._do(lambda workspace: workspace.edit_text(path, old, new))

    @tool_action
    def reply(self, text: str) -> Any:
        """Answer the last message to you; what you see next is the message after it.

        Args:
            text: your whole answer
        """
        return self._do(lambda workspace: self._reply(workspace, text))

    async def _reply(self, workspace: Workspace, text: str) -> str:
        del workspace
        driver = self._driver
        return await driver.reply(text) if isinstance(driver, GameDriver) else NO_MESSAGE

    @tool_action
    def next_step(self) -> Any:
        """End the step that you are working on: it is scored as it is, and the next instruction follows."""
        return self._do(self._advance)

    async def _advance(self, workspace: Workspace) -> str:
        del workspace
        driver = self._driver
        if driver is None:
            raise WorkspaceError(NO_NEXT_STEP)
        await driver.advance()
        self.connect(driver)
        return "The task ends with this step." if driver.course.over else driver.prompt
