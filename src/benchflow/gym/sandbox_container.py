"""A sandbox as a container of the gym layer: the same box, driven by blocking calls.

One thread with an event loop serves all of them, so that proxies and forwarded ports keep working between calls.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any, ClassVar, Literal

import anyio
from anyio.abc import SocketStream, TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from benchflow.errors import BenchflowError
from benchflow.sandbox.backends import load_backend
from benchflow.sandbox.protocol import Limits, NetworkPolicy, Sandbox, SandboxBackend, SandboxSpec
from cube.container import (
    Container,
    ContainerBackend,
    ContainerConfig,
    ContainerError,
    ContainerExecError,
    ContainerLaunchError,
    ContainerStatus,
    ExecResult,
)

_TIMED_OUT = 124
_HOST_IMAGES = ("", "host")


class _Loop:
    """The event loop that blocking callers share; started when first needed, ended with the interpreter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while the loop is started."""
        self._manager: AbstractContextManager[BlockingPortal] | None = None
        self._portal: BlockingPortal | None = None
        self._of_parent: AbstractContextManager[BlockingPortal] | None = None

    def portal(self) -> BlockingPortal:
        with self._lock:
            if self._portal is None:
                self._manager = start_blocking_portal("asyncio")
                self._portal = self._manager.__enter__()
                atexit.register(self.close)
            return self._portal

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.portal().call(function, *arguments)

    def close(self) -> None:
        """End the thread; what is needed later starts another one."""
        with self._lock:
            manager, self._manager, portal, self._portal = self._manager, None, self._portal, None
        if manager is not None and portal is not None:
            portal.call(portal.stop, True)  # forwarded ports of containers that nobody closed would be waited for
            manager.__exit__(None, None, None)

    def forget(self) -> None:
        """In a process that was forked: the thread stayed in the parent."""
        self._of_parent = self._manager or self._of_parent  # kept: when it is collected, it would wait for that thread
        self._lock, self._manager, self._portal = threading.Lock(), None, None


LOOP = _Loop()
os.register_at_fork(after_in_child=LOOP.forget)


class SandboxContainer(Container):
    """A started sandbox behind the contract of the gym layer."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(run_id=sandbox.id)
        self.sandbox = sandbox
        self._stopped = False
        self._stopping = threading.Lock()
        """Held while it is stopped: a second caller returns when it has ended."""
        self._forwarded: dict[int, tuple[int, Any]] = {}

    @property
    def id(self) -> str:
        return self.sandbox.id

    def exec(
        self,
        command: str,
        timeout: float | None = None,
        workdir: str | None = None,
        env: dict[str, str] | None = None,
    ) -> ExecResult:
        async def run() -> ExecResult:
            result = await self.sandbox.exec(command, timeout=timeout, cwd=workdir, env=env)
            return ExecResult(
                stdout=result.stdout.decode(errors="replace"),
                stderr=result.stderr.decode(errors="replace"),
                exit_code=_TIMED_OUT if result.timed_out else result.exit_code,
                duration_seconds=result.duration_sec,
            )

        try:
            done: ExecResult = LOOP.run(run)
        except BenchflowError as error:
            raise ContainerExecError(str(error)) from error
        return done

    def forward_port(self, port: int, host_port: int = 0) -> int:
        """A port of this machine that is forwarded to `port` inside: a free one, unless one is given."""
        if port not in self._forwarded:
            future, number = LOOP.portal().start_task(self._serve, port, host_port)
            self._forwarded[port] = (int(str(number)), future)
        return self._forwarded[port][0]

    async def _serve(self, port: int, host_port: int, *, task_status: TaskStatus[int]) -> None:
        """Forward a port of this machine's loopback to the port inside."""
        with socket.create_server(("127.0.0.1", host_port)) as listener:
            listener.setblocking(False)
            task_status.started(listener.getsockname()[1])
            clients: set[socket.socket] = set()
            try:
                async with anyio.create_task_group() as group:
                    while True:
                        await anyio.wait_readable(listener)  # nothing is accepted that a cancelled call could lose
                        with suppress(BlockingIOError, ConnectionError):
                            client, _ = listener.accept()
                            clients.add(client)
                            group.start_soon(self._bridge, client, port, clients)
            finally:
                for client in clients:
                    client.close()

    async def _bridge(self, client: socket.socket, port: int, clients: set[socket.socket]) -> None:
        try:
            with anyio.CancelScope(shield=True):
                outside = await SocketStream.from_socket(client)
            clients.discard(client)
            async with outside, self._inside(port) as inside, anyio.create_task_group() as group:
                group.start_soon(_pump, outside, inside)
                group.start_soon(_pump, inside, outside)
        except* (OSError, BenchflowError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # one side is closed: close the other

    @asynccontextmanager
    async def _inside(self, port: int) -> AsyncIterator[SocketStream]:
        async with await SocketStream.from_socket(await self.sandbox.dial(port)) as stream:
            yield stream

    def get_url(self, port: int) -> str:
        return f"http://127.0.0.1:{self.forward_port(port)}"

    def get_status(self) -> ContainerStatus:
        if self._stopped:
            return ContainerStatus()
        try:
            healthy = self.exec("true", timeout=30).exit_code == 0
        except ContainerError:
            return ContainerStatus()
        return ContainerStatus(running=True, healthy=healthy, backend_info={"id": self.id})

    def stop(self, timeout: float = 10) -> None:
        del timeout  # a sandbox ends at once
        with self._stopping:
            if self._stopped:
                return
            self._stopped = True
            for _, future in self._forwarded.values():
                future.cancel()
            self._forwarded.clear()
            LOOP.run(self.sandbox.stop)


async def _pump(source: SocketStream, target: SocketStream) -> None:
    async for chunk in source:
        await target.send(chunk)
    await target.send_eof()


class SandboxContainerBackend(ContainerBackend):
    """Launches sandboxes of one backend; `network` is the policy they start with."""

    sandbox: str = "local"
    network: Literal["none", "public"] = "none"
    _backends: ClassVar[dict[str, SandboxBackend]] = {}

    def launch(self, config: ContainerConfig) -> Container:
        async def start() -> Sandbox:
            backend = self._backend()
            image = None if config.image in _HOST_IMAGES else await backend.resolve(config.image)
            limits = Limits(
                cpus=config.cpu_cores,
                memory_mb=int(config.ram_gb * 1024),
                storage_mb=int(config.disk_gb * 1024),
                gpus=1 if config.gpu else None,
            )
            sandbox = backend.create(SandboxSpec(image=image, limits=limits, network=NetworkPolicy(self.network)))
            await sandbox.start()
            return sandbox

        try:
            container = SandboxContainer(LOOP.run(start))
        except BenchflowError as error:
            raise ContainerLaunchError(str(error)) from error
        for port in config.ports or ():
            container.forward_port(port)
        self._run_health_check(container)
        return container

    def _backend(self) -> SandboxBackend:
        with _CREATING:
            if self.sandbox not in self._backends:
                try:
                    self._backends[self.sandbox] = load_backend(self.sandbox)
                except BenchflowError as error:
                    raise ContainerLaunchError(str(error)) from error
            return self._backends[self.sandbox]


_CREATING = threading.Lock()
"""Held while a backend is created."""


def _forget() -> None:
    """In a process that was forked: the backends are the parent's."""
    global _CREATING  # noqa: PLW0603  # another thread of the parent may have held it
    _CREATING = threading.Lock()
    SandboxContainerBackend._backends = {}


os.register_at_fork(after_in_child=_forget)
