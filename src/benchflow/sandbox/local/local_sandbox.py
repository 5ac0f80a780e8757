"""One sandbox of the local backend: its files, its limits, its link to the supervisor inside, its network."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, Unpack

import anyio
import anyio.to_thread

from benchflow.errors import EnvironmentFailure, SandboxFailure, UnsupportedError
from benchflow.sandbox.inside.accounts import AGENT
from benchflow.sandbox.inside.offers import Offer
from benchflow.sandbox.local import cgroups
from benchflow.sandbox.local import local_transfer as transfer
from benchflow.sandbox.local.cgroups import Restraints, restrain
from benchflow.sandbox.local.commands import LocalProcess, run_command, task_group
from benchflow.sandbox.local.inside.messages import Attachment, Overlay, Plan
from benchflow.sandbox.local.layers.layer_stack import Files, Layer, release, share
from benchflow.sandbox.local.link import Link, Uplink
from benchflow.sandbox.protocol import (
    DEFAULT_PIDS,
    Change,
    ExecOptions,
    ExecResult,
    FailedRequest,
    Mount,
    NetworkPolicy,
    ProcessOptions,
    Revert,
    Rights,
    Sandbox,
    SandboxProcess,
    SandboxSpec,
    Snapshot,
)

if TYPE_CHECKING:
    from benchflow.sandbox.local.beside.difference import Record
    from benchflow.sandbox.local.local_backend import LocalBackend
    from benchflow.sandbox.network.forwarding import Dial, Forwarding

Options = TypeVar("Options", ExecOptions, ProcessOptions)
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LocalSandbox(Sandbox):
    """Created by `LocalBackend.create`; `start` starts it."""

    def __init__(
        self,
        backend: LocalBackend,
        spec: SandboxSpec,
        *,
        layers: tuple[Layer, ...] = (),
        upper: Path | None = None,
        prepared: bool = True,
        revert: Revert | None = None,
        tree: Path | None = None,
        network_of: LocalSandbox | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        """`layers` are on top of the environment and belong to this sandbox. `upper` is a folder of the caller's that
        takes what is written, as a layer. Without `prepared` the environment is used unchanged. `revert`
        chooses what of `layers` is hidden, and `tree` is laid over the rest. `network_of` is a running sandbox whose
        network this one is in too, with `names` for its loopback address.
        """
        self.id = secrets.token_hex(6)
        self.spec = spec
        self._backend = backend
        self._layers = layers
        self._upper = upper
        self._prepared = prepared
        self._revert = revert
        self._tree = tree
        self._files: Files | None = None
        self.groups = cgroups.Groups()
        self._restraints = Restraints()
        self._link: Link | None = None
        self._network_of = network_of
        self._names = names
        self._uplink = Uplink(spec.network)
        self._forwarding: Forwarding | None = None
        """What another sandbox offers in this one."""
        self._not_forwarded: tuple[str, ...] = ()
        self._switching = anyio.Lock()
        """Held while commands are started and while the layers below them are exchanged."""
        self._lent = False
        """Forked without a process inside, and not needed since: copies read the layer that it wrote."""
        self._transfers = 0
        """How many files and folders are on their way in."""
        self._asked = 0
        """The number of requests to the supervisor so far."""
        self._stilled = -1
        """That number when every process had just been ended; while both are equal, none can have started since."""
        self._processes: list[LocalProcess] = []
        """Processes whose streams may still be open."""

    @property
    def capabilities(self) -> frozenset[str]:
        return self._backend.capabilities

    @property
    def user(self) -> str:
        """The default user of commands."""
        return self.spec.user or (self.spec.image.user if self.spec.image else None) or AGENT

    async def start(self) -> None:
        if self._files is not None:
            raise SandboxFailure("The sandbox is already running.", code="already-started")
        self._check_mounts()
        runtime = await self._backend.runtime()
        environment = await self._backend.environment(self.spec, self.user, prepared=self._prepared)
        inherited = len(self._layers) if self._revert is not None else 0
        self._files = Files(
            runtime, environment, self.spec.limits, done=self._layers, inherited=inherited, tree=self._tree
        )
        self._layers = ()
        try:
            self._restrain(runtime.owner.name)
            await self._come_up(self._upper, self._revert)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise

    def _check_mounts(self) -> None:
        for mount in self.spec.mounts:
            if not mount.source.exists():
                raise EnvironmentFailure(
                    f"The folder to mount, '{mount.source}', does not exist.", code="mount-missing"
                )

    def _restrain(self, owner: str) -> None:
        """Apply the limits; they stay the same when the layers are exchanged."""
        machine = self._backend.machine
        limits = replace(self.spec.limits, pids=self.spec.limits.pids or DEFAULT_PIDS)
        self._restraints = restrain(limits, machine)
        self.groups = cgroups.make_groups(machine.hierarchies, owner, self.id, limits, self._restraints.cpus)

    async def _come_up(self, upper: Path | None = None, revert: Revert | None = None) -> None:
        files = self._open_files()
        unwanted: list[str] = []

        async def choose(choice: Revert) -> None:
            unwanted.extend(choice(_as_changes(await files.changes(finished=True))))

        async with task_group() as group:
            if revert is not None:
                group.start_soon(choose, revert)
            overlays = await files.open(self.id, upper)
        await files.revert(unwanted)
        joined = await self._network_of.namespace() if self._network_of is not None else None
        try:
            self._link = await Link.open(files.runtime.launcher, self._plan(overlays), self.groups, joined)
        finally:
            if joined is not None:
                os.close(joined)
        if self._network_of is not None:
            await self.renew_resolver()
        elif self._uplink.policy.mode != "none":
            await self._uplink.open(self._link)
        if self._revert is None:  # such a copy is short-lived and in a hurry
            files.prepare_next()

    def _plan(self, overlays: tuple[Overlay, ...]) -> Plan:
        image = self.spec.image
        mounts = self.spec.mounts
        return Plan(
            hostname=self.spec.hostname,
            identity=self._open_files().runtime.launcher.identity,
            overlays=overlays,
            attachments=tuple(
                Attachment(str(item.source.absolute()), item.target, item.source.is_dir()) for item in mounts
            ),
            environment={"PATH": _PATH, "LANG": "C.UTF-8", **(image.env if image else {}), **self.spec.env},
            workdir=self.spec.workdir,
            user=self.user,
            cpus=self._restraints.cpus,
            pin_cpus=self._restraints.pin_cpus,
            rlimits=dict(self._restraints.rlimits),
            memory_watch=self._restraints.memory_watch,
            shm_bytes=self._restraints.shm_bytes,
            names=self._names,
        )

    async def namespace(self) -> int:
        """A descriptor of the network namespace, for a sandbox that shall be in it too."""
        _, (fd,) = await self.link.call({"op": "namespace"})
        return fd

    async def renew_resolver(self) -> None:
        """Look up names as the sandbox does whose network this is."""
        if self._network_of is not None and self._link is not None:
            text = self._network_of._uplink.resolv_conf
            await self._link.call({"op": "resolver", "resolv_conf": text})

    def _open_files(self) -> Files:
        if self._files is None:
            raise SandboxFailure("The sandbox is not running.", code="sandbox-gone")
        return self._files

    @property
    def link(self) -> Link:
        """The running supervisor; an error when there is none."""
        if self._link is None:
            raise SandboxFailure("The sandbox is not running.", code="sandbox-gone")
        return self._link

    async def exec(self, command: str | Sequence[str], **options: Unpack[ExecOptions]) -> ExecResult:
        return await run_command(await self._quiet_link(), command, **self._connected(options))

    async def process(self, command: str | Sequence[str], **options: Unpack[ProcessOptions]) -> SandboxProcess:
        started = await LocalProcess.start(await self._quiet_link(), command, **self._connected(options))
        self._processes = [*(process for process in self._processes if not process.spent), started]
        return started

    def _connected(self, options: Options) -> Options:
        """The options with the variables that the network policy needs."""
        return {**options, "env": {**self.network_environment, **(options.get("env") or {})}}

    @property
    def network_environment(self) -> Mapping[str, str]:
        """The variables that the network policy needs."""
        return (self._network_of or self)._uplink.environment

    @property
    def policy(self) -> NetworkPolicy:
        """The network policy that holds now."""
        return (self._network_of or self)._uplink.policy

    async def _quiet_link(self) -> Link:
        """The link, as soon as no layers are being exchanged and the one that is written to is its own again."""
        async with self._switching:
            if self._lent:
                await self._take_back()
            self._asked += 1
            return self.link

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[Link]:
        link = await self._quiet_link()
        self._transfers += 1
        try:
            yield link
        finally:
            self._transfers -= 1

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        async with self._writing() as link:
            await transfer.upload(link, source, target, owner)

    async def write_file(self, path: str, data: bytes, *, owner: str | None = None, mode: int = 0o644) -> None:
        async with self._writing() as link:
            await transfer.write_file(link, path, data, owner, mode)

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        async with self._writing() as link:
            await transfer.write_files(link, files)

    async def lays(self, place: Path) -> bool:
        return _on_one_device(place, (await self._backend.runtime()).store.root)

    async def stand_in(self, place: str, program: bytes, kept: str) -> None:
        link = await self._quiet_link()
        await link.call({"op": "stand-in", "place": place, "program": program.decode("latin-1"), "kept": kept})

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30, max_files: int = 100_000) -> None:
        await transfer.download(await self._quiet_link(), source, target, max_bytes, max_files)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        return await transfer.read_file(await self._quiet_link(), path, max_bytes)

    async def changes(self) -> list[Change]:
        return _as_changes(await self._open_files().changes())

    async def kill_processes(self) -> None:
        if self._lent or (self._link is not None and self._stilled == self._asked):
            return
        link = await self._quiet_link()
        asked = self._asked
        await link.call({"op": "kill-all"})
        self._stilled = asked

    async def has_processes(self) -> bool:
        return not self._lent and await _processes_live(await self._quiet_link())

    async def limits_reached(self) -> tuple[str, ...]:
        return ("processes",) if self.groups.forks_refused() else ()

    async def failed_requests(self) -> tuple[FailedRequest, ...]:
        return (self._network_of or self)._uplink.unreached()

    def unreached_addresses(self) -> tuple[FailedRequest, ...]:
        """All that was asked for and not reached, addresses without a name too: for commands that only download."""
        return (self._network_of or self)._uplink.unreached(numeric=True)

    async def set_network(self, policy: NetworkPolicy) -> None:
        link = await self._quiet_link()
        uplink = Uplink(policy)
        await self._uplink.close()
        self._uplink = uplink
        await uplink.open(link)

    async def dial(self, port: int) -> socket.socket:
        return await transfer.dial(await self._quiet_link(), Offer("tcp", "127.0.0.1", port))

    async def listen(self, port: int) -> socket.socket:
        link = await self._quiet_link()
        for tried in (port, 0):
            opened, _ = await transfer.listen(link, [Offer("tcp", "127.0.0.1", tried)], (), yields=False)
            if opened:
                return opened[0][1]
        raise SandboxFailure("No port is free inside the sandbox.", code="no-port")

    async def fork(
        self,
        *,
        mounts: Sequence[Mount] = (),
        network: NetworkPolicy | None = None,
        revert: Revert | None = None,
        tree: Path | None = None,
    ) -> LocalSandbox:
        return await self._fork_files(mounts, network, revert, tree)

    async def _fork_files(
        self, mounts: Sequence[Mount], network: NetworkPolicy | None, revert: Revert | None, tree: Path | None
    ) -> LocalSandbox:
        """A copy with a network of its own."""
        spec = replace(self.spec, mounts=(*self.spec.mounts, *mounts), network=network or self.policy)
        layers = await self.copy_files()
        child = LocalSandbox(
            self._backend, spec, layers=layers, prepared=self._prepared, revert=revert, tree=tree, names=self._names
        )
        await child.start()
        return child

    async def copy_files(self) -> tuple[Layer, ...]:
        """Its files as they are now, for another sandbox to start from."""
        async with self._switching:
            return await self._freeze()

    async def _offers(self) -> tuple[list[Offer], list[str]]:
        """What processes here offer to others, and what of it cannot be forwarded."""
        return ([], []) if self._lent else await transfer.list_offers(await self._quiet_link())

    async def fork_beside(
        self,
        *,
        mounts: Sequence[Mount] = (),
        network: NetworkPolicy | None = None,
        revert: Revert | None = None,
        tree: Path | None = None,
        closed: Sequence[str] = (),
    ) -> LocalSandbox:
        offers, unusable = await self._offers()
        child = await self._fork_files(mounts, network, revert, tree)
        try:
            await child._receive(offers, unusable, closed, self._reach)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await child.stop()
            raise
        return child

    async def _receive(
        self, offers: Sequence[Offer], unusable: Sequence[str], closed: Sequence[str], dial: Dial
    ) -> None:
        """Have the offers of another box here, each reached by `dial`."""
        self._not_forwarded = tuple(unusable)
        if not offers:
            return
        from benchflow.sandbox.network.forwarding import Forwarding  # loaded when something is forwarded

        listeners, lost = await transfer.listen(self.link, offers, closed)
        self._not_forwarded += tuple(lost)

        async def listen(offer: Offer) -> socket.socket | None:
            opened, _ = await transfer.listen(self.link, [offer], closed)
            return opened[0][1] if opened else None

        self._forwarding = Forwarding(dial, listen)
        self._forwarding.start(listeners)

    async def _reach(self, offer: Offer) -> socket.socket:
        """Connect to an offer of what runs here; a layer that is lent stays so."""
        return await transfer.dial(self.link, offer)

    @property
    def not_forwarded(self) -> tuple[str, ...]:
        taken = self._forwarding.gave_way if self._forwarding is not None else ()
        return (*self._not_forwarded, *(f"{offer} (while a process here had bound it)" for offer in taken))

    async def snapshot(self) -> Snapshot:
        return self._backend.keep_snapshot(await self.copy_files(), self.spec)

    async def _freeze(self) -> tuple[Layer, ...]:
        """The current layers, for another sandbox to build on.

        Where no process is left inside, a small written layer is copied; a larger one is lent until someone needs this
        sandbox again (`_take_back`). Otherwise the processes are paused while the written layer is copied.
        """
        files = self._open_files()
        if self._tree is not None:
            raise UnsupportedError("A copy with a folder laid over its files cannot be copied itself.", path="fork")
        if self._lent:
            return share(files.done)
        link = self.link
        busy = self._transfers or (self._stilled != self._asked and await _processes_live(link))
        if files.kept or busy:
            return await self._copy_still(files, link)
        light = await files.copy_if_light(_copy_name())
        if light is not None:
            return light
        # Nothing writes to it until it is taken back, so that copies can have it below theirs although it is still
        # mounted here. A copy would cost as much as the agent has written, another mount as much as a new sandbox.
        files.finish_current()
        self._lent = True
        return share(files.done)

    async def _take_back(self) -> None:
        """Write again: to the layer that was lent if all copies are gone, otherwise to a new one on top of it."""
        self._lent = False
        if self._open_files().resume():
            return
        try:
            # An overlay cannot get another layer while it is mounted, so the supervisor ends with its mount.
            link, self._link = self.link, None
            await self._uplink.close()
            await link.close()
            await self._come_up()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._tear_down()
            raise

    async def _copy_still(self, files: Files, link: Link) -> tuple[Layer, ...]:
        await link.call({"op": "pause", "stop": True})
        try:
            return await files.copy_current(_copy_name())
        finally:
            with anyio.CancelScope(shield=True):
                await link.call({"op": "pause", "stop": False})

    async def stop(self) -> None:
        async with self._switching:
            await self._tear_down()

    async def _tear_down(self) -> None:
        self._lent = False
        link, self._link = self._link, None
        files, self._files = self._files, None
        groups, self.groups = self.groups, cgroups.Groups()
        forwarding, self._forwarding = self._forwarding, None
        if forwarding is not None:
            await forwarding.stop()
        await self._uplink.close()
        if link is not None:
            await link.close()
            if files is not None and self._revert is not None:
                files.prepare_next()
        for process in self._processes:
            process.close()
        self._processes = []
        groups.close()
        if groups.folders:
            await anyio.to_thread.run_sync(groups.remove)
        if files is not None:
            files.release()
        if self._layers:  # never started
            layers, self._layers = self._layers, ()
            release(await self._backend.runtime(), layers)


def _on_one_device(tree: Path, store: Path) -> bool:
    """Whether a folder is on the file system of the store, the only one that is known to show its owners shifted."""
    return tree.stat().st_dev == store.stat().st_dev


def _copy_name() -> str:
    return f"copy-{secrets.token_hex(6)}"


async def _processes_live(link: Link) -> bool:
    answer, _ = await link.call({"op": "survey"})
    return bool(answer["alive"])


def _as_changes(records: Iterable[Record]) -> list[Change]:
    return [
        Change(path, kind, type_, size, target or None, Rights(*rights))  # type: ignore[arg-type] # the task gives these words only
        for path, kind, type_, size, target, rights in records
    ]
