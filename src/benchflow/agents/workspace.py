"""A shell and text files in the sandbox, with exactly the permissions of the agent's user.

Files are read and written by commands that run as that user, so the kernel itself refuses paths that the agent
may not access. Every problem is a `WorkspaceError` with one sentence that can be shown to the agent.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from benchflow.errors import BenchflowError, SandboxFailure
from benchflow.sandbox.protocol import ExecResult, Sandbox

MAX_TEXT: Final = 4 << 20
MAX_OUTPUT: Final = 64 << 10
_FILE_TIMEOUT: Final = 30.0

_WHICH: Final = "command -v bash || command -v sh"
_READ: Final = """\
[ -e "$1" ] || [ -L "$1" ] || { echo "'$1' does not exist." >&2; exit 3; }
[ -f "$1" ] || { echo "'$1' is not a regular file." >&2; exit 3; }
[ -r "$1" ] || { echo "'$1' is not readable by this user." >&2; exit 3; }
[ "$(wc -c < "$1")" -le "$2" ] || { echo "'$1' is larger than $2 bytes." >&2; exit 3; }
exec cat -- "$1"
"""
_WRITE: Final = """\
if [ -e "$1" ] && [ ! -f "$1" ]; then echo "'$1' is not a regular file." >&2; exit 3; fi
mkdir -p -- "$(dirname -- "$1")" && cat > "$1"
"""


class WorkspaceError(BenchflowError):
    """A request of the agent that cannot be fulfilled."""

    default_code = "workspace"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A sandbox as one user sees it from its working folder."""

    sandbox: Sandbox
    workdir: str
    user: str | None = None
    env: Mapping[str, str] | None = None
    _known: list[str] = field(default_factory=list, compare=False, repr=False)
    """The shell, once determined."""

    async def bash(self, command: str, *, timeout: float | None = None, max_output: int = MAX_OUTPUT) -> ExecResult:
        """Run a command with bash, or sh if there is none; each starts in the working folder."""
        if "\0" in command:
            raise WorkspaceError("A command must not contain a NUL character.")
        return await self._run([await self._shell(), "-c", command], timeout=timeout, max_output=max_output)

    async def _shell(self) -> str:
        """The shell of the environment, determined once: asking with every command would start two programs."""
        if not self._known:
            found = await self._run(["sh", "-c", _WHICH], timeout=_FILE_TIMEOUT, max_output=MAX_OUTPUT)
            self._known.append("bash" if found.stdout.strip().endswith(b"bash") else "sh")
        return self._known[0]

    async def read_text(self, path: str, *, line: int | None = None, limit: int | None = None) -> str:
        """The text of a regular file, or `limit` lines of it from `line` (counted from 1)."""
        target = self.resolve(path)
        arguments = ["sh", "-c", _READ, "sh", target, str(MAX_TEXT)]
        done = await self._run(arguments, timeout=_FILE_TIMEOUT, max_output=MAX_TEXT + MAX_OUTPUT)
        _require(done, f"'{target}' cannot be read")
        try:
            text = done.stdout.decode()
        except UnicodeDecodeError:
            raise WorkspaceError(f"'{target}' is not text in UTF-8.") from None
        if line is None and limit is None:
            return text
        first = max((line or 1) - 1, 0)
        lines = text.splitlines(keepends=True)
        return "".join(lines[first : None if limit is None else first + max(limit, 0)])

    async def write_text(self, path: str, text: str) -> None:
        """Write this text to a file; missing folders are created, an existing file keeps its permissions."""
        target = self.resolve(path)
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > MAX_TEXT:
            raise WorkspaceError(f"A text of {len(data)} bytes exceeds the limit of {MAX_TEXT} bytes.")
        done = await self._run(["sh", "-c", _WRITE, "sh", target], timeout=_FILE_TIMEOUT, stdin=data)
        _require(done, f"'{target}' cannot be written")

    async def edit_text(self, path: str, old: str, new: str, *, everywhere: bool = False) -> int:
        """Replace `old` by `new` and return how often; `old` must occur exactly once unless `everywhere`."""
        if not old:
            raise WorkspaceError("The text to replace is empty.")
        text = await self.read_text(path)
        count = text.count(old)
        if count == 0:
            raise WorkspaceError(f"'{path}' does not contain the text to replace.")
        if count > 1 and not everywhere:
            raise WorkspaceError(f"'{path}' contains the text to replace {count} times; it must be unique.")
        await self.write_text(path, text.replace(old, new))
        return count

    def resolve(self, path: str) -> str:
        """The path from the working folder."""
        if not path or "\0" in path:
            raise WorkspaceError("A path must not be empty or contain a NUL character.")
        return posixpath.join(self.workdir, path)

    async def _run(
        self, arguments: list[str], *, timeout: float | None, max_output: int = MAX_OUTPUT, stdin: bytes | None = None
    ) -> ExecResult:
        try:
            return await self.sandbox.exec(
                arguments,
                user=self.user,
                env=self.env,
                cwd=self.workdir,
                timeout=timeout,
                max_output=max_output,
                stdin=stdin,
            )
        except SandboxFailure as error:
            if error.code in ("sandbox-gone", "helper-gone"):
                raise
            raise WorkspaceError(str(error)) from error


def _require(done: ExecResult, otherwise: str) -> None:
    if done.timed_out:
        raise WorkspaceError(f"{otherwise}: time limit exceeded.")
    if done.exit_code:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise WorkspaceError(reason[-1] if reason else f"{otherwise}.")
