"""Resources that a benchmark needs besides its tasks, and the contract for providing them.

A `ResourceConfig` names a machine, an image or services; an `InfraConfig` provisions it once per place, launches it for
a benchmark or for each task, and lists and removes what was launched. Both are sent as JSON; a `ResourceHandle` is not.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any, Literal

from pydantic import Field, SerializeAsAny

from cube.resource_handle import ResourceHandle
from cube.typed import TypedBaseModel
from cube.validated import ValidatedConfig

__all__ = [
    "DockerImageConfig",
    "DockerServiceConfig",
    "IncompatibleInfraError",
    "InfraConfig",
    "ResourceConfig",
    "ResourceHandle",
    "ResourceNotReadyError",
    "TaskContainerConfig",
    "UnsupportedResourceType",
    "VMResourceConfig",
    "VolumeSpec",
]

logger = logging.getLogger(__name__)

ProvisionStatus = Literal["ready", "needs_provisioning"]


class ResourceNotReadyError(RuntimeError):
    """A resource was launched before it was provisioned."""

    def __init__(self, resource: ResourceConfig | str, infra: InfraConfig | str | None = None) -> None:
        """About a resource and a place; a text alone is the message."""
        if infra is None:
            super().__init__(str(resource))
            return
        name = resource if isinstance(resource, str) else resource.name
        place = infra if isinstance(infra, str) else infra.fingerprint()
        super().__init__(
            f"Resource '{name}' is not provisioned on '{place}'. Call infra.provision(resource), or "
            f"infra.register(resource, info) if it already exists there."
        )


class UnsupportedResourceType(NotImplementedError):
    """An infrastructure does not provide this kind of resource."""

    def __init__(self, infra: InfraConfig | str, resource: ResourceConfig | None = None, reason: str = "") -> None:
        """About a place and a resource; a text alone is the message."""
        if resource is None:
            super().__init__(str(infra))
            return
        super().__init__(
            f"{type(infra).__name__} does not support {type(resource).__name__} '{resource.name}'"
            f"{f': {reason}' if reason else ''}."
        )


class IncompatibleInfraError(RuntimeError):
    """A resource needs something that the infrastructure does not have."""


class ResourceConfig(TypedBaseModel):
    """A resource that a benchmark or each of its tasks needs."""

    name: str
    scope: Literal["task", "benchmark"] = "task"
    """Whether each task has its own, or all tasks of a benchmark share one."""
    max_concurrent_agents: int | None = None
    source_url: str | None = None
    source_hash: str | None = None
    default_ttl_seconds: int = 3600
    bootstrap_script_extra: str | None = None

    def requirements(self) -> set[str]:
        """What an infrastructure must have: `kvm`, `docker`, `gpu:nvidia`, `network:egress`."""
        return set()


class VMResourceConfig(ResourceConfig):
    """A virtual machine, started from a disk image."""

    requires_kvm: bool = True

    def requirements(self) -> set[str]:
        return {"kvm"} if self.requires_kvm else set()


class VolumeSpec(TypedBaseModel):
    """A volume of a service: empty, or filled from an archive when it is provisioned."""

    name: str
    mount_path: str
    source_url: str | None = None
    tar_subpath: str | None = None
    strip_components: int = 0


class DockerServiceConfig(ResourceConfig):
    """Containers that a script starts with the command `docker`, and the ports of this machine that they serve on."""

    docker_images: list[str] = Field(default_factory=list)
    services: dict[str, int] = Field(default_factory=dict)
    """Name to port."""
    launch_script: str = ""
    endpoint_to_site: dict[str, str] = Field(default_factory=dict)
    volumes: list[VolumeSpec] = Field(default_factory=list)

    def requirements(self) -> set[str]:
        return {"docker"}


class DockerImageConfig(ResourceConfig):
    """One container of an image."""

    image: str
    ram_gb: float = 4.0
    cpu_cores: float = 2.0
    disk_gb: float = 10.0
    gpu: bool = False
    ports: list[int] | None = None

    def requirements(self) -> set[str]:
        return {"docker", "gpu:nvidia"} if self.gpu else {"docker"}


class TaskContainerConfig(DockerServiceConfig):
    """The container of one task.

    Its script is for infrastructures that only run scripts; others read the settings.
    """

    image: str
    ram_gb: float = 4.0
    cpu_cores: float = 2.0
    disk_gb: float = 10.0
    gpu: bool = False
    ports: list[int] | None = None

    def requirements(self) -> set[str]:
        return {"docker", "gpu:nvidia"} if self.gpu else {"docker"}


class InfraConfig(ValidatedConfig, ABC):
    """A place where resources are provided. Settings only: it can be sent to workers, which use the same place."""

    default_ttl_seconds: int = 86400
    """How long a resource may live; takes precedence over the resource's own."""
    image_name_suffix: str = ""

    @abstractmethod
    def fingerprint(self) -> str:
        """Names the place, provider and region: what is provisioned there once is found by every config of it."""

    @abstractmethod
    def capabilities(self) -> set[str]:
        """What it has; see `ResourceConfig.requirements`."""

    @abstractmethod
    def provision(self, resource: ResourceConfig) -> None:
        """Bring what a resource is launched from, once, and `register` it; safe to repeat."""

    @abstractmethod
    def launch(self, resource: ResourceConfig) -> ResourceHandle:
        """The started resource, ready to be used. After an error nothing of it is left."""

    @abstractmethod
    def list_active(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """What was launched and not closed, by any process that uses this place."""

    @abstractmethod
    def cleanup(self, run_id: str) -> None:
        """End one of them; does nothing if it has ended."""

    @abstractmethod
    def cleanup_stale(self, max_age_seconds: float | None = None) -> list[str]:
        """End what nobody owns any more, or what is older than it may be; return their run ids."""

    def unprovision(self, resource: ResourceConfig) -> None:
        """Remove what `provision` brought."""

    def register(self, resource: ResourceConfig, info: dict[str, Any]) -> None:
        """Record that a resource can be launched here, with what launching it needs."""
        from cube.provision_store import ProvisionStore, provision_key

        store, key = ProvisionStore(), provision_key(resource, self)
        if store.get(key) not in (None, info):
            logger.warning("The record of '%s' is replaced.", key)
        store.put(key, info)

    def provision_info(self, resource: ResourceConfig) -> dict[str, Any] | None:
        """What was registered for a resource; None if nothing was."""
        from cube.provision_store import ProvisionStore, provision_key

        return ProvisionStore().get(provision_key(resource, self))

    def provision_status(self, resource: ResourceConfig) -> ProvisionStatus:
        return "needs_provisioning" if self.provision_info(resource) is None else "ready"

    def can_serve(self, resource: ResourceConfig) -> bool:
        return resource.requirements() <= self.capabilities()

    def refusal(self, resource: ResourceConfig) -> str | None:
        """Why a resource cannot be launched here, as one sentence; None if it can."""
        if self.can_serve(resource):
            return None
        lacking = ", ".join(sorted(resource.requirements() - self.capabilities()))
        return f"Resource '{resource.name}' needs {lacking}, which {self.fingerprint()} does not have."


Resources = list[SerializeAsAny[ResourceConfig]]
