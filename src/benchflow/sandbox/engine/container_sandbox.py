"""A sandbox that is a container. Files and commands go through `EngineContainer`, reach through `ContainerNetwork`."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.errors import SandboxFailure, UnsupportedError, UsageError
from benchflow.files.path_set import PathSet
from benchflow.sandbox.engine.box.container_arguments import Launch
from benchflow.sandbox.engine.box.in_container import InContainer
from benchflow.sandbox.engine.box.running_container import EngineContainer, absolute
from benchflow.sandbox.engine.change_listing import Listing, changed_since_start, describe
from benchflow.sandbox.engine.container_changes import lay_over, removable, without
from benchflow.sandbox.engine.container_network import ContainerNetwork
from benchflow.sandbox.engine.forwarded_services import ForwardedServices, services_of
from benchflow.sandbox.engine.machine.engine_facts import needed
from benchflow.sandbox.engine.machine.engine_host import EngineHost
from benchflow.sandbox.engine.namespace_sockets import dial_into, listen_in
from benchflow.sandbox.engine.user_layer import Home, make_workdir
from benchflow.sandbox.inside.accounts import is_root
from benchflow.sandbox.protocol import (
    Change,
    ChangeKind,
    FailedRequest,
    Mount,
    NetworkPolicy,
    Revert,
    Sandbox,
    SandboxSpec,
    Snapshot,
)

if TYPE_CHECKING:
    from benchflow.sandbox.engine.engine_backend import EngineBackend

_LARGEST_SAVED: Final = 32 << 30
"""Bytes, with holes, of the changed files in a fork or snapshot."""


class EngineSandbox(InContainer):
    """One container. `origin` is the state it begins with when that is not the image's own."""

    def __init__(
        self,
        backend: EngineBackend,
        spec: SandboxSpec,
        *,
        origin: Snapshot | None = None,
        own_image: str | None = None,
        purpose: str = "sandbox",
        home: Home | None = None,
        hosts: Sequence[str] = (),
        unwanted: Sequence[str] = (),
    ) -> None:
        """`own_image` is removed when the sandbox stops; `home` is known when it continues another sandbox; `hosts` are
        names that mean the sandbox itself; `unwanted` is removed before anything can run in it."""
        self.id = f"benchcube-{secrets.token_hex(8)}"
        self.spec = spec
        self._backend = backend
        self._origin = origin
        self._own_image = own_image
        self._network_of: str | None = None
        self._forwarding: ForwardedServices | None = None
        self._hosts = tuple(hosts)
        self._unwanted = tuple(unwanted)
        self._purpose = purpose
        self._home = home
        self._made: frozenset[str] = frozenset()
        self._host: EngineHost | None = None
        self._container: EngineContainer | None = None
        self._network: ContainerNetwork | None = None

    @property
    def capabilities(self) -> frozenset[str]:
        return self._running.facts.capabilities

    async def start(self) -> None:
        if self._host is not None:
            return
        _check_paths(self.spec)
        host = await self._backend.connect()
        refuse_what_is_missing(host, self.spec)
        self._host = host
        try:
            async with host.gate.slot():
                await self._start(host)
            await self._guard_mounts()
            if self._unwanted:
                await self.container.remove(self._unwanted)
        except BaseException:
            with anyio.CancelScope(shield=True), contextlib.suppress(SandboxFailure):
                await self.stop()
            raise

    async def _start(self, host: EngineHost) -> None:
        self._home = self._home or await self._find_home(host)
        self._network = ContainerNetwork(host, self.spec.network)
        shared = self._network_of is not None
        launch = Launch(
            image=self._image,
            name=self.id,
            network=f"container:{self._network_of}" if shared else self._network.argument(),
            purpose=self._purpose,
            limits=self.spec.limits,
            hostname=None if shared else self.spec.hostname,
            hosts=self._hosts,
            mounts=self.spec.mounts,
            labels=self.spec.labels,
        )
        arguments = host.run_arguments(launch)
        done = await host.client.run(*arguments)
        if done.exit_code != 0:
            raise host.client.refusal("run", done)
        self._container = EngineContainer(
            host.client,
            self.id,
            user=self._home.user if self._home is not None else "0:0",
            workdir=self.spec.workdir,
            env={**self.spec.env, **({} if shared else self._network.environment())},
            restart=self._restart,
        )
        if not shared:
            await self._network.begin(self._container)
        if self._home is None and self._origin is None:
            self._made = frozenset(await make_workdir(self._container, self.spec.workdir))

    async def _find_home(self, host: EngineHost) -> Home | None:
        """Who commands run as, in an image with a working folder of theirs; None for root, who needs none."""
        image = self.spec.image
        asked = self.spec.user or (image.user if image is not None else None)
        if image is None or is_root(asked):
            return None
        return await host.home(image.reference, asked, self.spec.workdir)

    async def _guard_mounts(self) -> None:
        """An agent may have planted a link where a mount goes; then the link is replaced and the start repeated."""
        targets = [mount.target for mount in self.spec.mounts]
        if not targets or self._origin is None:
            return
        found = await self.container.stat(targets)
        if all(record.type in "df" for record in found):
            return
        host = self._running
        await host.remove_container(self.id)
        mounts, self.spec = self.spec.mounts, replace(self.spec, mounts=())
        await self._start(host)
        for mount in mounts:
            folder = mount.source.is_dir()
            await self.container.replace_by_empty(mount.target, folder=folder)
        cleaned = await self._running.commit(self.id, "fork")
        self._backend.notes.write(cleaned, without(self._backend.notes.read(self._origin.reference), targets))
        await host.remove_container(self.id)
        old, self._own_image = self._own_image, cleaned
        self._origin = replace(self._origin, reference=cleaned)
        self.spec = replace(self.spec, mounts=mounts)
        await self._start(host)
        if old is not None:
            await host.remove_image(old)
            self._backend.notes.forget(old)

    async def changes(self) -> list[Change]:
        return await describe(self._running, self.container, await self._listing())

    async def _listing(self) -> Listing:
        """Everything that was changed since the environment was built."""
        mounted = [mount.target for mount in self.spec.mounts]
        own = await changed_since_start(self._running, self.container, mounted)
        for path in self._made:
            own.kinds.pop(path, None)
        if self._origin is None:
            return own
        before = self._backend.notes.read(self._origin.reference)
        return replace(own, kinds=without(lay_over(before, own.kinds), mounted))

    async def kill_processes(self) -> None:
        await self.container.kill_processes()

    async def failed_requests(self) -> tuple[FailedRequest, ...]:
        return self._network.failed_requests if self._network is not None else ()

    async def set_network(self, policy: NetworkPolicy) -> None:
        if self._network is None or self._network_of is not None:
            raise UsageError("The network of this sandbox belongs to another.")
        await self._network.switch(self.container, policy)
        self.set_network_environment(self._network.environment())

    async def dial(self, port: int) -> socket.socket:
        if not self._running.facts.may_enter:
            return await super().dial(port)
        return await dial_into(await self._running.first_process(self.id), port)

    async def listen(self, port: int) -> socket.socket:
        if not self._running.facts.may_enter:
            return await super().listen(port)
        return await listen_in(await self._running.first_process(self.id), port)

    async def fork(
        self, *, mounts: Sequence[Mount] = (), network: NetworkPolicy | None = None, revert: Revert | None = None
    ) -> Sandbox:
        forked = await self.fork_unstarted(mounts=mounts, network=network, revert=revert)
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
        async with services_of(self._running, self.id, self.id) as services:
            forked = await self.fork_unstarted(mounts=mounts, network=network, revert=revert)
            return await forked.start_with(services, closed)

    async def start_with(self, services: ForwardedServices, closed: Sequence[str]) -> EngineSandbox:
        """Start with the services of other containers forwarded to this one."""
        await self.start()
        try:
            await services.forward(self._running, self.id, closed)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise
        self._forwarding = services
        return self

    @property
    def not_forwarded(self) -> tuple[str, ...]:
        return self._forwarding.lost if self._forwarding is not None else ()

    async def fork_unstarted(
        self,
        *,
        mounts: Sequence[Mount] = (),
        network: NetworkPolicy | None = None,
        revert: Revert | None = None,
        hosts: Sequence[str] = (),
    ) -> EngineSandbox:
        """A copy that has yet to be started."""
        image, kinds, found = await self._save("fork")
        added = {mount.target for mount in mounts}
        kept = tuple(mount for mount in self.spec.mounts if mount.target not in added)
        unwanted: list[Change] = []
        if revert is not None:
            try:
                places = PathSet(revert(found))
                unwanted = [change for change in found if places.covers(change.path)]
                if not removable(unwanted, [mount.target for mount in (*kept, *mounts)]):
                    image = await self._reverted(image, kinds, unwanted)
                    unwanted = []
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._discard(image)
                raise
        return EngineSandbox(
            self._backend,
            replace(self.spec, mounts=(*kept, *mounts), network=network or self.current_policy()),
            origin=Snapshot(self._backend.name, image, self.spec.image),
            own_image=image,
            home=self._home,
            hosts=hosts,
            unwanted=[change.path for change in unwanted],
        )

    def join(self, container: str) -> None:
        """Share the network of a container instead of having one; before the start."""
        self._network_of = container

    def current_policy(self) -> NetworkPolicy:
        return self._network.policy if self._network is not None else self.spec.network

    def network_environment(self) -> Mapping[str, str]:
        """Variables that the current policy gives to every command."""
        return self._network.environment() if self._network is not None else {}

    def set_network_environment(self, environment: Mapping[str, str]) -> None:
        self.container.set_defaults(env={**self.spec.env, **environment})

    async def snapshot(self) -> Snapshot:
        return Snapshot(self._backend.name, (await self._save("snapshot"))[0], self.spec.image)

    async def _reverted(self, image: str, kinds: Mapping[str, ChangeKind], touched: Sequence[Change]) -> str:
        """The image with these paths as the environment was built, in place of the given one.

        It is made in a container of its own, without mounts: nothing of the verifier is in the way of files that come
        back, and the engine compares a fork with what it starts from.
        """
        spec = replace(self.spec, mounts=(), network=NetworkPolicy("none"))
        origin = Snapshot(self._backend.name, image, self.spec.image)
        async with EngineSandbox(self._backend, spec, origin=origin, own_image=image, home=self._home) as editing:
            await self._restore(editing.container, touched)
            cleaned = await editing._running.commit(editing.id, "fork")
        self._backend.notes.write(cleaned, without(kinds, [change.path for change in touched]))
        return cleaned

    async def _restore(self, box: EngineContainer, touched: Sequence[Change]) -> None:
        """Remove what was added, and restore what was changed or deleted from a pristine container."""
        await box.remove([change.path for change in touched])
        lost = [change.path for change in touched if change.kind != "added"]
        if not lost:
            return
        spec = replace(self.spec, mounts=(), network=NetworkPolicy("none"))
        async with EngineSandbox(self._backend, spec, home=self._home) as pristine:
            for path in lost:
                await box.copy_from(pristine.container, path)

    async def stop(self) -> None:
        host, self._host = self._host, None
        if host is None:
            return
        with anyio.CancelScope(shield=True):
            forwarding, self._forwarding = self._forwarding, None
            if forwarding is not None:
                await forwarding.close()
            if self._network is not None:
                await self._network.close()
            if self._container is not None:
                await self._container.close()
            async with host.gate.turn():
                await host.remove_container(self.id)
            if self._own_image is not None:
                await host.remove_image(self._own_image)
                self._backend.notes.forget(self._own_image)
        self._container = self._network = None

    async def _save(self, purpose: str) -> tuple[str, dict[str, ChangeKind], list[Change]]:
        """An image of the files as they are now, with a note of what was changed in it; nothing moves meanwhile."""
        async with self.container.stopped():
            listing = await self._listing()
            found = await describe(self._running, self.container, listing)
            _require_saveable(found)
            image = await self._running.commit(self.id, purpose)
        self._backend.notes.write(image, listing.kinds)
        return image, listing.kinds, found

    async def _discard(self, image: str) -> None:
        await self._running.remove_image(image)
        self._backend.notes.forget(image)

    async def _restart(self) -> None:
        """The last resort against processes that cannot be killed from inside."""
        host = self._running
        await host.client.ask("restart", "-t", "0", self.id)
        if self._network is not None and self._network_of is None:
            await self._network.again(self.container)

    @property
    def _image(self) -> str:
        if self._own_image is not None:
            return self._own_image
        if self._origin is not None:
            return self._origin.reference
        if self._home is not None:
            return self._home.image
        if self.spec.image is None:
            raise UnsupportedError(
                f"The sandbox '{self._backend.name}' needs an image or a Dockerfile; "
                "`local` runs on this machine's own userland.",
                code="no-image",
            )
        return self.spec.image.reference

    @property
    def _running(self) -> EngineHost:
        if self._host is None:
            raise SandboxFailure("The sandbox is not running.", code="sandbox-stopped")
        return self._host

    @property
    def container(self) -> EngineContainer:
        """The running container."""
        if self._container is None:
            raise SandboxFailure("The sandbox is not running.", code="sandbox-stopped")
        return self._container


def refuse_what_is_missing(host: EngineHost, spec: SandboxSpec) -> None:
    """Refuse a specification that the engine does not support."""
    for capability, words in needed(spec).items():
        if capability not in host.facts.capabilities:
            raise UnsupportedError(
                f"{host.client.dialect.name} on this machine does not support {words}; see `bench sandboxes`.",
                path=capability,
            )


def _check_paths(spec: SandboxSpec) -> None:
    absolute(spec.workdir)
    for mount in spec.mounts:
        absolute(mount.target)
        if not mount.source.exists():
            raise UsageError(f"The folder to mount at {mount.target}, '{mount.source}', does not exist.")


def _require_saveable(changes: Sequence[Change]) -> None:
    """Refuse files that would keep the engine busy for hours: it writes the holes of sparse files as well."""
    size = sum(change.size for change in changes)
    if size > _LARGEST_SAVED:
        message = f"The changed files are {size >> 30:,} GiB; an engine copies at most {_LARGEST_SAVED >> 30} GiB."
        raise SandboxFailure(message, code="too-large")
