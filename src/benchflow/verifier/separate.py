"""Verification in a fresh sandbox: of the verifier's own environment or the task's pristine one.

Only declared paths are taken over, to the same absolute paths, as regular files and folders, within a limit.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio.to_thread

from benchflow.environment import Environment
from benchflow.errors import Issue, SandboxFailure
from benchflow.files.scratch import scratch
from benchflow.sandbox.envvars import resolve_variables
from benchflow.sandbox.policy import asset_mounts, network_policy, sandbox_limits, working_folder
from benchflow.sandbox.protocol import Image, NetworkPolicy, Sandbox, SandboxSpec
from benchflow.task.config import MAIN_SERVICE, EnvironmentConfig
from benchflow.verifier.scope import Scope

ARTIFACTS: Final = "/logs/artifacts"
MAX_BYTES: Final = 1 << 30
MAX_FILES: Final = 100_000
_MEGABYTE: Final = 1 << 20
_TIMEOUT_SEC: Final = 60.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """A path that is taken over."""

    source: str
    exclude: tuple[str, ...] = ()
    max_bytes: int = MAX_BYTES
    service: str = MAIN_SERVICE


def transfers(scope: Scope, workdir: str) -> list[Transfer]:
    """All declared paths: artifacts, transfer paths, and the artifacts folder itself."""
    found = {(MAIN_SERVICE, ARTIFACTS): Transfer(ARTIFACTS)}
    for artifact in scope.artifacts:
        source = artifact.source if artifact.source.startswith("/") else f"{workdir}/{artifact.source}"
        found[artifact.service, source] = Transfer(source.rstrip("/"), artifact.exclude, service=artifact.service)
    wiring = scope.view.namespace.verifier
    for source in wiring.inputs if wiring is not None else ():
        if source.startswith("/"):
            found.setdefault((MAIN_SERVICE, source), Transfer(source.rstrip("/")))
    for item in wiring.transfer if wiring is not None else ():
        limit = int(item.max_mb * _MEGABYTE) if item.max_mb is not None else MAX_BYTES
        found[MAIN_SERVICE, item.source] = Transfer(item.source.rstrip("/"), item.exclude, limit)
    return list(found.values())


async def carry_over(source: Sandbox, target: Sandbox, items: Iterable[Transfer], *, services: Sandbox) -> list[Issue]:
    """Copy the paths that exist from one sandbox to the same places in another; a note about each that could not be.

    What belongs to another service than `main` is taken from `services`, the sandbox in which they run.
    """
    notes = []
    for item in items:
        with scratch("transfer-") as folder:
            copy = folder / "copy"
            place = source if item.service == MAIN_SERVICE else services.service(item.service)
            try:
                await place.download(item.source, copy, max_bytes=item.max_bytes, max_files=MAX_FILES)
            except SandboxFailure as error:
                if error.code in ("refused", "too-large"):
                    notes.append(Issue("not-transferred", "warning", item.source, f"{item.source}: {error}"))
                continue
            await anyio.to_thread.run_sync(_strip, copy, item.exclude)
            if copy.exists():
                await target.exec(["rm", "-rf", "--", item.source], user="root", cwd="/", timeout=_TIMEOUT_SEC)
                await target.upload(copy, item.source)
    return notes


def _strip(copy: Path, exclude: tuple[str, ...]) -> None:
    """Remove links and what is excluded, by name or by path below the source."""
    pending = [(str(copy), "")] if copy.is_dir() else []
    while pending:
        folder, prefix = pending.pop()
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            name, relative = entry.name, prefix + entry.name
            inner = entry.is_dir(follow_symlinks=False)
            unwanted = any(fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(relative, pattern) for pattern in exclude)
            if unwanted and inner:
                shutil.rmtree(entry.path)
            elif unwanted or entry.is_symlink():
                Path(entry).unlink()
            elif inner:
                pending.append((entry.path, f"{relative}/"))


async def verifier_spec(
    environment: Environment, scope: Scope, machine: Mapping[str, str], base_image: str | None
) -> SandboxSpec:
    """What the verifier's own sandbox is made from."""
    spec = environment.preparation.spec
    own = scope.config.environment
    image = await _image(environment, scope, own, base_image)
    fallback = network_policy(scope.view, "verifier")
    if own is not None and "network_mode" in own.declared:
        fallback = _declared_network(own)
    changed = replace(
        spec,
        image=image,
        network=scope.network(fallback),
        user=None,
        mounts=asset_mounts(scope.view, "verifier"),
        composition=spec.composition if own is None and image == spec.image else None,
    )
    if own is None:
        return changed
    status = await environment.backend.status()
    return replace(
        changed,
        limits=sandbox_limits(own, status.capabilities),
        env=resolve_variables(own.env, machine, path="verifier.environment.env"),
        workdir=working_folder(own.workdir, image.workdir if image is not None else spec.workdir),
    )


def _declared_network(own: EnvironmentConfig) -> NetworkPolicy:
    hosts = own.allowed_hosts or ()
    match own.network_mode:
        case "no-network":
            return NetworkPolicy("none")
        case "allowlist":
            return NetworkPolicy("allowlist", hosts)
        case _:
            return NetworkPolicy("public")


async def _image(
    environment: Environment, scope: Scope, own: EnvironmentConfig | None, base_image: str | None
) -> Image | None:
    """The image that the verifier names, the one its Dockerfile makes, else the task's own."""
    if own is not None and own.docker_image is not None:
        return await environment.backend.resolve(own.docker_image)
    dockerfile = scope.file("Dockerfile")
    if dockerfile is not None:
        substitute = {"base_image": base_image} if base_image is not None else {}
        timeout = own.build_timeout_sec if own is not None else scope.view.config.environment.build_timeout_sec
        return await environment.backend.build(
            dockerfile.parent, dockerfile="Dockerfile", timeout_sec=timeout, **substitute
        )
    return environment.preparation.spec.image
