"""Docker and Podman as backends: images, builds, sandboxes, snapshots, and what the engine here can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from benchflow.errors import EnvironmentFailure, RuntimeFailure, UnsupportedError, UsageError
from benchflow.sandbox.backends import BUILT_IN
from benchflow.sandbox.composed.composition import ServiceComposition, compose
from benchflow.sandbox.engine.composed.compose_sandbox import ComposeSandbox
from benchflow.sandbox.engine.container_changes import SnapshotNotes
from benchflow.sandbox.engine.container_sandbox import EngineSandbox
from benchflow.sandbox.engine.machine.dialect import DIALECTS
from benchflow.sandbox.engine.machine.engine_build import Builder, BuildOptions
from benchflow.sandbox.engine.machine.engine_client import EngineClient
from benchflow.sandbox.engine.machine.engine_host import EngineHost, find_facts
from benchflow.sandbox.engine.machine.engine_images import EngineImages
from benchflow.sandbox.engine.machine.gate import EngineGate, GateLimits
from benchflow.sandbox.engine.machine.ownership import default_state
from benchflow.sandbox.protocol import (
    BackendStatus,
    Composition,
    Image,
    Sandbox,
    SandboxBackend,
    SandboxSpec,
    Snapshot,
)
from benchflow.sandbox.pulling import PullSettings

_GROUND: Final = (
    "A verifier has its own container, files and network, but the same user ids as the agent's container: the "
    "engine's namespaces and dropped capabilities separate them. `local` as root gives each sandbox its own ids."
)


class EngineBackend(SandboxBackend):
    """One engine; it is not contacted before it is needed."""

    declared = BUILT_IN

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        state: Path | None = None,
        limits: GateLimits | None = None,
    ) -> None:
        """`name` is `docker` or `podman`; `command` and `env` say how its client is called where that is not usual."""
        if name not in DIALECTS:
            raise UsageError(f"Unknown engine '{name}'; available: {' and '.join(sorted(DIALECTS))}.")
        self.name: str = name
        self._client: Final = EngineClient(DIALECTS[name], command, env)
        self._state: Final = state or default_state()
        self._gate: Final = EngineGate(name, limits)
        self._images: Final = EngineImages(self._client)
        self._builder: Final = Builder(self._client, self._images, self._state)
        self._connecting: Final = anyio.Lock()
        self._host: EngineHost | None = None
        self._status: BackendStatus | None = None
        self.notes: Final = SnapshotNotes(self._state / "snapshots")

    async def status(self) -> BackendStatus:
        if self._status is None:
            try:
                facts = await find_facts(self._client)
            except RuntimeFailure as error:
                self._status = BackendStatus(self.name, False, str(error), frozenset())
            else:
                self._status = BackendStatus(self.name, True, None, facts.capabilities, facts.missing(), (_GROUND,))
        return self._status

    async def connect(self) -> EngineHost:
        """The engine, registered with once per backend; leftovers of crashed owners are removed on the way."""
        async with self._connecting:
            if self._host is None:
                self._host = await EngineHost.connect(self._client, self._gate, self._state)
            return self._host

    def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        if snapshot is not None and snapshot.backend != self.name:
            raise UsageError(f"A snapshot of '{snapshot.backend}' cannot be used by '{self.name}'.")
        if isinstance(spec.composition, ServiceComposition):
            main = EngineSandbox(self, spec, origin=snapshot) if snapshot is not None else None
            return ComposeSandbox(self, spec, spec.composition, main=main)
        if spec.composition is not None:
            raise UsageError(f"The composition does not belong to '{self.name}'.")
        return EngineSandbox(self, spec, origin=snapshot)

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
        options = {"timeout_sec": timeout_sec} | ({"base_image": base_image} if base_image is not None else {})
        return await compose(self, file, image, variables or {}, options, pull)

    async def build(self, context: Path, *, dockerfile: str = "Dockerfile", **options: object) -> Image:
        """Options: `timeout_sec`, `build_args`, `network`, `target`, `pull` (see `BuildOptions`). No engine replaces a
        base image: `base_image` is refused where it is needed.
        """
        try:
            return await self._builder.build(context, dockerfile, _build_options({"pull": self.pulling, **options}))
        except EnvironmentFailure as error:
            if options.get("base_image") is None or error.code != "image-missing":
                raise
            message = f"{error} Only the sandbox `local` can replace a base image of a Dockerfile (`--base-image`)."
            raise UnsupportedError(message, path="base_image") from error

    async def resolve(self, image: str, *, pull: PullSettings | None = None) -> Image:
        return await self._images.resolve(image, pull or self.pulling)

    async def discard(self, snapshot: Snapshot) -> None:
        host = await self.connect()
        await host.remove_image(snapshot.reference)
        self.notes.forget(snapshot.reference)

    async def close(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            with anyio.CancelScope(shield=True):
                try:
                    await host.remove_owned(host.owner.id)
                finally:
                    host.close()


def _build_options(options: Mapping[str, object]) -> BuildOptions:
    timeout, network, target = (options.get(key) for key in ("timeout_sec", "network", "target"))
    arguments = options.get("build_args") or {}
    pull = options.get("pull")
    unknown = set(options) - {"timeout_sec", "build_args", "network", "target", "base_image", "pull"}
    if unknown:
        raise UsageError(f"Unknown build options: {', '.join(sorted(unknown))}.")
    if not isinstance(arguments, Mapping):
        raise UsageError("The build option 'build_args' is not a mapping.")
    return BuildOptions(
        timeout_sec=float(timeout) if isinstance(timeout, int | float) else None,
        build_args={str(key): str(value) for key, value in arguments.items()},
        network=str(network) if network is not None else None,
        target=str(target) if target is not None else None,
        pull=pull if isinstance(pull, PullSettings) else PullSettings(),
    )
