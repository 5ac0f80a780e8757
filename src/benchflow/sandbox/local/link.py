"""The driver's ends of the helper processes: `Launcher` for the zygote, `Link` for the supervisor of one sandbox, and
`Uplink` for the network that the driver serves inside.

The zygote is started when first needed, and asked from any thread or event loop. Every request has its own reply
socket; nothing is shared but the sending end, so callers need no lock.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from benchflow.errors import InfrastructureFailure, SandboxFailure
from benchflow.sandbox.granted_ids import grant_range
from benchflow.sandbox.local.cgroups import Groups
from benchflow.sandbox.local.inside import messages
from benchflow.sandbox.local.inside.messages import Identity, Plan
from benchflow.sandbox.local.layers.sandbox_store import Owner
from benchflow.sandbox.protocol import FailedRequest, NetworkPolicy

if TYPE_CHECKING:
    from benchflow.sandbox.inside.egress_gateway import EgressPlan
    from benchflow.sandbox.network.egress import Egress

_BOOT: Final = (
    "import sys; sys.path.append(sys.argv.pop()); from benchflow.sandbox.local.beside.zygote import main; main()"
)
_PACKAGES: Final = str(Path(__file__).parents[3])
_END_SEC: Final = 60.0
HELPER_GONE: Final = "The helper process of the local sandbox is gone."
_GONE: Final = "The sandbox is not running."


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
        """Works on files, so that the zygote is free to start sandboxes."""
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
            raise SandboxFailure(HELPER_GONE, code="helper-gone") from error
        finally:
            theirs.close()
        mine.setblocking(False)
        return mine

    async def task(self, message: messages.Message) -> messages.Message:
        """Run a task and return its answer."""
        return await self.answer(self.request(message))

    async def answer(self, reply: socket.socket) -> messages.Message:
        """The answer to a request for one task."""
        with reply:
            answer, _ = await next_message(reply)
        return expect(answer, HELPER_GONE)

    def post(self, message: messages.Message) -> None:
        """Run a task without waiting for it; what it does not finish is removed with the zygote."""
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
        if self._process.poll() is None:
            ended = os.pidfd_open(self._process.pid)  # `wait` with a limit would look every 50 ms
            if not _has_ended(ended, _END_SEC):
                self._process.kill()
            os.close(ended)
            self._process.wait()


async def next_message(reply: socket.socket) -> tuple[messages.Message | None, list[int]]:
    """The next answer on a reply socket, without blocking the loop."""
    await anyio.wait_readable(reply)
    try:
        return messages.receive(reply)
    except ConnectionResetError:
        return None, []


def expect(answer: dict[str, Any] | None, gone: str) -> messages.Message:
    """The answer; raises the error it carries."""
    if answer is None:
        raise SandboxFailure(gone, code="sandbox-gone")
    if "error" in answer:
        raise SandboxFailure(answer["error"], code=answer.get("kind") or "sandbox-failed")
    return answer


class Link:
    """A running sandbox."""

    def __init__(self, control: socket.socket, process: int, groups: Groups) -> None:
        self.groups = groups
        """The control groups that commands run in."""
        self._control = control
        self._process = process
        """A descriptor of the supervisor's process."""

    @classmethod
    async def open(
        cls,
        launcher: Launcher,
        plan: Plan,
        groups: Groups,
        network: int | None = None,
    ) -> Link:
        """Bring a sandbox up; after an error nothing of it runs. `network` is the network namespace it shall be in,
        instead of one of its own."""
        control, theirs = messages.channel()
        process = -1
        try:
            planned = plan._replace(joins=network is not None).to_dict()
            joined = (network,) if network is not None else ()
            reply = launcher.request({"op": "launch", "plan": planned}, (theirs.fileno(), *groups.members, *joined))
            theirs.close()
            with reply:
                _, fds = await cls._answer(reply)
                process = fds[0]
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


class Uplink:
    """What a network policy needs while the sandbox runs. What serves a network is loaded when there is one."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self.policy = policy
        self._plan: EgressPlan | None = None
        self._egress: Egress | None = None
        if policy.mode != "none":
            from benchflow.sandbox.network.egress_plan import plan_egress

            self._plan = plan_egress(policy)

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for every command."""
        return (self._plan.environment if self._plan is not None else None) or {}

    @property
    def resolv_conf(self) -> str:
        return self._plan.resolv_conf if self._plan is not None else ""

    def unreached(self, *, numeric: bool = False) -> tuple[FailedRequest, ...]:
        """What was asked for and not reached; `numeric` adds addresses without a name and leaves out what is silent."""
        if self._egress is None:
            return ()
        from benchflow.sandbox.network.attempt_log import unreached

        return unreached(self._egress.attempts, () if numeric else self._egress.silent, numeric=numeric)

    async def open(self, link: Link) -> None:
        """Apply the policy inside; the sandbox has no other network."""
        plan = self._plan
        asked = plan.message() if plan is not None else {"listeners": [], "routes": []}
        _, fds = await link.call({"op": "network", **asked, "resolv_conf": self.resolv_conf})
        if plan is None:
            return
        from benchflow.sandbox.network.addresses import permitted_networks
        from benchflow.sandbox.network.egress import Egress

        sockets = [socket.socket(fileno=fd) for fd in fds]
        self._egress = Egress(self.policy, permitted=permitted_networks())
        await self._egress.start(zip([item.role for item in plan.listeners], sockets, strict=True))

    async def close(self) -> None:
        """End every connection; idempotent."""
        egress, self._egress = self._egress, None
        if egress is not None:
            await egress.stop()


def _has_ended(process: int, seconds: float) -> bool:
    """Whether the process of a descriptor ends within a time."""
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    return bool(waiting.poll(1000 * seconds))


def _end(process: int) -> None:
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        _has_ended(process, 10)
    except ProcessLookupError:
        pass
    finally:
        os.close(process)
