"""Environments from Dockerfiles: one build per digest, however many ask, in this process or in others.

The digest covers every file that the build sees, the Dockerfile's name and the build arguments. What was built
carries it as its tag, so a second build is a look-up.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import anyio

from benchflow.errors import EnvironmentFailure, UnsupportedError, UsageError
from benchflow.files.locks import held_lock
from benchflow.files.redaction import make_redactor
from benchflow.files.scratch import scratch
from benchflow.sandbox.bounded_output import BoundedOutput
from benchflow.sandbox.engine.machine import build_watch
from benchflow.sandbox.engine.machine.engine_client import EngineClient, last_words
from benchflow.sandbox.engine.machine.engine_images import SUBSTITUTES, EngineImages, find_image
from benchflow.sandbox.engine.machine.ownership import PURPOSE
from benchflow.sandbox.host_process import (
    DEFAULT_OUTPUT,
    Completed,
    end,
    open_process,
    pump,
    run_process,
    shell_code,
)
from benchflow.sandbox.images.build.bases import SCRATCH
from benchflow.sandbox.images.build.stage_plan import BuildPlan, plan_build
from benchflow.sandbox.images.distribution.pull import pinned_reference
from benchflow.sandbox.images.dockerfile.dockerignore import context_rules
from benchflow.sandbox.images.dockerfile.instructions import DockerfileError, parse_dockerfile
from benchflow.sandbox.machine_settings.allowance import Laid, allows
from benchflow.sandbox.machine_settings.collected import Settings, current, lay, trust_and_proxies
from benchflow.sandbox.protocol import Image
from benchflow.sandbox.pulling import PullSettings

REPOSITORY: Final = "benchcube/environment"
_LAST_LINES: Final = 12
_MARKER: Final = "/dev/.benchcube-build"
"""Where a folder that only this build mounts appears, by which its working containers are known."""
_STOPPING_SEC: Final = 120.0
_STEP: Final = re.compile(r"^(?:\[\d+/\d+\] )?(?:STEP|Step) \d+/\d+ ?: (.*)$", re.MULTILINE)
_AT_LINE: Final = re.compile(r"^\S*Dockerfile\S*:(\d+)$", re.MULTILINE)
_NOT_PULLED: Final = re.compile(
    r"initializing source docker://|short-name|pull access denied|failed to resolve source metadata"
    r"|manifest (for .* not found|unknown)|\b(Get|Head) \"https?://.*/v2/|no stage or image found with that name"
)
"""How engines say that they have no base image and get none."""
_RUNTIME: Final = """#!{python} -IS
import json, os, sys
for option, value in zip(sys.argv, sys.argv[1:]):
    if option in ("-b", "--bundle"):
        with open(value + "/config.json") as file:
            spec = json.load(file)
        own = {{word.partition("=")[0] for word in spec["process"]["env"]}}
        given = {variables!r}
        spec["process"]["env"] += [f"{{name}}={{text}}" for name, text in given.items() if name not in own]
        with open(value + "/config.json", "w") as file:
            json.dump(spec, file)
