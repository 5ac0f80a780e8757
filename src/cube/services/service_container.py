"""Containers that run a program, as services do, and who launches containers on this machine.

A package provides them with an entry point in the group `cube.container_backends`: a function
`(sandbox, *, network, base_image) -> LocalContainers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from pydantic import Field

from cube.container import Container, ContainerBackend, ContainerConfig, ContainerLaunchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

GROUP: Final = "cube.container_backends"


class ServiceContainerConfig(ContainerConfig):
    """A container and the program that it runs: that of its image, unless another one is given."""

    entrypoint: list[str] | None = None
    command: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    published: dict[int, int] = Field(default_factory=dict)
    """Port of this machine to port inside."""
    folders: list[str] = Field(default_factory=list)
    """Empty folders, in place of volumes."""


class ServiceContainer(Container, ABC):
    """A container whose program runs."""

    @abstractmethod
    def exit_code(self) -> int | None:
        """How its program ended; None while it runs."""

    @abstractmethod
    def output(self) -> str:
        """What its program has printed, or the end of it."""


class LocalContainers(ContainerBackend, ABC):
    """Launches containers on this machine."""

    @abstractmethod
    def unusable(self) -> str | None:
        """Why no container can be launched here, as one sentence; None if one can."""

    @abstractmethod
    def fetch(self, image: str) -> str:
        """Make an image available, and return what identifies it; a `ContainerLaunchError` if it is not."""

    @abstractmethod
    def launch_service(self, config: ServiceContainerConfig) -> ServiceContainer:
        """A container with its program started and its ports published."""


def local_containers(sandbox: str, *, network: str, base_image: str | None) -> LocalContainers:
    """What launches containers in sandboxes of that name; a `ContainerLaunchError` if nothing does."""
    entries = _entries()
    if sandbox not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise ContainerLaunchError(
            f"No installed backend launches containers in the sandbox '{sandbox}'; available: {known}."
        )
    try:
        make: Callable[..., LocalContainers] = entries[sandbox].load()
    except Exception as error:
        raise ContainerLaunchError(
            f"The container backend '{sandbox}' ({entries[sandbox].value}) cannot be loaded: {error}"
        ) from error
    return make(sandbox, network=network, base_image=base_image)


def _entries() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}
