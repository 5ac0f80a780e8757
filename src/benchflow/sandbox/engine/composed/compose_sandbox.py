"""A package of several services: a main container and its neighbours, in one network namespace that none of them owns.

A container with nothing but the anchor holds the namespace, so network policies hold for all services alike and outlive
any restart. Services reach each other by name on the loopback address; two of them cannot use the same port.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from benchflow.errors import SandboxFailure, UnsupportedError, UsageError
from benchflow.sandbox.composed.composition import Part, ServiceComposition
from benchflow.sandbox.engine.box.in_container import InContainer
from benchflow.sandbox.engine.box.running_container import EngineContainer
from benchflow.sandbox.engine.change_listing import changed_since_start, describe
from benchflow.sandbox.engine.composed.compose_service import EngineService
from benchflow.sandbox.engine.container_sandbox import EngineSandbox
from benchflow.sandbox.engine.forwarded_services import services_of
from benchflow.sandbox.protocol import (
    Change,
    FailedService,
    Limits,
    Mount,
    NetworkPolicy,
    Revert,
    Sandbox,
    SandboxSpec,
    Snapshot,
)
from benchflow.task.config.task_config import MAIN_SERVICE

if TYPE_CHECKING:
    from benchflow.sandbox.engine.engine_backend import EngineBackend


class ComposeSandbox(InContainer):
    """All services of a compose file. Everything but `service` is about `main`, where agent and verifier work."""

    def __init__(
        self,
        backend: EngineBackend,
        spec: SandboxSpec,
        composition: ServiceComposition,
        *,
        main: EngineSandbox | None = None,
    ) -> None:
        """A prepared `main` is that of a fork or a snapshot."""
        self.id = f"benchcube-{secrets.token_hex(8)}"
        self.spec = spec
        self._backend = backend
        self._composition = composition
        self._parts = composition.parts
        self._names = composition.names
        holder = replace(spec, mounts=(), limits=Limits(), env={}, workdir="/", user="root")
        self._holder = EngineSandbox(backend, holder, purpose="service", hosts=self._names)
        self._main = main or EngineSandbox(backend, spec)
        self._services: dict[str, EngineService] = {}
        self._started = False

    @property
    def capabilities(self) -> frozenset[str]:
        return self._main.capabilities - {"snapshot"}

    @property
    def container(self) -> EngineContainer:
        return self._main.container

    def service(self, name: str) -> Sandbox:
        if name == MAIN_SERVICE:
            return self
        if name not in self._services:
            raise UsageError(f"Unknown service '{name}'; available: {', '.join([MAIN_SERVICE, *self._services])}.")
        return ServiceSandbox(self._services[name], self)

    async def start(self) -> None:
        if self._started:
            return
        self._started = True
        try:
            await self._holder.start()
            for part in self._parts:
                await self._start_service(part)
            for name, condition in self._composition.needed.items():
                await self._services[name].wait_for(condition)
            for name in self._services.keys() - self._composition.needed.keys():
                await self._services[name].wait_for("service_started")
            self._main.join(self._holder.id)
            await self._main.start()
            self._main.set_network_environment(self._holder.network_environment())
        except BaseException:
            with anyio.CancelScope(shield=True), contextlib.suppress(SandboxFailure):
                await self.stop()
            raise

    async def _start_service(self, part: Part) -> None:
        """Start a service once those it depends on are as far as it wants them."""
        for name, condition in part.service.depends_on.items():
            if name == MAIN_SERVICE:
                raise UnsupportedError(f"The service '{part.service.name}' depends on main, which starts last.")
            await self._services[name].wait_for(condition)
        started = EngineService(await self._backend.connect(), part, self._holder.id)
        self._services[part.service.name] = started
        await started.start(self._holder.network_environment())

    async def failed_services(self) -> tuple[FailedService, ...]:
        """Every service counts as reachable: an engine does not tell who listens."""
        reasons = {name: await service.why_down() for name, service in self._services.items()}
        return tuple(FailedService(name, reason, True) for name, reason in reasons.items() if reason is not None)

    async def changes(self) -> list[Change]:
        return await self._main.changes()

    async def changes_of(self, service: EngineService) -> list[Change]:
        """What a service changed since it was started."""
        host = await self._backend.connect()
        return await describe(host, service.container, await changed_since_start(host, service.container))

    async def kill_processes(self) -> None:
        """End the processes in main; the other services run until verification has ended."""
        await self._main.kill_processes()

    async def set_network(self, policy: NetworkPolicy) -> None:
        await self._holder.set_network(policy)
        environment = self._holder.network_environment()
        self._main.set_network_environment(environment)
        for service in self._services.values():
            service.set_network_environment(environment)

    async def dial(self, port: int) -> socket.socket:
        return await self._holder.dial(port)

    async def listen(self, port: int) -> socket.socket:
        return await self._holder.listen(port)

    async def fork(
        self, *, mounts: Sequence[Mount] = (), network: NetworkPolicy | None = None, revert: Revert | None = None
    ) -> Sandbox:
        """A copy of all services; each is restarted on a copy of its files."""
        main = await self._main.fork_unstarted(mounts=mounts, revert=revert)
        parts = []
        for part in self._parts:
            saved = await self._services[part.service.name].save()
            parts.append(replace(part, image=replace(part.image, reference=saved), own=True))
        spec = replace(main.spec, network=network or self._holder.current_policy())
        composition = replace(self._composition, parts=tuple(parts))
        forked = ComposeSandbox(self._backend, spec, composition, main=main)
        await forked.start()
        return forked

    async def fork_beside(
        self,
        *,
        mounts: Sequence[Mount] = (),
        network: NetworkPolicy | None = None,
        revert: Revert | None = None,
        closed: Sequence[str] = (),
    ) -> Sandbox:
        policy = network or self._holder.current_policy()
        host = await self._backend.connect()
        async with services_of(host, self._holder.id, self._main.id) as services:
            forked = await self._main.fork_unstarted(mounts=mounts, network=policy, revert=revert, hosts=self._names)
            return await forked.start_with(services, closed)

    async def fork_service_beside(
        self, service: EngineService, mounts: Sequence[Mount], network: NetworkPolicy | None, closed: Sequence[str]
    ) -> Sandbox:
        """A copy of one service's files, without its processes, beside all that keeps running."""
        host = await self._backend.connect()
        async with services_of(host, self._holder.id, service.id) as services:
            image = await service.save()
            self._backend.notes.write(image, (await changed_since_start(host, service.container)).kinds)
            policy = network or self._holder.current_policy()
            spec = replace(service.spec, user="root", mounts=tuple(mounts), network=policy)
            origin = Snapshot(self._backend.name, image, spec.image)
            forked = EngineSandbox(self._backend, spec, origin=origin, own_image=image, hosts=self._names)
            return await forked.start_with(services, closed)

    async def snapshot(self) -> Snapshot:
        raise UnsupportedError("Several services cannot have a common snapshot; fork them instead.", path="snapshot")

    async def stop(self) -> None:
        if not self._started:
            return
        self._started = False
        with anyio.CancelScope(shield=True):
            await self._main.stop()
            for part in reversed(self._parts):
                service = self._services.pop(part.service.name, None)
                if service is not None:
                    await service.stop()
            await self._holder.stop()
            host = await self._backend.connect()
            for part in self._parts:
                if part.own:
                    await host.remove_image(part.image.reference)


