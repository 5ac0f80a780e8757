"""From a task to a sandbox: the gate first, then the image, then the spec.

`choose_backend` finds the backend, `prepare` refuses what it does not support before anything starts and returns
everything a sandbox of the task is made from. What a compose file adds to the sandbox is at the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

import anyio.to_thread

from benchflow.errors import BenchflowError, EnvironmentFailure, InfrastructureFailure, Issue, PackageError, UsageError
from benchflow.record import Fidelity, Isolation
from benchflow.sandbox.backends import ENGINES, LOCAL, load_backend, status_of
from benchflow.sandbox.machine_settings.allowance import phase_settings
from benchflow.sandbox.protocol import Composition, Healthcheck, Image, Limits, SandboxBackend, SandboxSpec
from benchflow.sandbox.pulling import PullSettings
from benchflow.sandbox.task_policy import (
    DOCKERFILE,
    asset_mounts,
    declared_image,
    healthcheck_of,
    needed_capabilities,
    network_policy,
    package_pulls,
    resolve_variables,
    sandbox_limits,
    working_folder,
)
from benchflow.task.config.task_config import MAIN_SERVICE
from benchflow.task.package import TaskPackage, load_package
from benchflow.task.runtime_capabilities import (
    COMPOSE_FILES,
    UnsupportedTaskFeature,
    UnsupportedTaskFeatureError,
    validate_task_runtime_support,
)
from benchflow.task.runtime_view import TaskRuntimeView
from benchflow.task.taken import COPIES

if TYPE_CHECKING:
    from benchflow.sandbox.services import ServicesPlan

AUTO: Final = "auto"
HOST: Final = "host"
IMAGE_MISSING: Final = "image-missing"
_BUILD_FAILURES: Final = frozenset({"build-failed", "build-timeout"})
_REMEMBERED_SEC: Final = 60.0
_failures: Final[WeakKeyDictionary[SandboxBackend, dict[object, tuple[EnvironmentFailure, float]]]] = (
    WeakKeyDictionary()
)
"""Builds that failed a moment ago, and until when they are not tried again."""
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class ChosenIsolation:
    """What a verifier sees of the agent's changes, chosen by someone other than the package."""

    isolation: Isolation
    full: float | None = None
    """The reward of the package's own oracle, where a proof chose."""
    note: Issue | None = None
    """A warning for the record, where nothing could be proven."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """The specification of a task's sandbox, and what has to happen once it runs."""

    view: TaskRuntimeView
    spec: SandboxSpec
    healthcheck: Healthcheck | None = None
    services: ServicesPlan | None = None
    chosen: Mapping[str | None, ChosenIsolation] = field(default_factory=dict)
    """By step: the isolation of its verifier, where the user or a proof chose it."""

    @property
    def base(self) -> str:
        """The base of the environment, for the record."""
        return self.spec.image.base if self.spec.image is not None else HOST

    @property
    def digest(self) -> str:
        """What the environment consists of: the digest of its image, or else the state of the machine's programs."""
        image = self.spec.image
        return image.digest if image is not None and image.digest != HOST else userland()

    @property
    def fidelity(self) -> Fidelity:
        """Whether that is what the package declares, for the record."""
        return self.spec.image.fidelity if self.spec.image is not None else "exact"


_USERLAND: Final = ("/etc/os-release", "/usr/bin", "/usr/lib", "/usr/local/bin", "/usr/local/lib")


