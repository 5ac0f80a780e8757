"""`LocalBackend`: sandboxes of this machine's kernel, for root and for ordinary users.

`probe` finds out by trying what they can do on this machine, and says how to get what they cannot.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import secrets
import shutil
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from benchflow.errors import BenchflowError, EnvironmentFailure, InfrastructureFailure, UsageError
from benchflow.files.atomic import write_atomic
from benchflow.files.user_store import default_store
from benchflow.sandbox.backends import LOCAL
from benchflow.sandbox.granted_ids import granted_range
from benchflow.sandbox.inside import syscalls
from benchflow.sandbox.local import cgroups
from benchflow.sandbox.local.beside import host_profile as hostprofile
from benchflow.sandbox.local.cgroups import Machine
from benchflow.sandbox.local.inside.messages import Identity, Message
from benchflow.sandbox.local.layers.layer_stack import Environment, Layer, Runtime, Spares, release, share
from benchflow.sandbox.local.layers.sandbox_store import Owner, Store
from benchflow.sandbox.local.link import Launcher
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.protocol import (
    CAPABILITIES,
    BackendStatus,
    Composition,
    Image,
    Limits,
    Missing,
    NetworkPolicy,
    SandboxBackend,
    SandboxSpec,
    Snapshot,
)
from benchflow.sandbox.pulling import PullSettings

_PREPARED_FORMAT: Final = "2"
"""Changes with what is added to an image for its user."""
_ROOT_NAMES: Final = ("root", "0")
_ALWAYS: Final = frozenset(
    {"network.none", "limits.time", "mounts", "fork", "snapshot", "forward", "services", "healthcheck", "compose"}
)
_IMAGES: Final = frozenset({"build.dockerfile", "image"})
_EGRESS: Final = frozenset({"network.public", "network.allowlist"})
KNOWN: Final = "machine.json"
"""In the store: what worked when it was tried on this machine."""
_ENGINE: Final = "use the docker or podman sandbox"
_HOW: Final = {
    "gpu": "use a remote sandbox backend with GPUs",
    "tpu": "use a remote sandbox backend with TPUs",
    "windows": "use a remote sandbox backend that runs Windows",
    "users": "install the package uidmap and grant the user 65536 ids in /etc/subuid and /etc/subgid, or run as root",
    "limits.disk": "as root: provide loop devices and mkfs.ext4 (package e2fsprogs); otherwise use Linux 6.6 or newer",
    "network.public": "load the kernel module veth",
    "network.allowlist": "load the kernel module veth",
}
_SHARED_BY_USER: Final = (
    "All sandboxes of this user share the user's ids, and with them the limits that the kernel keeps per user, such as "
    "inotify instances and descriptors in flight. For root, every sandbox has its own ids."
)
_SHARED_IDS: Final[dict[Identity, str]] = {
    "identity": "All sandboxes have the same user ids, because the file system of the store cannot shift owners. They "
    "share the limits that the kernel keeps per user, such as inotify instances. Set BENCHCUBE_STORE to a folder on "
    "ext4, XFS or Btrfs.",
    "range": _SHARED_BY_USER,
    "single": _SHARED_BY_USER,
}


class LocalBackend(SandboxBackend):
    """Starts its helper process when the first sandbox does; `close` ends it with everything below it."""

    name = "local"
    declared = LOCAL.declared

    def __init__(self, store: Path | None = None, *, identity: Identity | None = None) -> None:
        """`identity` settles how user ids are isolated; by default the best that works."""
        self.store = Store(store or default_store())
        self._identity = identity
        self._lock = threading.Lock()
        """Held while the helper process is started or ended."""
        self._launcher: Launcher | None = None
        self._owner: Owner | None = None
        self._spares: Spares | None = None
        self._snapshots: dict[str, tuple[tuple[Layer, ...], SandboxSpec]] = {}
        self._preparing: dict[str, anyio.Lock] = {}
        """Locks for what is created once, however many ask at the same time."""
        self._whole: set[str] = set()
        """Layers that were checked."""
        self._probed: Probe | None = None
        self._leftovers: list[Owner] = []
        """Of drivers that have ended, and still to be removed."""
        self._ahead: threading.Thread | None = None
        """Starts the helper process before it is needed."""
        self._needed: str | None = None
        """The layer that the first sandbox will need."""
        self._looking: dict[str, socket.socket] = {}
        """Layers that the helper is checking before they are needed, by key: where its answers arrive."""

    @cached_property
    def machine(self) -> Machine:
        return Machine.find()

    @property
    def capabilities(self) -> frozenset[str]:
        """What was found by the last `status`, or what the running helper is known to offer."""
        if self._probed is not None:
            return self._probed.capabilities
        return expected(self._launcher.identity) if self._launcher else frozenset()

    async def runtime(self) -> Runtime:
        """The running helper, with leftovers of drivers that died removed. One that was ended gets a successor."""
        if self._launcher is None or self._launcher.gone:
            await anyio.to_thread.run_sync(self._open)
        if self._leftovers:
            leftovers, self._leftovers = self._leftovers, []
            await self._collect(leftovers)
        launcher, owner, spares = self._launcher, self._owner, self._spares
        if launcher is None or owner is None or spares is None:
            raise EnvironmentFailure("The local sandbox backend was closed while a sandbox was starting.")
        return Runtime(self.store, owner, launcher, spares)

    def start_ahead(self, *, host: bool) -> None:
        """Start the helper process while the caller does something else; the first sandbox waits for the rest of it.

        With `host` that sandbox will need the layer of the host profile, and the helper checks it at once.
        """
        self._needed = hostprofile.profile_key() if host else None
        self._ahead = threading.Thread(target=self._open_ahead)
        self._ahead.start()

    def _open_ahead(self) -> None:
        with contextlib.suppress(BenchflowError, OSError):  # the first sandbox tries it again, and reports it
            self._open()

    def _open(self) -> None:
        with self._lock:
            if self._launcher is not None and not self._launcher.gone:
                return
            self._let_go()
            self.store.prepare()
            self._leftovers = self.store.abandoned()
            owner = self.store.claim()
            groups = [hierarchy.folder for hierarchy in self.machine.hierarchies]
            try:
                launcher = open_launcher(self.store, owner, self._identity, groups)
            except BaseException:
                (self.store.owners / owner.name).rmdir()
                self.store.forget(owner)
                raise
            self._owner = owner
            self._spares = Spares(launcher, self.store, owner)
            needed, self._needed = self._needed, None
            if needed is not None:
                self._look_ahead(launcher, needed)
            self._launcher = launcher  # last: a caller that sees it takes the others without the lock

    def _look_ahead(self, launcher: Launcher, key: str) -> None:
        """Have a layer checked that is there and that nobody can remove any more."""
        with contextlib.suppress(BenchflowError, OSError):  # then it is checked when it is needed
            if self.store.use.leases.try_hold(key) and (self.store.layers / key).exists():
                self._looking[key] = launcher.request(_to_check(key))

    async def _collect(self, leftovers: list[Owner]) -> None:
        """Remove what ended drivers left behind; a free lock proves that its driver has ended."""
        launcher = self._launcher
        for owner in leftovers:
            await anyio.to_thread.run_sync(cgroups.leftovers(self.machine.hierarchies, owner.name).remove)
            if launcher is not None:
                await launcher.task({"op": "remove", "locations": [owner.location()], "volumes": []})
            self.store.forget(owner)

    async def environment(self, spec: SandboxSpec, user: str, *, prepared: bool) -> Environment:
        """The layers below a sandbox; an image gets its unprivileged user and that user's working folder once."""
        image = spec.image
        as_root = user.partition(":")[0] in _ROOT_NAMES
        host = folders = None
        if image is None or image.base == "host":
            # Without a layer of its own an image gets no user, so the profile has to bring it.
            bare = image is not None and (as_root or bool(image.layers))
            host = await self._host_layer(bare=bare)
            if as_root and (await self.runtime()).launcher.identity in ("range", "single"):
                folders = await self._host_layer(folders=True)
        layers = tuple(self.store.location(path) for path in reversed(image.layers)) if image else ()
        await self._keep([path.name for path in image.layers] if image else ())
        environment = Environment(layers, host, folders)
        if not layers or not prepared or as_root:
            return environment
        return replace(environment, layers=(await self._prepared_layer(spec, environment, user), *layers))

    async def _keep(self, layers: Iterable[str]) -> None:
        """Nobody removes these layers while this backend is open."""
        for layer in layers:
            await self.store.use.hold(layer)
            self.store.use.note(layer)

    async def _host_layer(self, *, folders: bool = False, bare: bool = False) -> str:
        """The location of a layer of the host profile, composed when it is new or out of date."""
        runtime = await self.runtime()
        key = hostprofile.profile_key() + ("-folders" if folders else "-bare" if bare else "")
        async with self._preparing.setdefault(key, anyio.Lock()):
            if await self._is_whole(key):
                self.store.use.note(key)
            else:
                unfinished = runtime.owner.location(f"profile-{secrets.token_hex(4)}")
                target = f"store:layers/{key}"
                message = {"op": "compose-host", "folders": folders, "bare": bare, "target": target}
                await runtime.launcher.task({**message, "unfinished": unfinished})
        return f"store:layers/{key}"

    async def _is_whole(self, key: str) -> bool:
        """Whether a layer of our own is there as it was made, looked at once; one that is damaged is removed."""
        await self.store.use.hold(key)
        if not (self.store.layers / key).exists():
            return False
        if key in self._whole:
            return True
        launcher = (await self.runtime()).launcher
        looking = self._looking.pop(key, None)
        whole = looking is not None and (await launcher.answer(looking))["whole"]
        # Another driver may have repaired it since then, so what was found to be damaged ahead is looked at again.
        if whole or (await launcher.task(_to_check(key)))["whole"]:
            self._whole.add(key)
            return True
        await launcher.task({"op": "remove", "locations": [f"store:layers/{key}"], "volumes": []})
        return False

    async def _prepared_layer(self, spec: SandboxSpec, environment: Environment, user: str) -> str:
        """A layer with the sandbox's user in the accounts and the working folder in its hands; made once per image."""
        runtime = await self.runtime()
        own = (_PREPARED_FORMAT, spec.workdir, user, runtime.launcher.identity)
        parts = (*environment.layers, environment.host or "", *own)
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        key = f"prepared-{digest[:24]}"
        async with self._preparing.setdefault(key, anyio.Lock()):
            if await self._is_whole(key):
                self.store.use.note(key)
            else:
                await self._prepare(spec, user, key, runtime)
                self.store.use.note(key, [location.rpartition("/")[2] for location in environment.layers])
        return f"store:layers/{key}"

    async def _prepare(self, spec: SandboxSpec, user: str, key: str, runtime: Runtime) -> None:
        location = runtime.owner.location(f"{key}-{secrets.token_hex(4)}")
        upper = self.store.path(location)
        upper.mkdir()
        bare = replace(spec, user="root", limits=Limits(), mounts=(), network=type(spec.network)(), workdir="/")
        async with LocalSandbox(self, bare, upper=upper, prepared=False) as sandbox:
            answer, _ = await sandbox.link.call({"op": "prepare", "user": user, "workdir": spec.workdir})
            if answer.get("exit") != 0:
                raise EnvironmentFailure("The user and working folder of the environment could not be created.")
        await runtime.launcher.task({"op": "publish-layer", "source": location, "target": f"store:layers/{key}"})

    async def status(self) -> BackendStatus:
        async with self._preparing.setdefault("status", anyio.Lock()):
            found = self._probed or await probe(self)
            if found.reason is None:  # what failed once may work next time
                self._probed = found
        return BackendStatus(
            self.name, found.reason is None, found.reason, found.capabilities, found.missing, found.notes
        )

    def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, upper: Path | None = None) -> LocalSandbox:
        """A sandbox that is not started yet. `upper` is an empty folder that takes what is written, as a layer for
        `Image.layers`: it stays when the sandbox stops. Keep it on the store's file system."""
        layers = self._snapshot_layers(snapshot) if snapshot else ()
        if spec.composition is not None and spec.composition.services:
            from benchflow.sandbox.composed.composition import ServiceComposition
            from benchflow.sandbox.local.composed_sandbox import ComposedSandbox  # loaded where there are services

            if not isinstance(spec.composition, ServiceComposition):
                raise UsageError(f"The composition does not belong to '{self.name}'.")
            return ComposedSandbox(self, spec, spec.composition, layers=layers)
        return LocalSandbox(self, spec, layers=layers, upper=upper)

    def keep_snapshot(self, layers: tuple[Layer, ...], spec: SandboxSpec) -> Snapshot:
        """Register layers as a snapshot, which owns them from now on."""
        reference = secrets.token_hex(8)
        self._snapshots[reference] = (layers, spec)
        return Snapshot(self.name, reference, spec.image)

    def _snapshot_layers(self, snapshot: Snapshot) -> tuple[Layer, ...]:
        if snapshot.backend != self.name or snapshot.reference not in self._snapshots:
            raise UsageError(f"Unknown snapshot '{snapshot.reference}'.", code="snapshot-missing")
        return share(self._snapshots[snapshot.reference][0])

    async def build(self, context: Path, *, dockerfile: str = "Dockerfile", **options: object) -> Image:
        """Options are the fields of `benchflow.sandbox.images.BuildOptions`, and `pull` as for `resolve`."""
        from benchflow.sandbox.local.image_builds import LocalImages

        return await LocalImages(self).build(context, dockerfile, options)

    async def compose(
        self,
        file: Path,
        *,
        image: Image | None = None,
        variables: Mapping[str, str] | None = None,
        timeout_sec: float | None = None,
        base_image: str | None = None,
        pull: PullSettings | None = None,
    ) -> Composition:
        from benchflow.sandbox.composed.composition import compose

        options = {"timeout_sec": timeout_sec} | ({"base_image": base_image} if base_image is not None else {})
        return await compose(self, file, image, variables or {}, options, pull)

    async def resolve(self, image: str, *, pull: PullSettings | None = None) -> Image:
        from benchflow.sandbox.local.image_builds import LocalImages

        return await LocalImages(self).resolve(image, pull)

    async def substitute(self, image: str, base_image: str | None) -> Image | None:
        from benchflow.sandbox.local.image_builds import LocalImages

        return await LocalImages(self).substitute(image, base_image)

    async def discard(self, snapshot: Snapshot) -> None:
        layers, _ = self._snapshots.pop(snapshot.reference, ((), None))
        if layers:
            release(await self.runtime(), layers)

    async def close(self) -> None:
        """End the helper process and every sandbox that still runs; snapshots go with it."""
        await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        if self._ahead is not None:
            self._ahead.join()
        with self._lock:
            self._let_go()
            self.store.use.close()

    def _let_go(self) -> None:
        launcher, owner, spares = self._launcher, self._owner, self._spares
        self._launcher = self._owner = self._spares = None
        self._snapshots.clear()
        while self._looking:
            self._looking.popitem()[1].close()
        if launcher is None or owner is None:
            return
        if spares is not None:
            spares.close()
        launcher.close()
        cgroups.leftovers(self.machine.hierarchies, owner.name).remove()
        os.close(owner.lock)


