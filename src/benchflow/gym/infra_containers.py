"""Containers for the infrastructures of the gym layer: sandboxes that behave as containers of an engine do.

Commands run as the user of the image, in its working folder, and a service runs the program of its image unless
another one is given. Found through the entry-point group `cube.container_backends`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import anyio

from benchflow.errors import BenchflowError, EnvironmentFailure
from benchflow.gym.sandbox_container import LOOP, SandboxContainer, SandboxContainerBackend
from benchflow.sandbox.backends import status_of
from benchflow.sandbox.factory import IMAGE_MISSING
from benchflow.sandbox.protocol import Image, Limits, NetworkPolicy, Sandbox, SandboxSpec
from benchflow.sandbox.services import LOGS, RunningServices, ServicePlan, ServicesPlan
from benchflow.sandbox.task_policy import DEFAULT_WORKDIR
from cube.container import Container, ContainerConfig, ContainerExecError, ContainerLaunchError
from cube.services.service_container import LocalContainers, ServiceContainer, ServiceContainerConfig

_NAME: Final = "service"
_LARGEST_LOG: Final = 1 << 20


class ServiceSandbox(SandboxContainer, ServiceContainer):
    """A sandbox in which a service runs."""

    def __init__(self, sandbox: Sandbox, running: RunningServices) -> None:
        super().__init__(sandbox)
        self._running: Final = running

    def exit_code(self) -> int | None:
        try:
            ended: Mapping[str, int] = LOOP.run(self._running.ended)
        except BenchflowError as error:
            raise ContainerExecError(str(error)) from error
        return ended.get(_NAME)

    def output(self) -> str:
        result = self.exec(f"tail -c {_LARGEST_LOG} {LOGS}/{_NAME}/log")
        return result.stdout


class InfraContainers(SandboxContainerBackend, LocalContainers):
    """Launches containers in sandboxes of one backend."""

    base_image: str | None = None

    def unusable(self) -> str | None:
        status = LOOP.run(status_of, self._backend())
        if not status.usable:
            return status.reason or f"The sandbox {self.sandbox} does not work on this machine."
        missing = next((each for each in status.missing if each.capability == f"network.{self.network}"), None)
        return f"The sandbox {self.sandbox} lacks {missing.capability}: {missing.how}." if missing else None

    def fetch(self, image: str) -> str:
        try:
            found: Image | None = LOOP.run(self._image, image)
        except BenchflowError as error:
            raise ContainerLaunchError(str(error)) from error
        return found.digest if found is not None else "host"

    def launch(self, config: ContainerConfig) -> Container:
        try:
            container = SandboxContainer(LOOP.run(self._start, config))
        except BenchflowError as error:
            raise ContainerLaunchError(str(error)) from error
        return self._ready(container, {}, config)

    def launch_service(self, config: ServiceContainerConfig) -> ServiceContainer:
        async def start() -> ServiceSandbox:
            sandbox = await self._start(config)
            try:
                await _make_folders(sandbox, config.folders)
                running = RunningServices(sandbox, _plan(config, sandbox.spec))
                await running.start()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await sandbox.stop()
                raise
            return ServiceSandbox(sandbox, running)

        try:
            service: ServiceSandbox = LOOP.run(start)
        except BenchflowError as error:
            raise ContainerLaunchError(str(error)) from error
        return cast("ServiceSandbox", self._ready(service, config.published, config))

    def _ready(self, container: SandboxContainer, ports: Mapping[int, int], config: ContainerConfig) -> Container:
        """The container with its ports forwarded; if that fails, it is stopped."""
        try:
            for host, inside in ports.items():
                container.forward_port(inside, host)
            for port in config.ports or ():
                container.forward_port(port)
            self._run_health_check(container)
        except OSError as error:
            container.stop()
            raise ContainerLaunchError(f"A port cannot be published: {error}.") from error
        except BaseException:
            container.stop()
            raise
        return container

    async def _start(self, config: ContainerConfig) -> Sandbox:
        image = await self._image(config.image)
        limits = Limits(
            cpus=config.cpu_cores,
            memory_mb=int(config.ram_gb * 1024),
            storage_mb=int(config.disk_gb * 1024) if await self._limits_disk() else None,
            gpus=1 if config.gpu else None,
        )
        spec = SandboxSpec(
            image=image,
            limits=limits,
            network=NetworkPolicy(self.network),
            workdir=_workdir(image),
            user=(image.user if image is not None else None) or "root",
        )
        sandbox = self._backend().create(spec)
        await sandbox.start()
        return sandbox

    async def _limits_disk(self) -> bool:
        """An engine limits files on some file systems only, and an ordinary container has no limit."""
        return "limits.disk" in (await status_of(self._backend())).capabilities

    async def _image(self, name: str) -> Image | None:
        backend = self._backend()
        if name in ("", "host"):
            return None
        try:
            return await backend.resolve(name)
        except EnvironmentFailure as error:
            found = await backend.substitute(name, self.base_image) if error.code == IMAGE_MISSING else None
            if found is None:
                raise
            return found


def _workdir(image: Image | None) -> str:
    """As in an engine; a substitute does not know the folder of the image that it replaces, which is mostly `/app`."""
    if image is not None and image.workdir:
        return image.workdir
    return DEFAULT_WORKDIR if image is not None and image.fidelity == "substituted" else "/"


async def _make_folders(sandbox: Sandbox, folders: list[str]) -> None:
    if folders:
        result = await sandbox.exec(["mkdir", "-p", "-m", "777", "--", *folders], user="root", cwd="/", timeout=60)
        if not result.ok:
            said = result.stderr.decode(errors="replace").strip()
            raise EnvironmentFailure(f"The folders of volumes cannot be created: {said}", code="mount-missing")


def _plan(config: ServiceContainerConfig, spec: SandboxSpec) -> ServicesPlan:
    """What the container runs, as an engine would choose it."""
    image = spec.image
    entrypoint = tuple(config.entrypoint) if config.entrypoint is not None else (image.entrypoint if image else ())
    own = image.command if image is not None and config.entrypoint is None else ()
    words = (*entrypoint, *(tuple(config.command) or own))
    if not words:
        raise EnvironmentFailure(
            f"The image {config.image} has no program, and none was given.", code="service-missing"
        )
    service = ServicePlan(_NAME, words, config.user or spec.user or "root", config.workdir or spec.workdir)
    return ServicesPlan((service,), env=config.env)


def sandbox_containers(sandbox: str, *, network: str, base_image: str | None) -> InfraContainers:
    """The entry point: containers in sandboxes of that name."""
    policy = cast("Literal['none', 'public']", network)
    settings: dict[str, Any] = {"sandbox": sandbox, "network": policy, "base_image": base_image}
    return InfraContainers(**settings)
