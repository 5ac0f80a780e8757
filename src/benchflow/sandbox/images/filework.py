"""Work on the files of layers, done as their owner.

Root and single-user stores need nothing: the work runs in a thread. Where an ordinary user was granted a range of user
ids, layers hold files of many owners that only a process inside a user namespace with that range may make, read and
remove: there the work runs in such a process.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

import anyio.to_thread

from benchflow.errors import InfrastructureFailure
from benchflow.sandbox.granted_ids import grant_range, granted_range
from benchflow.sandbox.inside import syscalls

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

_BOOT: Final = (
    "import sys; sys.path[:0] = sys.argv.pop().split(':'); from benchflow.sandbox.images.filework import main; main()"
)


@dataclass(frozen=True, slots=True)
class FileWork:
    """How the files of a store are worked on."""

    mapped: bool = False
    """Whether its layers hold the user ids of a granted range."""

    async def run(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Call `function`, which in a mapped store must be picklable, with root's powers over the store's files."""
        if self.mapped and os.geteuid() != 0:
            return await anyio.to_thread.run_sync(partial(_in_namespace, function, *arguments))
        return await anyio.to_thread.run_sync(function, *arguments)

    async def look(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Call `function`, which only reads and ignores owners; as `run` where that needs more permissions."""
        try:
            return await anyio.to_thread.run_sync(function, *arguments)
        except PermissionError:
            if not self.mapped:
                raise
        return await self.run(function, *arguments)


def own_file_work() -> FileWork:
    """What this user's stores need: a range is used wherever it is granted."""
    if os.geteuid() == 0 or not shutil.which("newuidmap") or not shutil.which("newgidmap"):
        return FileWork()
    ranges = [granted_range(path) for path in ("/etc/subuid", "/etc/subgid")]
    return FileWork(mapped=None not in ranges)


def _in_namespace(function: Callable[..., Result], *arguments: Any) -> Result:
    modules = ":".join([str(Path(__file__).parents[3]), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", _BOOT, modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise InfrastructureFailure("A helper process has no pipes.")
        try:
            if process.stdout.read(1) != b"u":
                raise InfrastructureFailure("A process with a range of user ids could not be started.")
            grant_range(process.pid)
            answer, _ = process.communicate(pickle.dumps((function, arguments)))
        except BaseException:
            process.kill()
            raise
    if not answer:
        raise InfrastructureFailure("A process with a range of user ids ended early.")
    worked, result = pickle.loads(answer)  # noqa: S301 (written by this module's own code in the child)
    if not worked:
        raise result
    answer_value: Result = result
    return answer_value


def main() -> None:
    """The child: enter a user namespace, wait for its ids, do the work, answer."""
    output = os.dup(1)
    os.dup2(2, 1)
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    os.write(output, b"u")
    request = sys.stdin.buffer.read()
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.setgroups([])
    function, arguments = pickle.loads(request)  # noqa: S301 (written by the parent, which is this program)
    try:
        answer = (True, function(*arguments))
    except Exception as error:  # noqa: BLE001 (boundary: every error is the parent's to raise)
        answer = (False, error)
    with os.fdopen(output, "wb") as stream:
        stream.write(pickle.dumps(answer))
