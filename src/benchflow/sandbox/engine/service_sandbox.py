"""A service of a composition as a sandbox: commands and files in its container, which lives as long as the whole."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchflow.errors import UnsupportedError
from benchflow.sandbox.engine.changes import parse_diff
from benchflow.sandbox.engine.container import EngineContainer
from benchflow.sandbox.engine.sandbox import describe
from benchflow.sandbox.engine.service import EngineService
from benchflow.sandbox.protocol import (
    Change,
    ExecResult,
    Mount,
    NetworkPolicy,
    OutputSink,
    Revert,
    Sandbox,
    SandboxProcess,
    Snapshot,
)


class ServiceSandbox(Sandbox):
    """One running service. It is not forked, stopped or given a network apart from the others."""

    def __init__(self, service: EngineService, whole: Sandbox) -> None:
        self.id = service.id
        self.spec = service.spec
        self._service = service
        self._whole = whole

    @property
    def _container(self) -> EngineContainer:
        return self._service.container

    @property
    def capabilities(self) -> frozenset[str]:
        return self._whole.capabilities - {"fork", "snapshot"}

    async def start(self) -> None:
        """The composition has started it."""

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: bytes | None = None,
        on_output: OutputSink | None = None,
        max_output: int = 8 << 20,
    ) -> ExecResult:
        return await self._container.exec(
            command,
            user=user,
            env=env,
            cwd=cwd,
            timeout=timeout,
            stdin=stdin,
            on_output=on_output,
            max_output=max_output,
        )

    async def process(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> SandboxProcess:
        return await self._container.process(command, user=user, env=env, cwd=cwd)

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        await self._container.upload(source, target, owner=owner)

    async def write_file(self, path: str, data: bytes, *, owner: str | None = None, mode: int = 0o644) -> None:
        await self._container.write_file(path, data, owner=owner, mode=mode)

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30, max_files: int = 100_000) -> None:
        await self._container.download(source, target, max_bytes=max_bytes, max_files=max_files)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        return await self._container.read_file(path, max_bytes=max_bytes)

    async def changes(self) -> list[Change]:
        return await describe(self._container, parse_diff(await self._container.diff()))

    async def kill_processes(self) -> None:
        raise UnsupportedError("A service is ended by what it belongs to.", code="service-unsupported")

    async def set_network(self, policy: NetworkPolicy) -> None:
        del policy
        raise UnsupportedError("The network of a service is that of all services.", code="service-unsupported")

    async def dial(self, port: int) -> socket.socket:
        return await self._whole.dial(port)

    async def fork(
        self, *, mounts: Sequence[Mount] = (), network: NetworkPolicy | None = None, revert: Revert | None = None
    ) -> Sandbox:
        del mounts, network, revert
        raise UnsupportedError("A service is forked with what it belongs to.", code="service-unsupported")

    async def snapshot(self) -> Snapshot:
        raise UnsupportedError("A service has no snapshot of its own.", code="service-unsupported")

    async def stop(self) -> None:
        """It ends with the composition."""