class ServiceSandbox(InContainer):
    """One running service. It is not stopped or given a network apart from the others, and forked only beside them."""

    def __init__(self, service: EngineService, whole: ComposeSandbox) -> None:
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
        return await self._whole.changes_of(self._service)

    async def kill_processes(self) -> None:
        raise UnsupportedError("A service ends with its composition.", code="service-unsupported")

    async def set_network(self, policy: NetworkPolicy) -> None:
        del policy
        raise UnsupportedError("All services share one network.", code="service-unsupported")

    async def dial(self, port: int) -> socket.socket:
        return await self._whole.dial(port)

    async def listen(self, port: int) -> socket.socket:
        return await self._whole.listen(port)

    async def fork(
        self, *, mounts: Sequence[Mount] = (), network: NetworkPolicy | None = None, revert: Revert | None = None
    ) -> Sandbox:
        del mounts, network, revert
        raise UnsupportedError("A service is forked with its composition.", code="service-unsupported")

    async def fork_beside(
        self,
        *,
        mounts: Sequence[Mount] = (),
        network: NetworkPolicy | None = None,
        revert: Revert | None = None,
        closed: Sequence[str] = (),
    ) -> Sandbox:
        if revert is not None:
            raise UnsupportedError("Files of a service cannot be reverted.", code="service-unsupported")
        return await self._whole.fork_service_beside(self._service, mounts, network, closed)

    async def snapshot(self) -> Snapshot:
        raise UnsupportedError("A single service cannot have a snapshot.", code="service-unsupported")

    async def stop(self) -> None:
        """It ends with the composition."""
