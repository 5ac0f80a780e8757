"""`Environment`: the started sandbox of a task, with its services up and its healthcheck passed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import anyio

from benchflow.errors import EnvironmentFailure
from benchflow.record import SandboxPart
from benchflow.sandbox.factory import AUTO, ChosenIsolation, Preparation, choose_backend, prepare, taken_package
from benchflow.sandbox.protocol import Change, Image, NetworkPolicy, Sandbox, SandboxBackend, Snapshot
from benchflow.sandbox.pulling import PullSettings
from benchflow.task.package import TaskPackage

if TYPE_CHECKING:
    from benchflow.sandbox.entrypoint import RunningEntrypoint
    from benchflow.sandbox.services import RunningServices

ChooseIsolation = Callable[[SandboxBackend], Awaitable[Mapping[str | None, ChosenIsolation]]]


class Environment:
    """A task's sandbox. `async with` ends it; what it started ends with it."""

    def __init__(
        self,
        backend: SandboxBackend,
        preparation: Preparation,
        *,
        owns_backend: bool = False,
        snapshot: Snapshot | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        """`snapshot` is a state of this environment to start from, with an agent installed for instance; `sandbox` one
        of it that runs already.
        """
        self.backend: Final = backend
        self.preparation: Final = preparation
        self.sandbox: Final[Sandbox] = sandbox or backend.create(preparation.spec, snapshot=snapshot)
        self.services: RunningServices | None = None
        """What keeps running beside the agent: services of a manifest, or what the image's entry point started."""
        self.entrypoint: RunningEntrypoint | None = None
        """The entry point of the image, whether it still runs or not."""
        self.brought: frozenset[Change] = frozenset()
        """What the entry point changed before the agent began."""
        self.network = preparation.spec.network
        """The current network policy."""
        self._owns_backend: Final = owns_backend
        self._snapshot: Final = snapshot

    @classmethod
    async def from_task(
        cls,
        task: TaskPackage | Path | str,
        *,
        sandbox: str | SandboxBackend = AUTO,
        base_image: str | None = None,
        pull: PullSettings | None = None,
        machine: Mapping[str, str] | None = None,
        choose_isolation: ChooseIsolation | None = None,
    ) -> Self:
        """The started environment of a task package.

        `sandbox` is the name of a backend, `auto`, or a backend that the caller keeps. `base_image` is the
        substitute for a base image that is not available: `host` or a registered image. `pull` says how a backend that
        is chosen here pulls images. Refuses unsupported features, by `UnsupportedTaskFeatureError`, before anything
        starts; after an error nothing is left running.
        `choose_isolation` gives the isolation of its verifiers where the package does not.
        """
        package = await taken_package(task)
        owned = isinstance(sandbox, str)
        backend = sandbox
        if isinstance(backend, str):
            backend = await choose_backend(package, backend, base_image=base_image, pull=pull)
        try:
            preparation = await prepare(package, backend, base_image=base_image, machine=machine)
            if choose_isolation is not None:
                preparation = replace(preparation, chosen=await choose_isolation(backend))
            environment = cls(backend, preparation, owns_backend=owned)
            await environment.start()
        except BaseException:
            if owned:
                with anyio.CancelScope(shield=True):
                    await backend.close()
            raise
        return environment

    async def start(self) -> None:
        """Bring up the sandbox, its services, and wait until it is healthy; after an error nothing runs."""
        try:
            await self.sandbox.start()
            await self._make_folders()
            if self.preparation.services is not None:
                from benchflow.sandbox.services import RunningServices

                self.services = RunningServices(self.sandbox, self.preparation.services)
                await self.services.start()
            elif (image := self.preparation.spec.image) is not None and image.entrypoint:
                await self._start_entrypoint(image)
            await self._wait_healthy()
            if self.entrypoint is not None:
                done = await self.entrypoint.settle(wait=self.preparation.healthcheck is None)
                self.services = None if done else self.entrypoint
                self.brought = frozenset(await self.sandbox.changes())
            for failed in await self.sandbox.failed_services():  # before an agent could have ended it
                raise EnvironmentFailure(failed.reason, code="service-failed")
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.sandbox.stop()
            raise

    async def _start_entrypoint(self, image: Image) -> None:
        from benchflow.sandbox.entrypoint import RunningEntrypoint, plan_entrypoint

        self.entrypoint = RunningEntrypoint(self.sandbox, plan_entrypoint(image))
        await self.entrypoint.start()

    async def _wait_healthy(self) -> None:
        check = self.preparation.healthcheck
        if check is None:
            return
        from benchflow.sandbox.healthcheck import wait_healthy

        try:
            await wait_healthy(self.entrypoint or self.sandbox, check, user="root")
        except EnvironmentFailure as error:
            if self.entrypoint is None or error.code != "unhealthy":
                raise
            message = f"{error}{await self.entrypoint.last_lines('entrypoint')}"
            raise EnvironmentFailure(message, code=error.code, path=error.path) from error

    async def _make_folders(self) -> None:
        composition = self.preparation.spec.composition
        if composition is not None and composition.empty_folders:
            command = ["mkdir", "-p", "-m", "777", "--", *composition.empty_folders]
            result = await self.sandbox.exec(command, user="root", cwd="/", timeout=60)
            if not result.ok:
                said = result.stderr.decode(errors="replace").strip()
                raise EnvironmentFailure(f"Folders of the compose file cannot be created: {said}", code="mount-missing")

    async def set_network(self, network: NetworkPolicy) -> None:
        """Change the network policy of its processes, unless it is already in force."""
        if network != self.network:
            await self.sandbox.set_network(network)
            self.network = network

    async def fork(self) -> Environment:
        """A started copy with files and network as they are now; services are not copied, the backend is shared."""
        copy = Environment(self.backend, self.preparation, sandbox=await self.sandbox.fork())
        copy.network = self.network
        return copy

    def another(self) -> Environment:
        """The same environment once more, from its beginning and not started; the backend is shared."""
        return Environment(self.backend, self.preparation, snapshot=self._snapshot)

    def record(self) -> SandboxPart:
        """The `sandbox` part of a result: backend, base, whether that is the declared one, and what is missing."""
        found, image = self.preparation, self.preparation.spec.image
        left_out = self.services.plan.left_out if self.services is not None else ()
        lacks = tuple(f"service {name} of the shared manifest, whose program is not here" for name in left_out)
        if image is None:
            return SandboxPart(self.backend.name, found.base, found.fidelity, lacks=lacks)
        return SandboxPart(
            self.backend.name, found.base, found.fidelity, image.base_digest, image.instead_of, (*image.lacks, *lacks)
        )

    async def stop(self) -> None:
        """End services, entry point and sandbox, and the backend when it was made for this environment; idempotent."""
        if self.services is not None:
            await self.services.stop()
        await self.sandbox.stop()
        if self._owns_backend:
            await self.backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.stop()
