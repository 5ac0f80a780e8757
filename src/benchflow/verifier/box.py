"""A sandbox in verifier scope: commands of the verifier, what they print, and the files they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio.to_thread

from benchflow.errors import SandboxFailure, VerifierFailure
from benchflow.files.atomic import write_unseen
from benchflow.rewards import RewardError
from benchflow.rewards.reward_files import MAX_BYTES, REWARD_DETAILS, REWARD_JSON, REWARD_TEXT
from benchflow.sandbox.protocol import NO_SUCH_FILE, OF_THE_FILE, ExecResult, Sandbox
from benchflow.verifier.verifier_tree import LOGS

MAX_STDOUT: Final = 4 << 20
MAX_LOG_BYTES: Final = 64 << 20
MAX_LOG_FILES: Final = 10_000
STDOUT: Final = "test-stdout.txt"


@dataclass(frozen=True, slots=True)
class Box:
    """Where a verifier runs. `live`: in the agent's own box, whose other processes continue."""

    sandbox: Sandbox
    user: str
    env: Mapping[str, str] = field(repr=False)
    live: bool = False

    async def run(
        self, command: str | Sequence[str], *, cwd: str, timeout: float, env: Mapping[str, str] | None = None
    ) -> ExecResult:
        """Run a command of the verifier to its end, both of its outputs as one.

        Nothing it started outlives it, unless the box is live. A string is for the environment's shell.
        """
        words = () if isinstance(command, str) else command
        shell = command if isinstance(command, str) else 'exec "$@"'
        argv = ["/bin/sh", "-c", f"exec 2>&1\n{shell}", "sh", *words]
        result = await self.sandbox.exec(
            argv, user=self.user, env={**self.env, **(env or {})}, cwd=cwd, timeout=timeout, max_output=MAX_STDOUT
        )
        if not self.live:
            await self.sandbox.kill_processes()
        return result

    async def collect(self, target: Path) -> None:
        """Copy `/logs/verifier` to a host folder. If it is too large, only the reward files are copied.

        An invalid reward file raises `RewardError` (`reward-invalid`), an unreadable box `SandboxFailure`.
        """
        try:
            await self.sandbox.download(LOGS, target, max_bytes=MAX_LOG_BYTES, max_files=MAX_LOG_FILES)
        except SandboxFailure as error:
            if error.code not in OF_THE_FILE:
                raise
            for name in (REWARD_TEXT, REWARD_JSON, REWARD_DETAILS):
                await self._collect_file(name, target / name)

    async def _collect_file(self, name: str, target: Path) -> None:
        try:
            data = await self.sandbox.read_file(f"{LOGS}/{name}", max_bytes=MAX_BYTES)
        except SandboxFailure as error:
            if error.code not in OF_THE_FILE:
                raise
            if error.code == NO_SUCH_FILE or name == REWARD_DETAILS:
                return
            raise RewardError(f"{name} cannot be used: {error}", code="reward-invalid", file=name) from error
        await anyio.to_thread.run_sync(write_unseen, target, data)


def timed_out(timeout: float) -> VerifierFailure:
    """The verifier exceeded its time limit."""
    return VerifierFailure(f"the verifier exceeded its limit of {timeout:g} s and was stopped", code="timeout")


def keep_output(result: ExecResult, folder: Path, redact: Callable[[str], str]) -> None:
    """Write the output of a verifier to `test-stdout.txt`, without secrets."""
    text = redact(result.stdout.decode(errors="replace"))
    if result.dropped_bytes:
        text += f"\n[{result.dropped_bytes:,} bytes from the middle were dropped]\n"
    write_unseen(folder / STDOUT, text)
