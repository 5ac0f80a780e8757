"""`main` and the services of a compose file: sandboxes of their own in one network namespace that none of them owns.

A sandbox in which nothing runs holds the namespace and its gateway, so network policies hold for all services alike.
Services reach each other by name on the loopback address; two of them cannot use the same port.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from benchflow.errors import UnsupportedError, UsageError
from benchflow.sandbox.composed.composition import ServiceComposition
from benchflow.sandbox.inside.offers import Offer
from benchflow.sandbox.local import local_transfer as transfer
from benchflow.sandbox.local.commands import task_group
from benchflow.sandbox.local.layers.layer_stack import Layer
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.local.service_sandbox import ServiceSandbox
from benchflow.sandbox.protocol import FailedService, Mount, NetworkPolicy, Revert, Sandbox, SandboxSpec, Snapshot
from benchflow.task.config.task_config import MAIN_SERVICE

if TYPE_CHECKING:
    from benchflow.sandbox.local.local_backend import LocalBackend


class ComposedSandbox(LocalSandbox):
    """The main service, in which agent and verifier work, with all others beside it."""

    def __init__(
        self,
        backend: LocalBackend,
        spec: SandboxSpec,
        composition: ServiceComposition,
        *,
        layers: tuple[Layer, ...] = (),
        revert: Revert | None = None,
        tree: Path | None = None,
        service_layers: Mapping[str, tuple[Layer, ...]] | None = None,
    ) -> None:
        """`service_layers` is what a fork takes over of each service."""
        names = tuple(composition.names)
        self._holder = LocalSandbox(backend, SandboxSpec(user="root", workdir="/", network=spec.network))
        super().__init__(backend, spec, layers=layers, revert=revert, tree=tree, network_of=self._holder, names=names)
        self._composition = composition
        self._listens = any(part.service.listens for part in composition.parts)
        """Whether a service could be reached from `main`."""
        kept = service_layers or {}
        self._services = {
            part.service.name: ServiceSandbox(
                backend, part, network=self._holder, names=names, layers=kept.get(part.service.name, ())
            )
            for part in composition.parts
        }

    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities - {"snapshot"}

    def service(self, name: str) -> Sandbox:
        if name == MAIN_SERVICE:
            return self
        if name not in self._services:
            raise UsageError(f"Unknown service '{name}'; available: {', '.join([MAIN_SERVICE, *self._services])}.")
        return self._services[name]

    async def start(self) -> None:
        try:
            await self._holder.start()
            for service in self._services.values():
                await self._start_service(service)
            for name, condition in self._composition.needed.items():
                await self._services[name].wait_for(condition)
            for name in self._services.keys() - self._composition.needed.keys():
                await self._services[name].wait_for("service_started")
            self._listens = self._listens or bool((await transfer.list_offers(self._holder.link))[0])
            await super().start()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise

    async def _start_service(self, service: ServiceSandbox) -> None:
        """Start a service once those it depends on are as far as it wants them."""
        for name, condition in service.part.service.depends_on.items():
            if name == MAIN_SERVICE:
                message = f"The service '{service.part.service.name}' depends on main, which starts last."
                raise UnsupportedError(message, path=f"services.{service.part.service.name}.depends_on")
            await self._services[name].wait_for(condition)
        await service.start()
        await service.run()

    async def failed_services(self) -> tuple[FailedService, ...]:
        found: dict[str, str] = {}

        async def look(name: str, service: ServiceSandbox) -> None:
            if (reason := await service.why_down()) is not None:
                found[name] = reason

        async with task_group() as group:
            for name, service in self._services.items():
                group.start_soon(look, name, service)
        if found and not self._listens:
            self._listens = bool((await self._offers())[0])
        # One that listens nowhere may take its work from one that does, so it is the same for all of them.
        return tuple(FailedService(name, found[name], self._listens) for name in sorted(found))

    async def set_network(self, policy: NetworkPolicy) -> None:
        await self._holder.set_network(policy)
        for sandbox in (self, *self._services.values()):
            await sandbox.renew_resolver()

    async def dial(self, port: int) -> socket.socket:
        return await self._holder.dial(port)

    async def listen(self, port: int) -> socket.socket:
        return await self._holder.listen(port)

    async def fork(
        self,
        *,
        mounts: Sequence[Mount] = (),
        network: NetworkPolicy | None = None,
        revert: Revert | None = None,
        tree: Path | None = None,
    ) -> ComposedSandbox:
        """A copy of all services; each is restarted on a copy of its files."""
        policy = network or self._holder.policy
        spec = replace(self.spec, mounts=(*self.spec.mounts, *mounts), network=policy)
        layers = await self.copy_files()
        kept = {name: await service.copy_files() for name, service in self._services.items()}
        child = ComposedSandbox(
            self._backend, spec, self._composition, layers=layers, revert=revert, tree=tree, service_layers=kept
        )
        await child.start()
        return child

    async def snapshot(self) -> Snapshot:
        raise UnsupportedError("Several services cannot have a common snapshot; fork them instead.", path="snapshot")

    async def _offers(self) -> tuple[list[Offer], list[str]]:
        """Of all services, also where nothing runs in `main`."""
        return await transfer.list_offers(self.link)

    async def _tear_down(self) -> None:
        try:
            await super()._tear_down()
        finally:
            async with task_group() as group:
                for service in self._services.values():
                    group.start_soon(service.stop)
            await self._holder.stop()
