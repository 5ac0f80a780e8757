"""The container contract of the gym layer: what a task requests, who launches it, how it is used.

`ContainerConfig` is part of a task's metadata; a `ContainerBackend` launches it and blocks until it is ready; a
`Container` executes commands and reaches ports. A container is stopped exactly once, however often `stop` is called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from cube.resource_handle import ResourceHandle
from cube.typed import TypedBaseModel


class ContainerError(RuntimeError):
    """Base class of container errors."""


class ContainerLaunchError(ContainerError):
    """The container did not start."""


class HealthCheckError(ContainerError):
    """The container started but is not healthy."""


class ContainerExecError(ContainerError):
    """A command that must succeed failed."""


class ContainerConfig(TypedBaseModel, defer_build=True):
    """The container that a task needs."""

    image: str
    ram_gb: float = 4.0
    cpu_cores: float = 2.0
    gpu: bool = False
    disk_gb: float = 10.0
    ports: list[int] | None = None


@dataclass(frozen=True, slots=True)
class ExecResult:
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    """124 if the command exceeded its timeout."""
    duration_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    running: bool = False
    healthy: bool = False
    resource_usage: Mapping[str, Any] = field(default_factory=dict)
    backend_info: Mapping[str, Any] = field(default_factory=dict)


class Container(ResourceHandle, ABC):
    """A running container. `with container:` stops it at the end."""

    @property
    def container(self) -> Container:
        """Itself: a container that an infrastructure launches is its own handle."""
        return self

    @property
    @abstractmethod
    def id(self) -> str: ...

    @abstractmethod
    def exec(
        self, command: str, timeout: float | None = None, workdir: str | None = None, env: dict[str, str] | None = None
    ) -> ExecResult:
        """Run a shell command to its end; a timeout stops it with exit code 124."""

    def exec_long_running(
        self,
        command: str,
        *,
        timeout: float,
        poll_interval: float = 30,
        workdir: str | None = None,
        env: dict[str, str] | None = None,
    ) -> ExecResult:
        """Like `exec`, for backends that lose long connections and poll instead, every `poll_interval` seconds."""
        del poll_interval  # a plain exec needs no polling
        return self.exec(command, timeout=timeout, workdir=workdir, env=env)

    @abstractmethod
    def forward_port(self, port: int) -> int:
        """The port of this machine that is forwarded to `port` inside."""

    @abstractmethod
    def get_url(self, port: int) -> str: ...

    @abstractmethod
    def get_status(self) -> ContainerStatus: ...

    @abstractmethod
    def stop(self, timeout: float = 10) -> None:
        """Stop and remove the container; safe to call again."""

    def close(self) -> None:
        self.stop()


class ContainerBackend(TypedBaseModel, ABC, defer_build=True):
    """Launches containers; can be sent as JSON like any other config."""

    timeout_seconds: int = 1800
    backend_config: dict[str, Any] = Field(default_factory=dict)

    @abstractmethod
    def launch(self, config: ContainerConfig) -> Container:
        """A container that is ready, or a `ContainerLaunchError`."""

    def health_check(self, container: Container) -> bool:
        """Whether a launched container is usable; override to test it."""
        del container
        return True

    def _run_health_check(self, container: Container) -> None:
        """For implementers of `launch`: stop the container and raise `HealthCheckError` unless it is healthy."""
        try:
            healthy = self.health_check(container)
        except Exception as error:  # the container must not remain, whatever the check raises
            container.stop()
            raise HealthCheckError(f"Health check raised an exception: {error}") from error
        if not healthy:
            container.stop()
            raise HealthCheckError("Health check returned False")


def relocate_if_readonly(container: Container, working_dir: str, new_wd: str, *, extra_setup: str | None = None) -> str:
    """`working_dir` if it can be written to, else `new_wd` with a copy of it; a failed copy is an error."""
    import shlex

    if container.exec(f"test -w {shlex.quote(working_dir)}", timeout=30).exit_code == 0:
        return working_dir
    source, target = shlex.quote(working_dir), shlex.quote(new_wd)
    commands = [f"mkdir -p {target}", f"cp -a {source}/. {target}/"] + ([extra_setup] if extra_setup else [])
    result = container.exec(" && ".join(commands), timeout=300)
    if result.exit_code != 0:
        raise ContainerExecError(f"Copying {working_dir} to {new_wd} failed: {result.stderr.strip()}")
    return new_wd


def port_from_url(url: str) -> int:
    """The port of a URL, or the default port of its scheme."""
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    if port is None:
        raise ContainerError(f"'{url}' has no port.")
    return port
