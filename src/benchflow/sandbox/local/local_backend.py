"""`LocalBackend`: sandboxes of this machine's kernel, for root and for ordinary users."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from benchflow.errors import EnvironmentFailure, UsageError
from benchflow.sandbox.backends import LOCAL
from benchflow.sandbox.local import cgroups
from benchflow.sandbox.local.beside import host_profile as hostprofile
from benchflow.sandbox.local.inside.box_plan import Identity
from benchflow.sandbox.local.kernel_probe import Probe, expected, open_launcher, probe
from benchflow.sandbox.local.launcher import Launcher
from benchflow.sandbox.local.layers.layer_stack import Environment, Layer, Runtime, release, share
from benchflow.sandbox.local.layers.sandbox_store import Owner, Store, default_store
from benchflow.sandbox.local.layers.spare_volumes import Spares
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.local.machine_limits import Machine
from benchflow.sandbox.protocol import BackendStatus, Image, Limits, SandboxBackend, SandboxSpec, Snapshot

_ROOT_NAMES: Final = ("root", "0")


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
        """What is made once, however many ask at the same time."""
        self._whole: set[str] = set()
        """Layers that were looked at."""
        self._probed: Probe | None = None

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
            leftovers = await anyio.to_thread.run_sync(self._open)
            await self._collect(leftovers)
        launcher, owner, spares = self._launcher, self._owner, self._spares
        if launcher is None or owner is None or spares is None:
            raise EnvironmentFailure("The local sandbox backend was closed while a sandbox was starting.")
        return Runtime(self.store, owner, launcher, spares)

    def _open(self) -> list[Owner]:
        with self._lock:
            if self._launcher is not None and not self._launcher.gone:
                return []
            self._let_go()
            self.store.prepare()
            leftovers = self.store.abandoned()
            owner = self.store.claim()
            groups = [hierarchy.folder for hierarchy in self.machine.hierarchies]
            try:
                self._launcher = open_launcher(self.store, owner, self._identity, groups)
            except BaseException:
                (self.store.owners / owner.name).rmdir()
                self.store.forget(owner)
                raise
            self._owner = owner
            self._spares = Spares(self._launcher, self.store, owner)
            return leftovers

    async def _collect(self, leftovers: list[Owner]) -> None:
        """Remove what drivers left that are gone, which their free locks prove."""
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
            host = await self._host_layer()
            if as_root and (await self.runtime()).launcher.identity in ("range", "single"):
                folders = await self._host_layer(folders=True)
        layers = tuple(self.store.location(path) for path in reversed(image.layers)) if image else ()
        environment = Environment(layers, host, folders)
        if not layers or not prepared or as_root:
            return environment
        return replace(environment, layers=(await self._prepared_layer(spec, environment, user), *layers))

    async def _host_layer(self, *, folders: bool = False) -> str:
        """The location of a layer of the host profile, composed when it is new or out of date."""
        runtime = await self.runtime()
        key = hostprofile.profile_key() + ("-folders" if folders else "")
        async with self._preparing.setdefault(key, anyio.Lock()):
            if not await self._is_whole(key):
                unfinished = runtime.owner.location(f"profile-{secrets.token_hex(4)}")
                target = f"store:layers/{key}"
                message = {"op": "compose-host", "folders": folders, "target": target, "unfinished": unfinished}
                await runtime.launcher.task(message)
        return f"store:layers/{key}"

    async def _is_whole(self, key: str) -> bool:
        """Whether a layer of our own is there as it was made, looked at once; one that is damaged is removed."""
        if not (self.store.layers / key).exists():
            return False
        if key in self._whole:
            return True
        launcher = (await self.runtime()).launcher
        location = f"store:layers/{key}"
        if (await launcher.task({"op": "check-layer", "location": location}))["whole"]:
            self._whole.add(key)
            return True
        await launcher.task({"op": "remove", "locations": [location], "volumes": []})
        return False

    async def _prepared_layer(self, spec: SandboxSpec, environment: Environment, user: str) -> str:
        """A layer with the sandbox's user in the accounts and the working folder in its hands; made once per image."""
        runtime = await self.runtime()
        parts = (*environment.layers, environment.host or "", spec.workdir, user, runtime.launcher.identity)
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        key = f"prepared-{digest[:24]}"
        async with self._preparing.setdefault(key, anyio.Lock()):
            if not await self._is_whole(key):
                await self._prepare(spec, user, key, runtime)
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
        """Options are the fields of `benchflow.sandbox.images.BuildOptions`."""
        from benchflow.sandbox.local.image_builds import LocalImages

        return await LocalImages(self).build(context, dockerfile, options)

    async def resolve(self, image: str) -> Image:
        from benchflow.sandbox.local.image_builds import LocalImages

        return await LocalImages(self).resolve(image)

    async def discard(self, snapshot: Snapshot) -> None:
        layers, _ = self._snapshots.pop(snapshot.reference, ((), None))
        if layers:
            release(await self.runtime(), layers)

    async def close(self) -> None:
        """End the helper process and every sandbox that still runs; snapshots go with it."""
        await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        launcher, owner, spares = self._launcher, self._owner, self._spares
        self._launcher = self._owner = self._spares = None
        self._snapshots.clear()
        if launcher is None or owner is None:
            return
        if spares is not None:
            spares.close()
        launcher.close()
        cgroups.leftovers(self.machine.hierarchies, owner.name).remove()
        os.close(owner.lock)
