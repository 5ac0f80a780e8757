"""What a compose file adds to the sandbox of a task, and which of its services the task names. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from benchflow.errors import PackageError
from benchflow.sandbox.protocol import Composition, Limits, SandboxSpec
from benchflow.sandbox.task_policy import working_folder
from benchflow.task.config.task_config import MAIN_SERVICE

_Number = TypeVar("_Number", int, float)

if TYPE_CHECKING:
    from benchflow.task.runtime_view import TaskRuntimeView


def composed(spec: SandboxSpec, composition: Composition, *, workdir: str | None) -> SandboxSpec:
    """The spec with what the file says of `main` where the package says nothing; of two limits the smaller one holds.

    `workdir` is the folder that the package declares.
    """
    image = composition.image
    return replace(
        spec,
        image=image,
        limits=narrower(spec.limits, composition.limits),
        env={**composition.env, **spec.env},
        workdir=working_folder(workdir, composition.workdir or image.workdir),
        user=spec.user or composition.user,
        labels={**composition.labels, **spec.labels},
        composition=composition,
    )


def narrower(one: Limits, other: Limits) -> Limits:
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


def require_services(view: TaskRuntimeView, services: Sequence[str], file: str | None) -> None:
    """Every service that the task names is `main` or among `services`; else a `PackageError` with its path."""
    for path, name in named_services(view):
        if name != MAIN_SERVICE and name not in services:
            known = ", ".join((MAIN_SERVICE, *services))
            where = f"{file} has only {known}" if file else "the package has no compose file"
            raise PackageError(f"{path} names the service '{name}', but {where}.", code="unknown-service", path=path)


def named_services(view: TaskRuntimeView) -> Iterator[tuple[str, str]]:
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
