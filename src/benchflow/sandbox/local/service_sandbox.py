"""One service beside `main`: a sandbox of its own, in the network namespace of all, that runs the service's program."""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.errors import EnvironmentFailure, UnsupportedError
from benchflow.sandbox.composed.composition import Part
from benchflow.sandbox.healthcheck import wait_healthy
from benchflow.sandbox.local.commands import LocalProcess
from benchflow.sandbox.local.layers.layer_stack import Layer
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.machine_settings.allowance import phase_settings
from benchflow.sandbox.protocol import Mount, SandboxSpec

if TYPE_CHECKING:
    from benchflow.sandbox.local.local_backend import LocalBackend

_KEPT: Final = 1 << 14
_LAST_LINES: Final = 15
_POLL_SEC: Final = 0.1
_GLANCE_SEC: Final = 0.02
_RETRIES_SEC: Final = (0.2, 1.0, 0.0)
"""The pauses after failed health checks of a service that was healthy: one of them may just be slow."""


class ServiceSandbox(LocalSandbox):
    """The files and processes of one service; it ends with its composition."""

    def __init__(
        self,
        backend: LocalBackend,
        part: Part,
        *,
        network: LocalSandbox,
        names: tuple[str, ...],
        layers: tuple[Layer, ...] = (),
    ) -> None:
        service, image = part.service, part.image
        given = phase_settings("agent", network.spec.network.mode)
        fixed = tuple(Mount(bind.source, bind.target) for bind in service.binds if bind.read_only)
        spec = SandboxSpec(
            image=image,
            limits=service.limits,
            env={**given.env, **service.env},
            mounts=(*fixed, *given.mounts),
            workdir=service.workdir or image.workdir or "/",
            user=service.user or image.user or "root",
            hostname=service.name,
            labels=service.labels,
        )
        super().__init__(backend, spec, layers=layers, prepared=False, network_of=network, names=names)
        self.part: Final = part
        self._copied = () if layers else tuple(bind for bind in service.binds if not bind.read_only)
        """What is not in its layers yet."""
        self._was_healthy = False
        self._program: LocalProcess | None = None
        self._output = Tail()
        self._code: int | None = None

    async def run(self) -> None:
        """Start the service's program, with its own copies of files of the package that it may write to."""
        for bind in self._copied:
            cleared = await self.exec(["rm", "-rf", "--", bind.target], user="root", cwd="/", timeout=60)
            if not cleared.ok:
                raise self._failed(f"cannot replace {bind.target}: {cleared.stderr.decode(errors='replace')}")
            await self.upload(bind.source, bind.target, owner="root")
        self._program = await LocalProcess.start(self.link, self.part.command, env=self.network_environment)
        await self._program.close_stdin()
        self._output.follow(self._program.take_output())

    async def wait_for(self, condition: str) -> None:
        """Return once the service has reached what others wait for; one that ends before is an error."""
        check = self.part.service.healthcheck or self.part.image.healthcheck
        if condition == "service_completed_successfully":
            code = await self._program.wait() if self._program is not None else None
            if code != 0:
                raise self._failed(f"exited with code {code}")
        elif condition == "service_healthy" and check is not None:
            try:
                await wait_healthy(self, check)
            except EnvironmentFailure as error:
                raise self._failed(f"is not ready. {error}") from error
            self._was_healthy = True
        elif (code := await self._exit_code(_POLL_SEC)) not in (None, 0):
            raise self._failed(f"exited with code {code}")

    async def why_down(self) -> str | None:
        """Why a service that was up is not any more. One that ended without an error has done its work, unless others
        waited for it to be healthy."""
        code = await self._exit_code(_GLANCE_SEC)
        if code is not None and (code or self._was_healthy):
            return str(self._failed(f"exited with code {code}"))
        check = self.part.service.healthcheck or self.part.image.healthcheck
        if code is not None or check is None or not self._was_healthy:
            return None
        for pause in _RETRIES_SEC:
            if (await self.exec(check.command, timeout=check.timeout_sec, max_output=1 << 16)).ok:
                return None
            await anyio.sleep(pause)
        return str(self._failed("is no longer healthy"))

    async def _exit_code(self, limit: float) -> int | None:
        """None while it runs."""
        if self._code is None and self._program is not None:
            with anyio.move_on_after(limit):
                self._code = await self._program.wait()
        return self._code

    def _failed(self, what: str) -> EnvironmentFailure:
        text = self._output.last_lines(_LAST_LINES)
        shown = f" Its last lines:\n{text}" if text else ""
        message = f"The service '{self.part.service.name}' {what.rstrip('.')}.{shown}"
        return EnvironmentFailure(message, code="service-failed")

    async def kill_processes(self) -> None:
        raise UnsupportedError("A service ends with its composition.", code="service-unsupported")

    async def _tear_down(self) -> None:
        program, self._program = self._program, None
        await super()._tear_down()
        if program is not None:
            program.close()


class Tail:
    """The end of what a program prints, read by a thread until the program and all it started have ended."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._lock = threading.Lock()

    def follow(self, streams: list[int]) -> None:
        """Read the descriptors, which belong to this object from now on."""
        threading.Thread(target=self._read, args=(streams,), daemon=True).start()

    def _read(self, streams: list[int]) -> None:
        poll = select.poll()
        for fd in streams:
            poll.register(fd, select.POLLIN)
        left = set(streams)
        while left:
            for fd, _ in poll.poll():
                chunk = os.read(fd, _KEPT)
                with self._lock:
                    self._data += chunk
                    del self._data[:-_KEPT]
                if not chunk:
                    poll.unregister(fd)
                    left.discard(fd)
                    os.close(fd)

    def last_lines(self, count: int) -> str:
        with self._lock:
            text = self._data.decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-count:])
