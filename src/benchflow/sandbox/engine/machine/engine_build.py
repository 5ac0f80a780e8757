"""Environments from Dockerfiles: one build per digest, however many ask, in this process or in others.

The digest covers every file that the build sees, the Dockerfile's name and the build arguments. What was built
carries it as its tag, so a second build is a look-up.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio

from benchflow.errors import EnvironmentFailure, UnsupportedError, UsageError
from benchflow.files.locks import held_lock
from benchflow.sandbox.engine.machine.engine_client import EngineClient, last_words
from benchflow.sandbox.engine.machine.engine_images import EngineImages, find_image
from benchflow.sandbox.engine.machine.ownership import PURPOSE
from benchflow.sandbox.host_process import run_process
from benchflow.sandbox.images.build.bases import SCRATCH
from benchflow.sandbox.images.build.stage_plan import plan_build
from benchflow.sandbox.images.distribution.pull import pinned_reference
from benchflow.sandbox.images.dockerfile.dockerignore import context_rules
from benchflow.sandbox.images.dockerfile.instructions import parse_dockerfile
from benchflow.sandbox.protocol import Image
from benchflow.sandbox.pulling import PullSettings

REPOSITORY: Final = "benchcube/environment"
_LAST_LINES: Final = 12
_NOT_PULLED: Final = re.compile(
    r"initializing source docker://|short-name|pull access denied|failed to resolve source metadata"
    r"|manifest (for .* not found|unknown)|^Get \"https?://.*/v2/"
)
"""How engines say that they have no base image and get none."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of a build."""

    timeout_sec: float | None = None
    build_args: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None
    """The engine's network for RUN instructions; None leaves it to the engine."""
    target: str | None = None
    """The stage to stop at."""
    pull: PullSettings = field(default_factory=PullSettings)
    """How base images are pulled."""


