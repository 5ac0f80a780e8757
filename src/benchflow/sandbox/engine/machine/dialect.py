"""The differences between Docker and Podman, all in one table. Whatever is not here, both do alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one engine's command line wants to be spoken to."""

    name: str
    network: str
    """The network with external access."""
    info: tuple[str, ...]
    """Arguments that print what the engine is, as JSON."""
    remove: tuple[str, ...]
    """Arguments that end and remove a container with its volumes at once; its name follows."""
    commit: tuple[str, ...]
    """Arguments that make an image of a container's files."""
    detached_by_disconnecting: bool
    """A container that is to get a network later begins with one, which is taken away before anything runs in it."""
    extra_run: tuple[str, ...] = ()
    child_of_caller: bool = False
    """Containers are children of the command, not of a daemon, and cannot get more than the command itself has."""
    keep_output: tuple[str, ...] = ("--log-opt", "max-size=10m")
    """Arguments that keep the output of a service within a bound."""
    install: str = ""
    """What helps when the command is missing."""
    start: str = ""
    """What helps when the engine does not answer."""


DOCKER: Final = Dialect(
    name="docker",
    network="bridge",
    info=("info", "--format", "{{json .}}"),
    remove=("rm", "--force", "--volumes"),
    commit=("commit",),
    detached_by_disconnecting=False,
    install="install Docker (on Debian: apt-get install docker.io)",
    start="start it with `systemctl start docker`, or set DOCKER_HOST to a running engine",
)
PODMAN: Final = Dialect(
    name="podman",
    network="podman",
    info=("info", "--format", "json"),
    remove=("rm", "--force", "--volumes", "--time", "0"),
    commit=("commit", "--quiet"),
    detached_by_disconnecting=True,
    extra_run=("--image-volume", "ignore"),
    child_of_caller=True,
    install="install Podman (on Debian: apt-get install podman)",
    start="see `podman info`",
)
DIALECTS: Final[Mapping[str, Dialect]] = {"docker": DOCKER, "podman": PODMAN}
