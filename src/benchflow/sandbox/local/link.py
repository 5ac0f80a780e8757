"""The driver's end of one running sandbox: requests to its supervisor, each with its own reply socket."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Sequence

import anyio

from benchflow.errors import SandboxFailure
from benchflow.sandbox.local.cgroups import Groups
from benchflow.sandbox.local.inside import messages
from benchflow.sandbox.local.inside.box_plan import Plan
from benchflow.sandbox.local.launcher import Launcher, expect, next_message

_GONE = "The sandbox is not running."


class Link:
    """A sandbox that is up."""

    def __init__(self, control: socket.socket, process: int, groups: Groups) -> None:
        self.groups = groups
        """The control groups that commands run in."""
        self._control = control
        self._process = process
        """A descriptor of the supervisor's process."""

    @classmethod
    async def open(cls, launcher: Launcher, plan: Plan, groups: Groups, after: anyio.Event | None = None) -> Link:
        """Bring a sandbox up, with its layers mounted only `after` others have released them; after an error nothing
        of it runs."""
        control, theirs = messages.channel()
        process = -1
        try:
            planned = plan._replace(waits=after is not None).to_dict()
            reply = launcher.request({"op": "launch", "plan": planned}, (theirs.fileno(), *groups.members))
            theirs.close()
            with reply:
                _, fds = await cls._answer(reply)
                process = fds[0]
                if after is not None:
                    await after.wait()
                    with contextlib.suppress(OSError):  # it has ended, and the answer says why
                        messages.send(control, {})
                await cls._answer(reply)
        except BaseException:
            control.close()
            theirs.close()
            if process >= 0:
                _end(process)
            raise
        return cls(control, process, groups)

    @staticmethod
    async def _answer(reply: socket.socket) -> tuple[messages.Message, list[int]]:
        message, fds = await next_message(reply)
        return expect(message, "The sandbox ended while it was starting."), fds

    def request(self, message: messages.Message, fds: Sequence[int] = ()) -> socket.socket:
        """Send a request; answers arrive at the socket that is returned."""
        mine, theirs = messages.channel()
        try:
            messages.send(self._control, message, (theirs.fileno(), *fds))
        except OSError as error:
            mine.close()
            raise SandboxFailure(_GONE, code="sandbox-gone") from error
        finally:
            theirs.close()
        mine.setblocking(False)
        return mine

    async def call(self, message: messages.Message, fds: Sequence[int] = ()) -> tuple[messages.Message, list[int]]:
        """A request with one answer."""
        with self.request(message, fds) as reply:
            answer, received = await next_message(reply)
        return expect(answer, _GONE), received

    async def close(self) -> None:
        """End every process of the sandbox; returns when the last one is gone."""
        self._control.close()
        if self._process < 0:
            return
        process, self._process = self._process, -1
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            await anyio.wait_readable(process)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)


def _end(process: int) -> None:
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        waiting = select.poll()
        waiting.register(process, select.POLLIN)
        waiting.poll(10_000)
    except ProcessLookupError:
        pass
    finally:
        os.close(process)
