"""`LocalInfraConfig`: resources on this machine, in sandboxes that need no daemon, or in a container engine.

Nothing outlives its owner: sandboxes and virtual machines end with the process that launched them, and containers of an
engine are found by their label and removed by the next `cleanup_stale`.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal
from uuid import uuid4

from pydantic import Field

import cube
from cube import active_runs
from cube.active_runs import ActiveRun
from cube.container import Container, ContainerConfig, ContainerError, ContainerLaunchError
from cube.resource import (
    DockerImageConfig,
    DockerServiceConfig,
    IncompatibleInfraError,
    InfraConfig,
    ProvisionStatus,
    ResourceConfig,
    ResourceHandle,
    ResourceNotReadyError,
    TaskContainerConfig,
    UnsupportedResourceType,
    VMResourceConfig,
)
from cube.services import launch_script
from cube.services.service_container import LocalContainers, local_containers
from cube.vm import VM, VMError, VMLaunchError

LOCAL: Final = "local"
_EMULATION: Final = (
    "LocalInfraConfig(enable_kvm=False), or CUBE_KVM=0 in the environment, emulates machines in software, "
    "which is many times slower"
)
_LIVE: Final[dict[str, ResourceHandle]] = {}
"""What this process has launched and not closed."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class LocalHandle(ResourceHandle):
    """A resource on this machine. Closing it ends its containers; a second close waits for the first."""

    container: Container | None = None
    _end: Callable[[], None] | None = None
    _guard: Any = field(default_factory=threading.Lock)

    def close(self) -> None:
        with self._guard:
            end, self._end = self._end, None
            if end is not None:
                try:
                    end()
                finally:
                    _forget(self.run_id)


def _forget(run_id: str) -> None:
    _LIVE.pop(run_id, None)
    active_runs.forget(run_id)


def _image_dir() -> Path:
    return Path(os.environ.get("CUBE_LOCAL_IMAGE_DIR") or cube._CUBE_CACHE_ROOT / "images")


