"""The driver's end of the zygote: started when first needed, asked from any thread or event loop.

Every request has its own reply socket; nothing is shared but the sending end, so callers need no lock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anyio

from benchflow.errors import InfrastructureFailure, SandboxFailure
from benchflow.sandbox.granted_ids import grant_range
from benchflow.sandbox.local.inside import messages
from benchflow.sandbox.local.inside.box_plan import Identity
from benchflow.sandbox.local.layers.sandbox_store import Owner

_BOOT: Final = (
    "import sys; sys.path.append(sys.argv.pop()); from benchflow.sandbox.local.beside.zygote import main; main()"
)
_PACKAGES: Final = str(Path(__file__).parents[3])


class Launcher:
    """A running zygote."""

    def __init__(self, store: Path, identity: Identity, owner: Owner, groups: Sequence[Path] = ()) -> None:
        """Start it and wait until its mounts stand; an `OSError` says what the machine refused.

        `groups` are the folders with control groups of the owner's sandboxes, which it removes at its end.
        """
        self.identity: Identity = identity
        self.closed = False
        self._lost = False
        self._worker: socket.socket | None = None
        """Does the file work, so that the zygote has time for sandboxes."""
        self._requests, theirs = messages.channel()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOT, str(theirs.fileno()), _PACKAGES],
            pass_fds=[theirs.fileno()],
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        driver = os.pidfd_open(os.getpid())
        folders = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in groups]
        try:
            messages.send(
                self._requests,
                {"identity": identity, "store": str(store), "part": owner.name},
                (driver, owner.lock, *folders),
            )
            self._await_ready()
        except BaseException:
            self.close()
            raise
        finally:
            for fd in (driver, *folders):
                os.close(fd)

    def _await_ready(self) -> None:
        message, fds = messages.receive(self._requests)
        if message and "map" in message:
            grant_range(message["map"])
            messages.send(self._requests, {})
            message, fds = messages.receive(self._requests)
        if message is None:
            raise InfrastructureFailure("The helper process of the local sandbox ended before it was ready.")
        if "error" in message:
            raise OSError(message["errno"], message["error"])
        self._worker = socket.socket(fileno=fds[0])

    def request(self, message: messages.Message, fds: Sequence[int] = ()) -> socket.socket:
        """Send a request; answers arrive at the socket that is returned."""
        mine, theirs = messages.channel()
        helper = self._worker if message["op"] != "launch" and self._worker else self._requests
        try:
            messages.send(helper, message, (theirs.fileno(), *fds))
        except OSError as error:
            mine.close()
            self._lost = True
            raise SandboxFailure("The helper process of the local sandbox is gone.", code="helper-gone") from error
        finally:
            theirs.close()
        mine.setblocking(False)
        return mine

    async def task(self, message: messages.Message) -> messages.Message:
        """Have a task done and give its answer."""
        reply = self.request(message)
        with reply:
            answer, _ = await next_message(reply)
        return expect(answer, "The helper process of the local sandbox is gone.")

    def post(self, message: messages.Message) -> None:
        """Have a task done without waiting for it; what it leaves undone goes with the zygote."""
        with contextlib.suppress(SandboxFailure):
            self.request(message).close()

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether the zygote or its worker has ended, for any reason."""
        return self.closed or self._lost or self._process.poll() is not None

    def close(self) -> None:
        """End it; idempotent. The sandboxes it started end too, and the driver's part of the store goes with them."""
        self.closed = True
        self._requests.close()
        if self._worker is not None:
            self._worker.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def next_message(reply: socket.socket) -> tuple[messages.Message | None, list[int]]:
    """The next answer on a reply socket, without blocking the loop."""
    await anyio.wait_readable(reply)
    try:
        return messages.receive(reply)
    except ConnectionResetError:
        return None, []


def expect(answer: dict[str, Any] | None, gone: str) -> messages.Message:
    """The answer, or the error it carries."""
    if answer is None:
        raise SandboxFailure(gone, code="sandbox-gone")
    if "error" in answer:
        raise SandboxFailure(answer["error"], code=answer.get("kind") or "sandbox-failed")
    return answer
