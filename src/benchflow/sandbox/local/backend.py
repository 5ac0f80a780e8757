"""`LocalBackend`: sandboxes of this machine's kernel, for root and for ordinary users."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import anyio.to_thread

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.local import hostprofile
from benchflow.sandbox.local.launcher import Launcher
from benchflow.sandbox.local.plan import Identity
from benchflow.sandbox.local.sandbox import LocalSandbox, Runtime
from benchflow.sandbox.local.store import Owner, Store, default_store
from benchflow.sandbox.protocol import BackendStatus, Image, Sandbox, SandboxBackend, SandboxSpec, Snapshot


class LocalBackend(SandboxBackend):
    """Starts its helper process when the first sandbox does."""

    name = "local"

    def __init__(self, store: Path | None = None) -> None:
        self.store = Store(store or default_store())
        self._lock = threading.Lock()
        """Held while the helper process is started or ended."""
        self._launcher: Launcher | None = None
        self._owner: Owner | None = None

    async def runtime(self) -> Runtime:
        """The running helper, with leftovers of drivers that died removed."""
        if self._launcher is None:
            await anyio.to_thread.run_sync(self._open)
        launcher, owner = self._launcher, self._owner
        if launcher is None or owner is None:
            raise EnvironmentFailure("The local sandbox backend was closed while a sandbox was starting.")
        return Runtime(self.store, owner, launcher)

    def _open(self) -> None:
        with self._lock:
            if self._launcher is not None:
                return
            self.store.prepare()
            owner = self.store.claim()
            identity: Identity = "idmap" if os.geteuid() == 0 else "single"
            self._launcher = Launcher(self.store.root, identity, owner.lock)
            self._owner = owner

    async def host_layer(self) -> str:
        """The location of the host profile's own layer, composed when it is new or out of date."""
        runtime = await self.runtime()
        key = hostprofile.profile_key()
        if not (self.store.layers / key).exists():
            await runtime.launcher.task(
                {
                    "op": "compose-host",
                    "target": f"store:layers/{key}",
                    "unfinished": runtime.owner.location(f"profile-{os.urandom(4).hex()}"),
                    "owners": runtime.launcher.identity != "single",
                }
            )
        return f"store:layers/{key}"

    async def status(self) -> BackendStatus:
        raise NotImplementedError

    def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, upper: Path | None = None) -> LocalSandbox:
        return LocalSandbox(self, spec, upper=upper)

    async def build(self, context: Path, *, dockerfile: str = "Dockerfile", **options: object) -> Image:
        raise NotImplementedError

    async def resolve(self, image: str) -> Image:
        raise NotImplementedError

    async def discard(self, snapshot: Snapshot) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        with self._lock:
            if self._launcher is not None and self._owner is not None:
                self._launcher.close()
                os.close(self._owner.lock)
            self._launcher = self._owner = None
