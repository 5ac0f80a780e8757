"""A service of a composition as a sandbox: commands and files in its container, which lives as long as the whole."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from benchflow.errors import UnsupportedError
from benchflow.sandbox.engine.box.in_container import InContainer
from benchflow.sandbox.engine.box.running_container import EngineContainer
from benchflow.sandbox.engine.composed.compose_service import EngineService
from benchflow.sandbox.engine.container_changes import parse_diff
from benchflow.sandbox.engine.container_sandbox import describe
from benchflow.sandbox.protocol import (
    Change,
    Mount,
    NetworkPolicy,
    Revert,
    Sandbox,
    Snapshot,
)


class ServiceSandbox(InContainer):
    """One running service. It is not forked, stopped or given a network apart from the others."""

    def __init__(self, service: EngineService, whole: Sandbox) -> None:
        self.id = service.id
        self.spec = service.spec
        self._service = service
        self._whole = whole

    @property
    def container(self) -> EngineContainer:
        return self._service.container

    @property
    def capabilities(self) -> frozenset[str]:
        return self._whole.capabilities - {"fork", "snapshot"}

    async def start(self) -> None:
        """The composition has started it."""

    async def changes(self) -> list[Change]:
        return await describe(self.container, parse_diff(await self.container.diff()))

    async def kill_processes(self) -> None:
        raise UnsupportedError("A service ends with its composition.", code="service-unsupported")

    async def set_network(self, policy: NetworkPolicy) -> None:
        del policy
        raise UnsupportedError("All services share one network.", code="service-unsupported")

    async def dial(self, port: int) -> socket.socket:
        return await self._whole.dial(port)

    async def fork(
        self, *, mounts: Sequence[Mount] = (), network: NetworkPolicy | None = None, revert: Revert | None = None
    ) -> Sandbox:
        del mounts, network, revert
        raise UnsupportedError("A service is forked with its composition.", code="service-unsupported")

    async def snapshot(self) -> Snapshot:
        raise UnsupportedError("A single service cannot have a snapshot.", code="service-unsupported")

    async def stop(self) -> None:
        """It ends with the composition."""
