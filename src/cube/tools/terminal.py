"""A terminal in the container of a task: commands, and files if the task offers them.

Results are text for a model: output of both streams, cut in the middle if it is long, and the exit code unless it is 0.
"""

from __future__ import annotations

import base64
import shlex
from typing import Final

from cube.container import Container, ContainerExecError, ExecResult
from cube.tool import Tool, ToolConfig, tool_action

TIMED_OUT: Final = 124
_CHUNK: Final = 65_536
"""Characters per command: the kernel refuses an argument of more than 128 KiB."""
_FILE_SEC: Final = 60


class TerminalToolConfig(ToolConfig):
    """The settings of a terminal."""

    working_dir: str = "/"
    """Where commands run; relative paths of files are below it."""
    default_timeout: float = 120
    """Seconds for a command that does not ask for its own limit."""
    max_timeout: float = 600
    """Maximum seconds that a command of the agent may ask for."""
    max_output_chars: int = 30_000
    """Longer output is cut in the middle."""
    enable_file_actions: bool = False
    """Whether the agent may also read and write files without a command."""

    def make(self, container: Container | None = None) -> ContainerTerminalTool:
        if container is None:
            raise ValueError(
                "A terminal needs a container: the task has no container_config, or it was not launched. Pass an "
                "infrastructure, make(infra=LocalInfraConfig()), or a container_backend."
            )
        return (FileTerminalTool if self.enable_file_actions else ContainerTerminalTool)(self, container)


class ContainerTerminalTool(Tool):
    """Runs commands in a container, which belongs to the task and is not closed here."""

    def __init__(self, config: TerminalToolConfig, container: Container) -> None:
        self._config = config
        self._container = container

    @tool_action
    def bash(self, command: str, timeout: float | None = None) -> str:
        """Run a shell command in the container and return its output.

        Args:
            command: the command; it runs in the working folder, in a new shell
            timeout: seconds after which it is ended
        """
        limit = min(timeout or self._config.default_timeout, self._config.max_timeout)
        return shortened(self.bash_unlimited(command, timeout=limit), self._config.max_output_chars)

    def bash_unlimited(self, command: str, timeout: float | None = None) -> str:
        """As `bash`, with all of the output and no limit of time but the given one; for tasks, not for agents."""
        result = self._container.exec(command, timeout=timeout, workdir=self._config.working_dir)
        text = "\n".join(part.rstrip("\n") for part in (result.stdout, result.stderr) if part)
        if result.exit_code == TIMED_OUT and timeout is not None:
            text = f"{text}\n[error] The command was stopped after {timeout:g} s."
        return f"{text}\n[exit_code: {result.exit_code}]".lstrip("\n") if result.exit_code else text

    def read_file(self, path: str) -> str:
        """The text of a file in the container."""
        result = self._run(f"base64 < {shlex.quote(path)}")
        data = base64.b64decode(result.stdout)
        return shortened(data.decode(errors="replace"), self._config.max_output_chars)

    def write_file(self, path: str, content: str) -> str:
        """Write a file in the container; its folder is created, and nothing is left half-written."""
        target = shlex.quote(path)
        staged = shlex.quote(f"{path}.writing")
        encoded = base64.b64encode(content.encode()).decode()
        self._run(f'mkdir -p -- "$(dirname -- {target})" && : > {staged}')
        for start in range(0, len(encoded), _CHUNK):
            self._run(f"printf %s {encoded[start : start + _CHUNK]} >> {staged}")
        decoded = shlex.quote(f"{path}.decoded")
        self._run(
            f"{{ base64 -d < {staged} > {decoded} && mv -f -- {decoded} {target}; }}; code=$?; "
            f"rm -f -- {staged} {decoded}; exit $code"
        )
        return f"Wrote {len(content.encode())} bytes to {path}."

    def _run(self, command: str) -> ExecResult:
        result = self._container.exec(command, timeout=_FILE_SEC, workdir=self._config.working_dir)
        if result.exit_code:
            raise ContainerExecError(result.stderr.strip() or f"The command exited with code {result.exit_code}.")
        return result


class FileTerminalTool(ContainerTerminalTool):
    """A terminal that offers reading and writing files as actions too."""

    @tool_action
    def read_file(self, path: str) -> str:
        """Read a text file.

        Args:
            path: absolute, or relative to the working folder
        """
        return super().read_file(path)

    @tool_action
    def write_file(self, path: str, content: str) -> str:
        """Write a text file in place of what is there; folders are created.

        Args:
            path: absolute, or relative to the working folder
            content: the whole text
        """
        return super().write_file(path, content)


def shortened(text: str, limit: int) -> str:
    """The text, or its beginning and its end with the number of characters left out between them. Pure."""
    if len(text) <= limit:
        return text
    head, tail = limit // 2, limit - limit // 2
    return f"{text[:head]}\n[… {len(text) - limit} characters left out …]\n{text[-tail:]}"