os.execv({runtime!r}, [{runtime!r}, *sys.argv[1:]])
"""
_NOT_GIVEN: Final = (
    "docker was given this machine's proxies only: it cannot mount certificates and settings for pip, uv, npm and apt "
    "for a build without changes to the Dockerfile. podman and local can."
)


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
        self._begun: set[str] = set()
        """Dockerfiles of which one build has ended."""
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
                await self._build_in_turn(context, dockerfile, options, tag)
                self._renewed.add(digest)
                found = await find_image(self._client, tag)
        if found is None:
            raise EnvironmentFailure(
                f"{self._client.dialect.name} built '{context}', but the image is gone.", code="build-failed"
            )
        return await self._with_base(found, context / dockerfile, options)

    async def _build_in_turn(self, context: Path, dockerfile: str, options: BuildOptions, tag: str) -> None:
        """The first build of a Dockerfile goes alone: the others then find its layers in the engine's cache.

        Packages of one benchmark often have the same Dockerfile, and engines do not notice that two builds that run at
        once install the same.
        """
        text = (context / dockerfile).read_bytes()
        key = hashlib.sha256(repr((text, sorted(options.build_args.items()), options.target)).encode()).hexdigest()
        if key not in self._begun:
            async with held_lock(self._locks_folder / f"first-{key}.lock"):
                if key not in self._begun:
                    try:
                        return await self._build(context, dockerfile, options, tag)
                    finally:
                        self._begun.add(key)
        return await self._build(context, dockerfile, options, tag)

    async def _with_base(self, built: Image, dockerfile: Path, options: BuildOptions) -> Image:
        """The image with the name and the digest of what the Dockerfile starts from, as far as they are known."""
        try:
            name = final_base(planned(dockerfile, options))
        except (DockerfileError, UnsupportedError):  # an engine builds what the local sandbox does not know
            return replace(built, base_digest=None)
        reference = pinned_reference(name, options.pull) if name != SCRATCH else None
        if reference is None:
            return replace(built, base=name, base_digest=None)
        asked = f"{reference.repository_name}@{reference.digest}" if reference.digest is not None else name
        found = await find_image(self._client, asked)
        return replace(built, base=name, base_digest=found.base_digest if found is not None else reference.digest)

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
        settings = machine_settings()
        text = (context / dockerfile).read_text(encoding="utf-8", errors="replace")
        env = {**self._client.environment()[1], **env}
        done = await self._run([*args, str(context)], lay(settings, "public"), env, options.timeout_sec)
        shown = make_redactor(settings.secrets).text(last_lines(done.stdout.decode(errors="replace")))
        if done.timed_out:
            raise EnvironmentFailure(
                f"The build of '{context / dockerfile}' exceeded its limit of {options.timeout_sec:g} s.\n{shown}",
                code="build-timeout",
                file=dockerfile,
                line=failed_line(text, done.stdout.decode(errors="replace")),
            )
        if done.exit_code != 0:
            self._client.raise_if_engine_failed(done.stdout.decode(errors="replace"))
            if _NOT_PULLED.search(last_words(shown, 1000)):
                engine = self._client.dialect.name
                raise EnvironmentFailure(
                    f"{engine} could not pull an image of '{context / dockerfile}' ({last_words(shown, 200)}); "
                    f"load it with `{engine} load`. {SUBSTITUTES}",
                    code="image-missing",
                )
            line = failed_line(text, done.stdout.decode(errors="replace"))
            where = f"'{context / dockerfile}'" + (f" at line {line}" if line is not None else "")
            hint = f"\n{_NOT_GIVEN}" if allows("build") and self._client.dialect.name == "docker" else ""
            message = f"The build of {where} failed:\n{shown}{hint}"
            raise EnvironmentFailure(message, code="build-failed", path="environment", file=dockerfile, line=line)

    async def _run(self, args: list[str], given: Laid, env: Mapping[str, str], timeout: float | None) -> Completed:
        """Build to the end, with this machine's settings as far as the engine can be given them.

        Docker takes the proxies only, and so does an engine on another machine. Podman has the proxies already, and
        would leave a container and a process behind when it is stopped: `build_watch` runs it and removes them.
        """
        if self._client.dialect.name == "docker" or not self._client.on_this_machine:
            proxies = {name: value for name, value in given.env.items() if name.lower().endswith("_proxy")}
            words = [part for name in proxies for part in ("--build-arg", name)]
            argv = self._client.argv(*args[:-1], *words, args[-1])
            try:
                return await run_process(argv, env={**env, **proxies}, timeout=timeout, merge_stderr=True)
            except FileNotFoundError:
                raise self._client.missing() from None
        with scratch("build-") as folder:
            marker = folder / "marker"
            marker.mkdir()
            mounts = [f"{mount.source}:{mount.target}:ro" for mount in given.mounts]
            volumes = [part for text in (f"{marker}:{_MARKER}:ro", *mounts) for part in ("--volume", text)]
            runtime = ["--runtime", str(await self._runtime(folder, given.env))] if given.env else []
            argv = self._client.argv(*runtime, *args[:-1], *volumes, args[-1])
            engine = str(len(self._client.argv()))
            program = [sys.executable, "-I", "-S", build_watch.__file__, str(marker), engine, *argv]
            return await _watched(program, env, timeout)

    async def _runtime(self, folder: Path, variables: Mapping[str, str]) -> Path:
        """A program that adds variables to a container before the engine's own runtime starts it.

        Podman has no other way to give commands of a build variables that get into neither the image nor its history.
        """
        real = await self._client.ask("info", "--format", "{{.Host.OCIRuntime.Path}}")
        program = folder / "runtime"
        program.write_text(_RUNTIME.format(python=sys.executable, runtime=real, variables=dict(variables)))
        program.chmod(0o700)
        return program

    async def _bases(self, dockerfile: Path, options: BuildOptions, *, classic: bool) -> list[str]:
        """Arguments for the pull policy. What a package adds to it is done before the build, which then pulls nothing
        again: it has neither the pins nor the credentials.
        """
        pull, podman = options.pull, self._client.dialect.name == "podman"
        if not (pull.pins or pull.credentials or pull.policy == "never"):
            return [f"--pull={pull.policy}"] if podman else ["--pull"] if pull.policy == "always" else []
        args = ["--pull=never" if pull.policy == "never" else "--pull=missing"] if podman else []
        for name in base_images(planned(dockerfile, options)):
            digest = pinned_reference(name, pull).digest
            pinned = await self._images.resolve(name, pull)
            if digest is None or "@" in name:
                continue
            if not classic:
                args += ["--build-context", f"{name}=docker-image://{pinned.base}"]
            elif (await self._images.resolve(name, replace(pull, pins={}))).reference != pinned.reference:
                # The classic builder takes what the name means on the engine, so that must be the pinned image.
                message = f"The image {name} is not the one with the pinned digest {digest}."
                raise EnvironmentFailure(message, code="image-digest-differs", path="environment")
        return args

    async def _command(self) -> tuple[list[str], dict[str, str]]:
        """BuildKit where there is one, else the builder that every Docker has; Podman has its own."""
        if self._client.dialect.name != "docker":
            return ["build"], {}
        if (await self._client.run("buildx", "version")).exit_code == 0:
            return ["buildx", "build", "--load", "--progress", "plain"], {}
        return ["build"], {"DOCKER_BUILDKIT": "0"}


async def _watched(argv: list[str], env: Mapping[str, str], timeout: float | None) -> Completed:
    """Run a build that ends when its standard input does, also when this task is cancelled or out of time."""
    output = BoundedOutput(DEFAULT_OUTPUT)
    started = time.monotonic()
    process = await open_process(argv, stdin=True, env=env, merge_stderr=True)
    try:
        with anyio.move_on_after(timeout) as limit:
            await pump(process, None, output.add)
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None and process.stdin is not None:
                await process.stdin.aclose()
                with anyio.move_on_after(_STOPPING_SEC):
                    await process.wait()
            await end(process)
    code = shell_code(process.returncode or 0)
    spent = time.monotonic() - started
    return Completed(code, output.kept("stdout"), b"", spent, limit.cancelled_caught, output.dropped)


def machine_settings() -> Settings:
    """What commands of a build may use of this machine."""
    return current() if allows("build") else trust_and_proxies()


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


def failed_line(dockerfile: str, output: str) -> int | None:
    """The line of the instruction at which a build ended, from what the engine printed."""
    named = _AT_LINE.findall(output)
    if named:
        return int(named[-1])
    steps = _STEP.findall(output)
    if not steps:
        return None
    wanted = " ".join(steps[-1].split())
    try:
        instructions = parse_dockerfile(dockerfile, "Dockerfile").instructions
    except DockerfileError:
        return None
    return next((item.line for item in instructions if " ".join(str(item).split())[:80] == wanted[:80]), None)


def planned(dockerfile: Path, options: BuildOptions) -> BuildPlan:
    """The stages of a Dockerfile with nothing but the instructions that name images.

    What else an engine supports is its own matter.
    """
    parsed = parse_dockerfile(dockerfile.read_text(encoding="utf-8"), dockerfile.name)
    plain = (
        replace(item, flags=tuple(flag for flag in item.flags if flag[0] == "from")) for item in parsed.instructions
    )
    kept = tuple(item for item in plain if item.keyword in {"ARG", "FROM", "COPY"})
    return plan_build(replace(parsed, instructions=kept), options.build_args, options.target)


def base_images(plan: BuildPlan) -> list[str]:
    """The images that a Dockerfile names in FROM and COPY --from, without its own stages."""
    found = [stage.image for stage in plan.stages if stage.parent is None and stage.image != SCRATCH]
    for item in (item for stage in plan.stages[: plan.target + 1] for item in stage.body):
        found += [value for _, value in item.flags if plan.find(value) is None]
    return list(dict.fromkeys(found))


def final_base(plan: BuildPlan) -> str:
    """The image from which the target starts, through all stages."""
    stage = plan.stages[plan.target]
    while stage.parent is not None:
        stage = plan.stages[stage.parent]
    return stage.image


def last_lines(text: str) -> str:
    """The end of a build's output."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:])