class LocalInfraConfig(InfraConfig):
    """This machine. What is not given comes from the environment of the process that creates it."""

    sandbox: str = Field(default_factory=lambda: os.environ.get("CUBE_SANDBOX") or LOCAL)
    """Where containers run: `local`, without a daemon, or a container engine, `docker` or `podman`."""
    network: Literal["public", "none"] = Field(
        default_factory=lambda: "none" if os.environ.get("CUBE_NETWORK") == "none" else "public"
    )
    """Whether containers and virtual machines reach other machines, as those of an engine do."""
    base_image: str | None = Field(default_factory=lambda: os.environ.get("CUBE_BASE_IMAGE") or None)
    """Substitute for images that are not available: `host`, this machine's userland, or a registered image."""
    cpu_cores: int = 4
    """Of a virtual machine, as are the fields below."""
    ram_gb: int = 4
    screen_width: int = 1920
    screen_height: int = 1080
    headless: bool = True
    """Without a window on the display of this machine."""
    enable_kvm: bool = Field(default_factory=lambda: os.environ.get("CUBE_KVM") != "0")
    """Whether machines run with KVM; False emulates them in software, also those that ask for KVM."""
    image_dir: Path = Field(default_factory=_image_dir)
    launch_timeout_seconds: float = 600
    """How long a machine may take to become ready."""

    def fingerprint(self) -> str:
        return LOCAL if self.sandbox == LOCAL else f"{LOCAL}-{self.sandbox}"

    def capabilities(self) -> set[str]:
        return self._of_containers() | ({"kvm"} if self._with_kvm() else set())

    def _of_containers(self) -> set[str]:
        if self._unusable() is not None:
            return set()
        return {"docker", "network:egress"} if self.network == "public" else {"docker"}

    def refusal(self, resource: ResourceConfig) -> str | None:
        try:
            self._check(resource)
        except (UnsupportedResourceType, IncompatibleInfraError) as error:
            return str(error)
        lacking = sorted(resource.requirements() - self._of_containers() - {"kvm"})
        if not lacking:
            return None
        reason = self._unusable() if "docker" in lacking else None
        needs = f"Resource '{resource.name}' needs {', '.join(lacking)}, which this machine does not have"
        return f"{needs}: {reason}" if reason else f"{needs}."

    def can_serve(self, resource: ResourceConfig) -> bool:
        return self.refusal(resource) is None

    def _unusable(self) -> str | None:
        """Why no container can be launched."""
        try:
            return self._containers().unusable()
        except ContainerError as error:
            return str(error)

    def _containers(self) -> LocalContainers:
        return local_containers(self.sandbox, network=self.network, base_image=self.base_image)

    def _with_kvm(self) -> bool:
        from cube.qemu import qemu_host

        return self.enable_kvm and qemu_host.missing_programs() is None and qemu_host.kvm_problem() is None

    # -- provisioning ---------------------------------------------------------------------------------------------

    def provision_status(self, resource: ResourceConfig) -> ProvisionStatus:
        """The image of a task's container is found when it is launched: nothing is recorded per task."""
        if isinstance(resource, VMResourceConfig):
            return "needs_provisioning" if self._disk(resource) is None else "ready"
        return "ready" if isinstance(resource, TaskContainerConfig) else super().provision_status(resource)

    def provision(self, resource: ResourceConfig) -> None:
        """Make the images of a resource available, and record what they are."""
        self._check(resource)
        if isinstance(resource, VMResourceConfig):
            if self._disk(resource) is None:
                before, info = self.provision_info(resource), self._provide(resource)
                self.register(resource, info)
                self._remove_unused(before)
            return
        containers = self._containers()
        self.register(resource, {"images": {name: containers.fetch(name) for name in _images(resource)}})

    def _provide(self, resource: VMResourceConfig) -> dict[str, str]:
        from cube.qemu.image_files import provide_image

        if resource.source_url is None:
            raise ResourceNotReadyError(
                f"Resource '{resource.name}' has no source_url. Give one, or register the disk image of the machine: "
                'infra.register(resource, {"image": "/path/to/disk.qcow2"}).'
            )
        return provide_image(resource.source_url, resource.source_hash, self.image_dir)

    def _disk(self, resource: VMResourceConfig) -> Path | None:
        """The disk image that was provisioned or registered; None if there is none, or if it is of another source."""
        from cube.qemu.image_source import is_of

        info = self.provision_info(resource) or {}
        image, source = info.get("image"), info.get("source")
        if not isinstance(image, str) or not Path(image).is_file():
            return None
        if source is not None and not is_of(str(source), resource.source_url, resource.source_hash):
            return None
        return Path(image)

    def unprovision(self, resource: ResourceConfig) -> None:
        """Forget the record, and remove the disk image of a machine; images of containers are shared and stay."""
        from cube.provision_store import ProvisionStore, provision_key

        info = self.provision_info(resource)
        ProvisionStore().delete(provision_key(resource, self))
        if isinstance(resource, VMResourceConfig):
            self._remove_unused(info)

    def _remove_unused(self, info: dict[str, Any] | None) -> None:
        """Remove a disk image that was provisioned, unless it was registered or another record has it too."""
        from cube.provision_store import ProvisionStore
        from cube.qemu.image_files import remove_image

        if info is None or info.get("source") is None:
            return
        if not any(other.get("image") == info.get("image") for _, other in ProvisionStore().list()):
            remove_image(str(info.get("image")), self.image_dir)

    # -- launching ------------------------------------------------------------------------------------------------

    def launch(self, resource: ResourceConfig) -> ResourceHandle:
        """The started resource. After an error nothing of it is left."""
        self._check(resource)
        created = datetime.now(UTC)
        expires = created + timedelta(seconds=self.default_ttl_seconds)
        run_id = uuid4().hex
        about: dict[str, Any] = {
            "run_id": run_id, "resource": resource, "infra": self, "created_at": created, "expires_at": expires
        }  # fmt: skip
        engine = self.sandbox if self._scripted(resource) and self.sandbox != LOCAL else None
        folder = str(self._run_folder(run_id)) if isinstance(resource, VMResourceConfig) else None
        active_runs.note(
            ActiveRun(
                run_id, resource.name, self.fingerprint(), created.isoformat(), expires.isoformat(), engine, folder
            )
        )
        try:
            handle = (
                self._started_machine(resource, about)
                if isinstance(resource, VMResourceConfig)
                else self._started(resource, LocalHandle(**about))
            )
        except BaseException:
            active_runs.forget(run_id)
            raise
        _LIVE[run_id] = handle
        return handle

    def _run_folder(self, run_id: str) -> Path:
        """For the disk of a machine until it runs; beside the images, since it may grow as large."""
        return self.image_dir.absolute() / "runs" / run_id

    def _check(self, resource: ResourceConfig) -> None:
        """Refuse what cannot be honoured, before anything starts."""
        if isinstance(resource, VMResourceConfig):
            self._check_machine(resource)
            return
        if not isinstance(resource, DockerImageConfig | DockerServiceConfig):
            raise UnsupportedResourceType(self, resource)
        if "gpu:nvidia" in resource.requirements():
            raise IncompatibleInfraError(
                f"Resource '{resource.name}' needs a GPU, which is not provided on this machine."
            )
        for name in ("source_url", "bootstrap_script_extra"):
            if getattr(resource, name) is not None:
                raise UnsupportedResourceType(self, resource, f"`{name}` is for virtual machines")
        filled = [volume.name for volume in getattr(resource, "volumes", ()) if volume.source_url]
        if filled:
            raise UnsupportedResourceType(
                self, resource, f"the volumes {', '.join(filled)} are filled from archives, which is not supported"
            )

    def _check_machine(self, resource: VMResourceConfig) -> None:
        from cube.qemu import qemu_host

        if resource.bootstrap_script_extra is not None:
            raise UnsupportedResourceType(
                self, resource, "`bootstrap_script_extra` is for machines that run a script when they are set up"
            )
        if (missing := qemu_host.missing_programs()) is not None:
            raise IncompatibleInfraError(f"Resource '{resource.name}' is a virtual machine, and {missing}.")
        if self.enable_kvm and resource.requires_kvm and (problem := qemu_host.kvm_problem()) is not None:
            raise IncompatibleInfraError(f"Resource '{resource.name}' needs KVM, and {problem}. {_EMULATION}.")
        if not self.headless and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise IncompatibleInfraError(
                f"Resource '{resource.name}' needs a display because of headless=False, and this process has none."
            )

    @staticmethod
    def _scripted(resource: ResourceConfig) -> bool:
        return isinstance(resource, DockerServiceConfig) and not isinstance(resource, TaskContainerConfig)

    def _started(self, resource: ResourceConfig, handle: LocalHandle) -> ResourceHandle:
        if isinstance(resource, DockerImageConfig | TaskContainerConfig):
            fields = {"image", "ram_gb", "cpu_cores", "disk_gb", "gpu", "ports"}
            container = self._containers().launch(ContainerConfig(**resource.model_dump(include=fields)))
            handle.container, handle._end = container, container.stop
            handle.endpoints = {str(port): container.get_url(port) for port in resource.ports or ()}
        elif isinstance(resource, DockerServiceConfig):
            self._start_services(resource, handle)
        handle.endpoint = next(iter(handle.endpoints.values()), None)
        return handle

    def _start_services(self, resource: DockerServiceConfig, handle: LocalHandle) -> None:
        if not resource.launch_script.strip():
            raise ContainerLaunchError(f"Resource '{resource.name}' has no launch_script.")
        run_id, engine = handle.run_id, self.sandbox
        try:
            if self.sandbox == LOCAL:
                stand_in = launch_script.start_in_sandboxes(resource.launch_script, run_id, self._containers())
                handle._end = stand_in.close
                running = stand_in.running()
                handle.container = running[0] if len(running) == 1 else None
            else:
                launch_script.start_in_engine(resource.launch_script, run_id, engine)
                handle._end = lambda: launch_script.remove_from_engine(run_id, engine)
        except ContainerLaunchError as error:
            raise ContainerLaunchError(f"Resource '{resource.name}' cannot be launched: {error}") from error
        if silent := launch_script.unreachable(resource.services):
            handle.close()
            raise ContainerLaunchError(
                f"Resource '{resource.name}' was launched, but nothing listens on the ports of {', '.join(silent)}."
            )
        handle.endpoints = {name: f"http://localhost:{port}" for name, port in resource.services.items()}

    def _started_machine(self, resource: VMResourceConfig, about: dict[str, Any]) -> VM:
        from cube.qemu.local_vm import LocalVM
        from cube.qemu.machine_command import MachineSettings

        disk = self._disk(resource)
        if disk is None:
            raise ResourceNotReadyError(resource, self)
        fields = {"cpu_cores", "ram_gb", "screen_width", "screen_height", "headless", "network"}
        settings = MachineSettings(**self.model_dump(include=fields), accelerator="kvm" if self._with_kvm() else "tcg")
        if settings.accelerator == "tcg":
            logger.warning("The machine '%s' is emulated in software, which is slow.", resource.name)
        machine = LocalVM(**about)
        machine._ended = lambda: _forget(machine.run_id)
        try:
            machine.start(settings, disk, self._run_folder(machine.run_id))
            machine.wait(self.launch_timeout_seconds)
        except VMError as error:
            machine.stop()
            raise VMLaunchError(f"Resource '{resource.name}' cannot be launched: {error}") from error
        except BaseException:
            machine.stop()
            raise
        return machine

    # -- what runs ------------------------------------------------------------------------------------------------

    def list_active(self, run_id: str | None = None) -> list[dict[str, Any]]:
        place = self.fingerprint()
        return [
            {**asdict(run), "abandoned": run.abandoned}
            for run in active_runs.active_runs()
            if run.infra == place and run_id in (None, run.run_id)
        ]

    def cleanup(self, run_id: str) -> None:
        if (handle := _LIVE.get(run_id)) is not None:
            handle.close()
            return
        for run in active_runs.active_runs():
            if run.run_id == run_id:
                if run.engine is None and not run.abandoned:
                    raise ContainerError(f"Run {run_id} belongs to process {run.owner[0]}, which ends it.")
                _remove(run)

    def cleanup_stale(self, max_age_seconds: float | None = None) -> list[str]:
        """End what an ended process left, and what this process has kept for too long."""
        ended, now = [], datetime.now(UTC)
        for run in active_runs.active_runs():
            if run.infra != self.fingerprint():
                continue
            handle = _LIVE.get(run.run_id)
            if handle is not None and run.expired(now, max_age_seconds):
                handle.close()
            elif handle is None and run.abandoned:
                _remove(run)
            else:
                continue
            ended.append(run.run_id)
        return ended


def _remove(run: ActiveRun) -> None:
    """End what an owner left: sandboxes and machines ended with it, containers of an engine did not."""
    if run.engine is not None:
        launch_script.remove_from_engine(run.run_id, run.engine)
    if run.folder is not None and Path(run.folder).name == run.run_id:
        shutil.rmtree(run.folder, ignore_errors=True)
    active_runs.forget(run.run_id)


def _images(resource: ResourceConfig) -> list[str]:
    if isinstance(resource, DockerImageConfig):
        return [resource.image]
    return list(resource.docker_images) if isinstance(resource, DockerServiceConfig) else []