def userland() -> str:
    """An identifier of this machine's own programs, which changes when they are updated."""
    times = []
    for name in _USERLAND:
        try:
            times.append(Path(name).stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return f"{HOST}:{'.'.join(map(str, times))}"


def task_package(task: TaskPackage | Path | str) -> TaskPackage:
    """A valid package; its first problem is a `PackageError`."""
    package = task if isinstance(task, TaskPackage) else load_package(task)
    error = next((issue for issue in package.issues if issue.severity == "error"), None)
    if error is not None:
        raise PackageError(error.message, code=error.code, path=error.path, file=error.file, line=error.line)
    return package


async def taken_package(task: TaskPackage | Path | str) -> TaskPackage:
    """A valid package with its files in a copy, so that what was planned is what runs; see `benchflow.task.taken`.

    Raises `PackageError`: its first problem, or `package-changed` when the folder is not what was loaded.
    """
    package = task_package(task)
    known = COPIES.known(package)
    return known if known is not None else await anyio.to_thread.run_sync(COPIES.take, package)


def needs_image(package: TaskPackage) -> bool:
    """Whether the package contains or names its own image."""
    named = package.config is not None and package.config.environment.docker_image is not None
    return named or DOCKERFILE in package.files or compose_file(package) is not None


def compose_file(package: TaskPackage) -> str | None:
    """The compose file of the package, relative to it, if it brings one."""
    return next((f"environment/{name}" for name in COMPOSE_FILES if f"environment/{name}" in package.files), None)


async def choose_backend(
    package: TaskPackage,
    sandbox: str = AUTO,
    *,
    base_image: str | None = None,
    pull: PullSettings | None = None,
) -> SandboxBackend:
    """The backend called `sandbox`; `auto` takes `local`, or where it cannot run the package, an engine that can.

    A compose file is an engine's if one is running. With a substitute for the base image (`base_image`), and without an
    image, `auto` stays local. The backend pulls images as `pull` says.
    """
    backend = await _backend(package, sandbox, base_image)
    if pull is not None:
        backend.pulling = pull
    return backend


def start_ahead(
    package: TaskPackage, sandbox: str, *, base_image: str | None, pull: PullSettings | None
) -> SandboxBackend | None:
    """The backend that `choose_backend` would choose, with its helper process starting; None where that needs a look at
    engines or a plugin, or where it does not support the package. The start takes as long as loading the modules of a
    rollout, and needs none of them."""
    if not package.valid or sandbox not in (AUTO, LOCAL.name):
        return None
    if sandbox == AUTO and compose_file(package) is not None and base_image is None:
        return None
    if validate_task_runtime_support(package, sandbox=LOCAL.name):
        return None
    from benchflow.sandbox.local.local_backend import LocalBackend

    backend = LocalBackend()
    if pull is not None:
        backend.pulling = pull
    backend.start_ahead(host=not needs_image(package))
    return backend


async def _backend(package: TaskPackage, sandbox: str, base_image: str | None) -> SandboxBackend:
    if sandbox != AUTO:
        return load_backend(sandbox)
    for name in possible_backends(package, base_image):
        backend = load_backend(name)
        status = await status_of(backend)
        if status.usable and needed_capabilities(package.view).keys() <= status.capabilities:
            return backend
        await backend.close()
    return load_backend(LOCAL.name)  # which says why it cannot


def possible_backends(package: TaskPackage, base_image: str | None) -> tuple[str, ...]:
    """Which backends `auto` considers, in this order; none where only `local` could do it: it is asked when it is
    used."""
    if base_image is not None or not needs_image(package):
        return ()
    # Compose files are written for engines, and `local` honours part of them.
    order = (*ENGINES, LOCAL.name) if compose_file(package) is not None else (LOCAL.name, *ENGINES)
    return tuple(name for name in order if not validate_task_runtime_support(package, sandbox=name))


async def prepare(
    package: TaskPackage,
    backend: SandboxBackend,
    *,
    base_image: str | None = None,
    machine: Mapping[str, str] | None = None,
) -> Preparation:
    """Check everything, build or find the image, and describe the sandbox. The view is that of the taken package.

    Raises `UnsupportedTaskFeatureError` before anything is built when the backend, as such or on this
    machine, does not support the task; `EnvironmentFailure` if its image is not available. A build that failed less
    than a minute ago is not tried again: its failure is raised once more.
    """
    package = await taken_package(package)
    # A job builds ahead, then proves an isolation, then runs the agent: what takes minutes to fail would fail thrice.
    known, now = _failures.setdefault(backend, {}), time.monotonic()
    key = (package.content_digest, base_image, frozenset((os.environ if machine is None else machine).items()))
    if key in known and now < known[key][1]:
        error = known[key][0]
        raise EnvironmentFailure(str(error), code=error.code, path=error.path, file=error.file, line=error.line)
    try:
        return await _prepare(package, backend, base_image=base_image, machine=machine)
    except EnvironmentFailure as error:
        if error.code in _BUILD_FAILURES:
            known[key] = error, time.monotonic() + _REMEMBERED_SEC
        raise


async def _prepare(
    package: TaskPackage, backend: SandboxBackend, *, base_image: str | None, machine: Mapping[str, str] | None
) -> Preparation:
    variables = os.environ if machine is None else machine
    view = package.view
    capabilities = await _gate(package, view, backend)
    environment = view.config.environment
    env = resolve_variables(environment.env, variables)
    mounts = asset_mounts(view, "agent")
    if base_image not in (None, HOST):
        await require_base_image(base_image, backend)
    pull = package_pulls(view, backend.pulling, variables)
    composition = await _composition(package, view, backend, base_image, {**variables, **env}, pull)
    image = composition.image if composition is not None else await _image(package, view, backend, base_image, pull)
    services = None
    if view.manifest is not None:
        from benchflow.sandbox.services import plan_services

        shared = bool(package.shared.keys() - {profile.path for profile in package.profiles.values()})
        services = plan_services(view.manifest, image, variables, task_id=view.name, shared=shared)
        selection = view.manifest.task_selection
        if selection is not None and selection.mechanism == "env_var" and selection.inject_into == "exec":
            env = {selection.key: view.name, **env}
    user = view.config.agent.user
    network = network_policy(view, "environment")
    given = phase_settings("agent", network.mode, variables)
    spec = SandboxSpec(
        image=image,
        limits=sandbox_limits(environment, capabilities),
        network=network,
        env={**given.env, **env},
        workdir=working_folder(environment.workdir, image.workdir if image is not None else None),
        user=str(user) if user is not None else None,
        mounts=(*mounts, *given.mounts),
        labels={"benchflow.task": view.name, "benchflow.digest": view.digest},
    )
    check = healthcheck_of(environment.healthcheck) or (image.healthcheck if image is not None else None)
    if composition is not None:
        spec = _composed(spec, composition, workdir=environment.workdir)
        check = healthcheck_of(environment.healthcheck) or composition.healthcheck or composition.image.healthcheck
    return Preparation(view, spec, check, services)


async def _gate(package: TaskPackage, view: TaskRuntimeView, backend: SandboxBackend) -> frozenset[str]:
    """What the backend supports on this machine; everything the task needs beyond that is refused at once."""
    features = validate_task_runtime_support(package, sandbox=backend.name, capabilities=backend.declared)
    if features:
        raise UnsupportedTaskFeatureError(tuple(features))
    status = await status_of(backend)
    if not status.usable:
        reason = status.reason or "it does not work on this machine"
        raise InfrastructureFailure(f"The sandbox {backend.name} is not usable: {reason}", code="sandbox-unusable")
    how = {missing.capability: missing.how for missing in status.missing}
    lacking = [
        UnsupportedTaskFeature(
            path, f"this machine lacks {name}" + (f": {how[name]}" if name in how else ""), backend.name
        )
        for name, path in needed_capabilities(view).items()
        if name not in status.capabilities
    ]
    if lacking:
        raise UnsupportedTaskFeatureError(tuple(lacking))
    return status.capabilities


async def _composition(
    package: TaskPackage,
    view: TaskRuntimeView,
    backend: SandboxBackend,
    base_image: str | None,
    variables: Mapping[str, str],
    pull: PullSettings,
) -> Composition | None:
    """The services of the package's compose file; every service that the package names is among them."""
    file = compose_file(package)
    composition = None
    if file is not None and view.environment_dir is not None:
        from benchflow.sandbox.composed.composition import compose_variables

        named, has_dockerfile = declared_image(view), DOCKERFILE in package.files
        image = None
        if named is not None:
            image = await _named_image(backend, named, base_image, pull, has_dockerfile=has_dockerfile)
        try:
            composition = await backend.compose(
                view.environment_dir / file.removeprefix("environment/"),
                image=image,
                variables={**variables, **compose_variables(view.environment_dir, view.config.environment)},
                timeout_sec=view.config.environment.build_timeout_sec,
                base_image=base_image,
                **_pulling(backend, pull),
            )
        except BenchflowError as error:
            error.file = f"environment/{error.file}" if error.file else None
            raise
    _require_services(view, composition.services if composition is not None else (), file)
    return composition


async def require_base_image(name: str, backend: SandboxBackend) -> None:
    """A substitute that does not exist is wrong usage, whether the package needs one or not."""
    try:
        await backend.resolve(name)
    except EnvironmentFailure as error:
        if error.code != IMAGE_MISSING:
            raise
        raise UsageError(f"--base-image {name}: {error}", code="base-image") from error


async def _image(
    package: TaskPackage, view: TaskRuntimeView, backend: SandboxBackend, base_image: str | None, pull: PullSettings
) -> Image | None:
    """The image of a task; None for this machine's userland, which a package without image asks for."""
    context = view.environment_dir if DOCKERFILE in package.files else None
    timeout = view.config.environment.build_timeout_sec
    try:
        return await find_image(
            backend, declared_image(view), context, timeout_sec=timeout, base_image=base_image, pull=pull
        )
    except EnvironmentFailure as error:
        error.file = f"environment/{error.file}" if error.file else None
        raise


async def find_image(
    backend: SandboxBackend,
    name: str | None,
    context: Path | None,
    *,
    timeout_sec: float,
    base_image: str | None,
    pull: PullSettings,
) -> Image | None:
    """The image called `name`, else the one that the Dockerfile in `context` builds, else a substitute.

    None if there is neither a name nor a Dockerfile. An `EnvironmentFailure` says why none of them is available.
    """
    if name is not None:
        named = await _named_image(backend, name, base_image, pull, has_dockerfile=context is not None)
        if named is not None:
            return named
    if context is None:
        return None
    options: dict[str, object] = {"base_image": base_image} if base_image is not None else {}
    options |= _pulling(backend, pull)
    try:
        built = await backend.build(context, dockerfile="Dockerfile", timeout_sec=timeout_sec, **options)
    except EnvironmentFailure as error:
        if name is None or error.code != IMAGE_MISSING:
            raise
        message = f"The image {name} is not available, and the Dockerfile cannot be built: {error}"
        raise EnvironmentFailure(
            message, code=IMAGE_MISSING, path="environment", file=error.file, line=error.line
        ) from error
    if built.fidelity == "exact":
        return replace(built, fidelity="built", instead_of=(name,) if name is not None else ())
    return built


async def _named_image(
    backend: SandboxBackend, name: str, base_image: str | None, pull: PullSettings, *, has_dockerfile: bool
) -> Image | None:
    """The image of that name, or its substitute; None if there is a Dockerfile to build instead."""
    try:
        return await backend.resolve(name, **_pulling(backend, pull))
    except EnvironmentFailure as error:
        # Public packages name the image that was built from their Dockerfile: who lacks it builds it.
        if error.code != IMAGE_MISSING:
            raise
        if has_dockerfile:
            return None
        found = await backend.substitute(name, base_image)
        if found is None:
            raise
        return found


def _pulling(backend: SandboxBackend, pull: PullSettings) -> dict[str, PullSettings]:
    """What a package adds to how a command pulls; nothing is passed where it adds nothing, as for most packages."""
    return {"pull": pull} if pull != backend.pulling else {}


def _composed(spec: SandboxSpec, composition: Composition, *, workdir: str | None) -> SandboxSpec:
    """The spec with what the file says of `main` where the package says nothing; of two limits the smaller one holds.

    `workdir` is the folder that the package declares.
    """
    image = composition.image
    return replace(
        spec,
        image=image,
        limits=_narrower(spec.limits, composition.limits),
        env={**composition.env, **spec.env},
        workdir=working_folder(workdir, composition.workdir or image.workdir),
        user=spec.user or composition.user,
        mounts=(*composition.mounts, *spec.mounts),
        labels={**composition.labels, **spec.labels},
        composition=composition,
    )


def _narrower(one: Limits, other: Limits) -> Limits:
    """Both limits at once. A compose file can declare how many processes there may be, a task only has the default."""
    return replace(
        one,
        cpus=_smaller(one.cpus, other.cpus),
        memory_mb=_smaller(one.memory_mb, other.memory_mb),
        pids=one.pids if other.pids is None else other.pids,
    )


def _smaller(one: _Number | None, other: _Number | None) -> _Number | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _require_services(view: TaskRuntimeView, services: Sequence[str], file: str | None) -> None:
    """Every service that the task names is `main` or among `services`; else a `PackageError` with its path."""
    for path, name in _named_services(view):
        if name != MAIN_SERVICE and name not in services:
            known = ", ".join((MAIN_SERVICE, *services))
            where = f"{file} has only {known}" if file else "the package has no compose file"
            raise PackageError(f"{path} names the service '{name}', but {where}.", code="unknown-service", path=path)


def _named_services(view: TaskRuntimeView) -> Iterator[tuple[str, str]]:
    """The services that verifiers, collect hooks and artifacts name, each with its path."""
    config = view.config
    scopes = [("", config.verifier, config.artifacts)]
    scopes += [
        (f"steps[{index}].", step.config.verifier, step.config.artifacts) for index, step in enumerate(view.steps)
    ]
    for prefix, verifier, artifacts in scopes:
        yield f"{prefix}verifier.service", verifier.service
        for index, hook in enumerate(verifier.collect):
            yield f"{prefix}verifier.collect[{index}].service", hook.service
        for index, artifact in enumerate(artifacts):
            yield f"{prefix}artifacts[{index}].service", artifact.service