def _to_check(key: str) -> Message:
    return {"op": "check-layer", "location": f"store:layers/{key}"}


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found."""

    capabilities: frozenset[str]
    reason: str | None = None
    """Why no sandbox can be started; None if one was started."""
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[Missing, ...]:
        """Every capability that is missing, and how to get it."""
        return tuple(
            Missing(name, _HOW.get(name, "see the reason")) for name in CAPABILITIES if name not in self.capabilities
        )


def open_launcher(
    store: Store, owner: Owner, identity: Identity | None = None, groups: Sequence[Path] = ()
) -> Launcher:
    """A zygote with the best isolation of user ids that this machine allows."""
    if sys.platform != "linux" or not syscalls.SUPPORTED:
        raise InfrastructureFailure(
            "The local sandbox needs Linux on x86-64 or AArch64, "
            f"this is {sys.platform} on {platform.machine()}; {_ENGINE}.",
            code="local-unsupported",
        )
    problems = []
    for candidate in [identity] if identity else _identities():
        try:
            return Launcher(store.root, candidate, owner, groups)
        except OSError as error:
            problems.append(f"{error.strerror or error}")
    raise InfrastructureFailure(
        f"The local sandbox needs namespaces, and the kernel refuses them: {problems[-1]}, or {_ENGINE}.",
        code="local-unusable",
    )


def _identities() -> Iterator[Identity]:
    if os.geteuid() == 0:
        yield "idmap"
        yield "identity"
        return
    if shutil.which("newuidmap") and shutil.which("newgidmap") and granted_range("/etc/subuid"):
        yield "range"
    yield "single"


def expected(identity: Identity) -> frozenset[str]:
    """What a sandbox of this kind offers before anything was tried."""
    found = _ALWAYS | _IMAGES | _EGRESS | {"limits.pids", "limits.memory", "limits.cpu", "limits.disk"}
    return found if identity == "single" else found | {"users"}


async def probe(backend: LocalBackend) -> Probe:
    """Start sandboxes that use the available features, and keep what worked.

    If everything has worked since this machine was started, with the same permissions, it is not tested again: three
    sandboxes for every command would cost more than the sandbox it wants. What did not work is always tried again.
    """
    try:
        runtime = await backend.runtime()
        notes = tuple(note for identity, note in _SHARED_IDS.items() if identity == runtime.launcher.identity)
        known, machine = backend.store.root / KNOWN, _machine(runtime.launcher.identity)
        if _worked_before(known, machine):
            return Probe(expected(runtime.launcher.identity), notes=notes)
        async with backend.create(SandboxSpec()) as sandbox:
            result = await sandbox.exec(["true"], timeout=60)
        if not result.ok:
            said = result.stderr.decode(errors="replace").strip()
            return Probe(frozenset(), f"A sandbox starts, but cannot run a command: {said}")
    except BenchflowError as error:
        return Probe(frozenset(), str(error))
    capabilities = expected(runtime.launcher.identity)
    trials = (
        (_EGRESS, SandboxSpec(network=NetworkPolicy("allowlist", ("example.org",)))),
        (frozenset({"limits.disk"}), SandboxSpec(limits=Limits(storage_mb=8, inodes=100))),
    )
    for names, spec in trials:
        if not await _works(backend, spec):
            capabilities -= names
    if capabilities == expected(runtime.launcher.identity):
        with contextlib.suppress(OSError):  # a store that is not writable is reported when something has to be stored
            write_atomic(known, json.dumps({"machine": machine}), sync=False)
    return Probe(capabilities, notes=notes)


def _machine(identity: Identity) -> str:
    """The machine since it was started, as this process sees it: its namespaces, permissions and programs."""
    try:
        spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt", "net", "cgroup")]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        rights = [line for line in Path("/proc/self/status").read_text(errors="replace").splitlines() if "Cap" in line]
    except OSError:
        return ""
    parts = [identity, boot, os.geteuid(), spaces, rights, shutil.which("mkfs.ext4"), platform.release()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _worked_before(known: Path, machine: str) -> bool:
    try:
        return bool(machine) and json.loads(known.read_bytes())["machine"] == machine
    except (OSError, ValueError, KeyError, TypeError):
        return False


async def _works(backend: LocalBackend, spec: SandboxSpec) -> bool:
    try:
        async with backend.create(spec) as sandbox:
            return (await sandbox.exec(["true"], timeout=60)).ok
    except BenchflowError:
        return False
