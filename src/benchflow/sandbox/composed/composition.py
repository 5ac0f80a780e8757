"""A compose file with the images of its services: what a backend needs to start them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.composed.compose_file import LOG_FOLDERS, Build, Condition, Service, read_compose
from benchflow.sandbox.protocol import Composition, Image, Mount, SandboxBackend
from benchflow.sandbox.pulling import PullSettings
from benchflow.task.config.task_config import MAIN_SERVICE

if TYPE_CHECKING:
    from benchflow.task.config.task_config import EnvironmentConfig


@dataclass(frozen=True, slots=True)
class Part:
    """A service with the image it runs from; `own` images are removed with the sandbox."""

    service: Service
    image: Image
    own: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """As compose has it: an entry point of the service's own sets aside the image's command too."""
        service, image = self.service, self.image
        command = tuple(service.command) if service.command is not None else None
        if service.entrypoint is not None:
            words = (*service.entrypoint, *(command or ()))
        else:
            words = (*image.entrypoint, *(image.command if command is None else command))
        if not words:
            message = f"Neither the service '{service.name}' nor its image has a command."
            raise EnvironmentFailure(message, code="service-failed")
        return words


@dataclass(frozen=True)
class ServiceComposition(Composition):
    """The services of a compose file."""

    parts: tuple[Part, ...] = ()
    """In the order of their start, without `main`."""
    needed: Mapping[str, Condition] = field(default_factory=dict)
    """What `main` waits for."""
    aliases: tuple[str, ...] = ()
    """Further names of `main`."""

    @property
    def names(self) -> list[str]:
        """Every name that a service is reached by."""
        others = [name for part in self.parts for name in (part.service.name, *part.service.aliases)]
        return [MAIN_SERVICE, *self.aliases, *others]


async def compose(
    backend: SandboxBackend,
    file: Path,
    image: Image | None,
    variables: Mapping[str, str],
    build_options: Mapping[str, object],
    pull: PullSettings | None,
) -> ServiceComposition:
    """Read a compose file, and build or find the image of each service; `image` replaces that of `main`.

    A `main` without an image is built from the Dockerfile beside the file.
    """
    services = await anyio.to_thread.run_sync(read_compose, file, variables)
    main = services.pop(MAIN_SERVICE, Service(MAIN_SERVICE))
    if main.image is None and main.build is None and await anyio.Path(file.parent / "Dockerfile").is_file():
        main = replace(main, build=Build(file.parent))
    pulling = {"pull": pull} if pull is not None else {}
    found = image or await _image_of(backend, main, build_options, pulling)
    lacks = tuple(f"{folder} of the machine, an empty folder here" for folder in main.empty_folders)
    return ServiceComposition(
        image=replace(found, lacks=(*found.lacks, *lacks)),
        empty_folders=main.empty_folders,
        mounts=tuple(Mount(bind.source, bind.target) for bind in main.binds),
        services=tuple(services),
        env=main.env,
        workdir=main.workdir,
        user=main.user,
        limits=main.limits,
        healthcheck=main.healthcheck,
        labels=main.labels,
        parts=tuple([Part(each, await _image_of(backend, each, build_options, pulling)) for each in services.values()]),
        needed=main.depends_on,
        aliases=main.aliases,
    )


async def _image_of(
    backend: SandboxBackend, service: Service, options: Mapping[str, object], pulling: Mapping[str, PullSettings]
) -> Image:
    build = service.build
    if build is not None:
        own = {"build_args": build.args, "target": build.target}
        built = await backend.build(build.context, dockerfile=build.dockerfile, **own, **options, **pulling)
        return replace(built, fidelity="built") if built.fidelity == "exact" else built
    if service.image is None:
        message = "Neither the compose file nor the package gives `main` an image."
        raise EnvironmentFailure(message, code="image-missing")
    return await backend.resolve(service.image, **pulling)


def compose_variables(context: Path, environment: EnvironmentConfig) -> dict[str, str]:
    """What a compose file may use without declaring it: the names that Harbor gives to its own."""
    verifier, agent, artifacts = LOG_FOLDERS
    return {
        "CONTEXT_DIR": str(context),
        "MAIN_IMAGE_NAME": "main",
        "TEST_DIR": "/tests",
        "HOST_VERIFIER_LOGS_PATH": verifier,
        "ENV_VERIFIER_LOGS_PATH": verifier,
        "HOST_AGENT_LOGS_PATH": agent,
        "ENV_AGENT_LOGS_PATH": agent,
        "HOST_ARTIFACTS_PATH": artifacts,
        "ENV_ARTIFACTS_PATH": artifacts,
        "CPUS": f"{environment.cpus:g}",
        "MEMORY": f"{environment.memory_mb}M",
    }
