"""The entry point of an image: started before the agent, as the image's user, in its working folder.

Its command is `sh -c "sleep infinity"` in place of the image's own, so that an entry point that prepares something and
then starts its command (`exec "$@"`) hands over to a process that does nothing. If nothing else is left running, it is
ended there; otherwise it keeps running until verification has ended, like a service of a manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from benchflow.errors import EnvironmentFailure, SandboxFailure
from benchflow.sandbox.protocol import ExecResult, Image, Sandbox
from benchflow.sandbox.services import LOGS, RunningServices, ServicePlan, ServicesPlan

COMMAND: Final = ("sh", "-c", "sleep infinity")
HAND_OVER_SEC: Final = 10.0
"""How long an entry point may take until it hands over, where no healthcheck says when the environment is ready."""
_NAME: Final = "entrypoint"
_IDLE: Final = (COMMAND, ("sleep", "infinity"))
_PORTER: Final = ("sandbox", "serve")
"""The process of a local sandbox that moves files."""
_POLL_SEC: Final = 0.03
_LISTS: Final = 2
_POLL_MOST_SEC: Final = 0.5
_LARGEST_LOG: Final = 1 << 20
_PROCESSES: Final = r"""
echo "$$"
for p in /proc/[0-9]*; do
  read -r line <"$p/stat" || continue
  set -- ${line##*) }
  printf '%s %s %s %s\n' "${p#/proc/}" "$2" "$1" "$(tr '\000\n' '\037 ' <"$p/cmdline")"
done 2>/dev/null
true
"""
"""Prints its own id, then id, parent, state and words of every process."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process inside."""

    parent: int
    state: str
    words: tuple[str, ...]


def plan_entrypoint(image: Image) -> ServicesPlan:
    """How the entry point of an image is started."""
    words = (*image.entrypoint, *COMMAND)
    return ServicesPlan((ServicePlan(_NAME, words, image.user or "root", image.workdir or "/"),))


class RunningEntrypoint(RunningServices):
    """The entry point of one sandbox."""

    log: bytes = b""
    """What it printed, once it was ended."""

    async def settle(self, *, wait: bool) -> bool:
        """Whether it has done its work and was ended; False if it keeps running, or something that it started.

        With `wait`, it may first take some time until it hands over. One that ended with an error is an
        `EnvironmentFailure`, because a container would have ended with it.
        """
        if not await self._handed_over(HAND_OVER_SEC if wait else 0):
            return False
        # A list of processes is no snapshot: one that was started while it was made is in the next.
        for _ in range(_LISTS):
            if not only_waits(await self._table()):
                return False
            await anyio.sleep(_POLL_SEC)
        await self.stop()
        self.log = await self.output()
        await self.sandbox.exec(f"rm -rf {LOGS}/{_NAME}; rmdir {LOGS}", user="root", cwd="/", timeout=30)
        return True

    async def _handed_over(self, limit: float) -> bool:
        """Whether it started its command, or ended, in that time."""
        deadline = anyio.current_time() + limit
        pause = _POLL_SEC
        while True:
            ended = (await self.ended()).get(_NAME)
            if ended:
                raise await self.failed(_NAME, ended)
            if ended == 0 or any(process.words in _IDLE for process in (await self._table()).values()):
                return True
            if anyio.current_time() > deadline:
                return False
            await anyio.sleep(pause)
            pause = min(pause * 1.5, _POLL_MOST_SEC)

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        max_output: int = 8 << 20,
    ) -> ExecResult:
        """A healthcheck's command in the sandbox; if it fails, the reason may be that the entry point has."""
        result = await self.sandbox.exec(command, user=user, env=env, timeout=timeout, max_output=max_output)
        if not result.ok:
            await self.check()
        return result

    async def output(self) -> bytes:
        """What it printed so far."""
        if self.log:
            return self.log
        read = await self.sandbox.exec(
            f"cat {LOGS}/{_NAME}/log", user="root", cwd="/", timeout=30, max_output=_LARGEST_LOG
        )
        return read.stdout

    async def check(self) -> None:
        """An entry point may end, if only without an error."""
        if code := (await self.ended()).get(_NAME):
            raise await self.failed(_NAME, code)

    async def failed(self, name: str, code: int) -> EnvironmentFailure:
        how = "was killed" if code < 0 else f"exited with code {code}"
        words = " ".join(self.plan.services[0].command)
        message = f"The entry point of the image {how}: `{words}`.{await self.last_lines(name)}"
        return EnvironmentFailure(message, code="entrypoint-failed", path="environment")

    async def _table(self) -> dict[int, Process]:
        """All processes but the first one and those of this question."""
        asked = await self.sandbox.exec(["/bin/sh", "-c", _PROCESSES], user="root", cwd="/", timeout=30)
        if not asked.ok:
            raise SandboxFailure("The sandbox does not report which processes are running.", code="services-unknown")
        return read_processes(asked.stdout.decode(errors="replace").splitlines())


def read_processes(lines: list[str]) -> dict[int, Process]:
    """What `_PROCESSES` printed, without the first process and without the one that printed it, its own and its
    parents. Pure."""
    found: dict[int, Process] = {}
    for line in lines[1:]:
        pid, parent, state, words = (*line.split(" ", 3), "")[:4]
        found[int(pid)] = Process(int(parent), state, tuple(words.removesuffix("\x1f").split("\x1f")))
    asking = int(lines[0])
    own = {pid for pid in found if asking in _line(pid, found)} | set(_line(asking, found))
    own |= {pid for pid, process in found.items() if process.words[:2] == _PORTER}
    return {pid: process for pid, process in found.items() if pid != 1 and pid not in own and process.state != "Z"}


def _line(pid: int, table: dict[int, Process]) -> list[int]:
    """A process and its parents."""
    line = []
    while pid in table and pid not in line:
        line.append(pid)
        pid = table[pid].parent
    return line


def only_waits(table: dict[int, Process]) -> bool:
    """Whether every process does nothing, or only waits for one that does nothing. Pure."""
    waiting = {above for pid, process in table.items() if process.words in _IDLE for above in _line(pid, table)}
    return waiting >= set(table)


async def start_entrypoint(sandbox: Sandbox, image: Image | None) -> RunningEntrypoint | None:
    """Start the entry point of an image in a started sandbox; None if there is none or it has done its work."""
    if image is None or not image.entrypoint:
        return None
    running = RunningEntrypoint(sandbox, plan_entrypoint(image))
    await running.start()
    return None if await running.settle(wait=True) else running