class Builder:
    """Builds on one engine; the locks of other processes are files below `state`."""

    def __init__(self, client: EngineClient, images: EngineImages, state: Path) -> None:
        self._client = client
        self._images = images
        self._renewed: set[str] = set()
        """Digests of what was built with fresh base images."""
        self._locks_folder = state / "locks"

    async def build(self, context: Path, dockerfile: str, options: BuildOptions) -> Image:
        """The environment of a Dockerfile, built now or found."""
        digest = await anyio.to_thread.run_sync(context_digest, context, dockerfile, options)
        tag = f"{REPOSITORY}:{digest[:40]}"
        self._locks_folder.mkdir(parents=True, exist_ok=True)
        async with held_lock(self._locks_folder / f"{digest}.lock"):
            renew = options.pull.policy == "always" and digest not in self._renewed
            found = await find_image(self._client, tag) if not renew else None
            if found is None:
                await self._build(context, dockerfile, options, tag)
                self._renewed.add(digest)
                found = await find_image(self._client, tag)
        if found is None:
            raise EnvironmentFailure(
                f"{self._client.dialect.name} built '{context}', but the image is gone.", code="build-failed"
            )
        return found

    async def _build(self, context: Path, dockerfile: str, options: BuildOptions, tag: str) -> None:
        command, env = await self._command()
        args = [
            *command,
            "--tag",
            tag,
            "--file",
            str(context / dockerfile),
            "--label",
            f"{PURPOSE}=environment",
            *self._client.ulimits(),
        ]
        args += await self._bases(context / dockerfile, options, classic="DOCKER_BUILDKIT" in env)
        if options.network is not None:
            args += ["--network", options.network]
        if options.target is not None:
            args += ["--target", options.target]
        for name, value in options.build_args.items():
            args += ["--build-arg", f"{name}={value}"]
        try:
            done = await run_process(
                self._client.argv(*args, str(context)),
                env={**self._client.environment()[1], **env},
                timeout=options.timeout_sec,
                merge_stderr=True,
            )
        except FileNotFoundError:
            raise self._client.missing() from None
        shown = last_lines(done.stdout.decode(errors="replace"))
        if done.timed_out:
            raise EnvironmentFailure(
                f"The build of '{context / dockerfile}' exceeded its limit of {options.timeout_sec:g} s.\n{shown}",
                code="build-timeout",
            )
        if done.exit_code != 0:
            self._client.raise_if_engine_failed(done.stdout.decode(errors="replace"))
            if _NOT_PULLED.search(last_words(shown, 1000)):
                engine = self._client.dialect.name
                raise EnvironmentFailure(
                    f"{engine} could not pull the base image of '{context / dockerfile}' ({last_words(shown, 200)}); "
                    f"load it with `{engine} load`, or run on this machine's userland with "
                    "`--base-image host`.",
                    code="image-missing",
                )
            raise EnvironmentFailure(f"The build of '{context / dockerfile}' failed:\n{shown}", code="build-failed")

    async def _bases(self, dockerfile: Path, options: BuildOptions, *, classic: bool) -> list[str]:
        """Arguments for the pull policy; what a package adds to it is done before the build: pins and credentials."""
        pull, podman = options.pull, self._client.dialect.name == "podman"
        args = [f"--pull={pull.policy}"] if podman else ["--pull"] if pull.policy == "always" else []
        if not (pull.pins or pull.credentials or pull.policy == "never"):
            return args
        for name in base_images(dockerfile, options):
            reference = pinned_reference(name, pull)
            await self._images.resolve(name, pull)
            if reference.digest is not None and "@" not in name:
                if classic:
                    message = f"The base image {name} is pinned, which needs BuildKit: install docker-buildx."
                    raise UnsupportedError(message, path="benchflow.provenance.images")
                pinned = f"{reference.repository_name}@{reference.digest}"
                args += ["--build-context", f"{name}=docker-image://{pinned}"]
        return args

    async def _command(self) -> tuple[list[str], dict[str, str]]:
        """BuildKit where there is one, else the builder that every Docker has; Podman has its own."""
        if self._client.dialect.name != "docker":
            return ["build"], {}
        if (await self._client.run("buildx", "version")).exit_code == 0:
            return ["buildx", "build", "--load", "--progress", "plain"], {}
        return ["build"], {"DOCKER_BUILDKIT": "0"}


def context_digest(context: Path, dockerfile: str, options: BuildOptions) -> str:
    """A digest over everything that a build sees, and over its options."""
    if not (context / dockerfile).is_file():
        raise UsageError(f"'{context}' has no '{dockerfile}'.", code="dockerfile-missing", file=dockerfile)
    total = hashlib.sha256()
    arguments = sorted(options.build_args.items())
    pins = sorted(options.pull.pins.items())
    total.update(repr((dockerfile, arguments, options.target, *([pins] if pins else []))).encode())
    rules = context_rules(context, dockerfile)
    for folder, folders, names in os.walk(context, followlinks=False):
        folders.sort()
        for name in sorted([*names, *folders]):
            path = Path(folder) / name
            inside = path.relative_to(context).as_posix()
            if inside != dockerfile and rules.ignores(inside):
                continue
            status = path.lstat()
            total.update(repr((inside, stat.filemode(status.st_mode))).encode())
            if stat.S_ISREG(status.st_mode):
                with path.open("rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
            elif stat.S_ISLNK(status.st_mode):
                total.update(os.fsencode(path.readlink()))
    return total.hexdigest()


def base_images(dockerfile: Path, options: BuildOptions) -> list[str]:
    """The images that a Dockerfile names in FROM, without its own stages."""
    parsed = parse_dockerfile(dockerfile.read_text(encoding="utf-8"), dockerfile.name)
    plan = plan_build(parsed, options.build_args, options.target)
    return list(dict.fromkeys(stage.image for stage in plan.stages if stage.parent is None and stage.image != SCRATCH))


def last_lines(text: str) -> str:
    """The end of a build's output."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:])
