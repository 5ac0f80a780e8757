"""Verification in a fresh sandbox: of the verifier's own environment or the task's pristine one.

Only declared paths are copied, to the same absolute paths, as regular files and folders, within a limit.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from benchflow.environment import Environment
from benchflow.errors import EnvironmentFailure, Issue, SandboxFailure, VerifierFailure
from benchflow.files.path_set import PathSet
from benchflow.files.scratch import scratch
from benchflow.sandbox.factory import find_image
from benchflow.sandbox.machine_settings.allowance import phase_settings
from benchflow.sandbox.protocol import NO_SUCH_FILE, OF_THE_FILE, ExecResult, Image, NetworkPolicy, Sandbox, SandboxSpec
from benchflow.sandbox.pulling import PullSettings
from benchflow.sandbox.task_policy import (
    asset_mounts,
    network_policy,
    package_pulls,
    resolve_variables,
    sandbox_limits,
    working_folder,
)
from benchflow.task.config.task_config import MAIN_SERVICE, EnvironmentConfig
from benchflow.verifier.scope import Scope
from benchflow.verifier.surviving.path_patterns import is_pattern, matches
from benchflow.verifier.surviving.survival import below

ARTIFACTS: Final = "/logs/artifacts"
MAX_BYTES: Final = 1 << 30
MAX_FILES: Final = 100_000
_AT_ONCE: Final = 200
_MEGABYTE: Final = 1 << 20
_TIMEOUT_SEC: Final = 60.0
_LAST_WORDS: Final = 300
_REMOVE_LINKS: Final = """
walk() {
  for e in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    if [ -L "$e" ]; then rm -f -- "$e" || exit 1; elif [ -d "$e" ]; then walk "$e"; fi
  done
}
walk "$1"
"""
_CLEAR: Final = """
folder=$1
shift
for e in "$folder"/* "$folder"/.[!.]* "$folder"/..?*; do
  for kept do [ "$e" = "$kept" ] && continue 2; done
  rm -rf -- "$e" || exit 1
done
"""
"""Removes everything in a folder except the kept paths."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A path to copy."""

    source: str
    exclude: tuple[str, ...] = ()
    max_bytes: int = MAX_BYTES
    service: str = MAIN_SERVICE
    declared: bool = True
    """Whether it is expected to exist."""


def transfers(scope: Scope, workdir: str) -> list[Transfer]:
    """All declared paths: artifacts, transfer paths, and the artifacts folder itself."""
    found = {(MAIN_SERVICE, ARTIFACTS): Transfer(ARTIFACTS, declared=False)}
    for artifact in scope.artifacts:
        source = artifact.source if artifact.source.startswith("/") else f"{workdir}/{artifact.source}"
        found[artifact.service, source] = Transfer(source.rstrip("/"), artifact.exclude, service=artifact.service)
    wiring = scope.view.namespace.verifier
    for given in wiring.inputs if wiring is not None else ():
        if given.path.startswith("/"):
            found.setdefault((MAIN_SERVICE, given.path), Transfer(given.path.rstrip("/")))
    for item in wiring.transfer.agent_to_verifier if wiring is not None else ():
        limit = int(item.max_mb * _MEGABYTE) if item.max_mb is not None else MAX_BYTES
        source = item.source if item.source.startswith("/") else f"{workdir}/{item.source}"
        found[MAIN_SERVICE, source] = Transfer(source.rstrip("/"), item.exclude, limit)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Expanded:
    """The paths to copy, the patterns that some of them come from, and notes about patterns without a path."""

    items: list[Transfer] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    notes: list[Issue] = field(default_factory=list)


async def expanded(source: Sandbox, items: Iterable[Transfer]) -> Expanded:
    """The paths that patterns stand for in a copy of the agent's sandbox."""
    paths = Expanded()
    for item in items:
        if item.service != MAIN_SERVICE or not is_pattern(item.source):
            paths.items.append(item)
            continue
        try:
            found = await matches(source, item.source)
        except SandboxFailure as error:
            if error.code not in OF_THE_FILE:
                raise
            paths.notes.append(_not_transferred(item, str(error)))
            continue
        paths.patterns.append(item.source)
        paths.items.extend(replace(item, source=path) for path in found)
        if not found:
            paths.notes.append(_not_transferred(item, "nothing matches"))
    return paths


async def remove_unmatched(target: Sandbox, paths: Expanded, built: Sequence[str]) -> None:
    """Remove what matches a pattern in the target only: the agent deleted it. Tools and mounts stay."""
    kept = (*built, *(mount.target for mount in target.spec.mounts))
    copied = PathSet(item.source for item in paths.items if item.service == MAIN_SERVICE)
    for pattern in paths.patterns:
        found = await matches(target, pattern, most=None)
        gone = [path for path in found if not copied.covers(path) and not below(path, *kept)]
        whole = [path for path in gone if not any(below(place, path) for place in kept)]
        for start in range(0, len(whole), _AT_ONCE):
            await _must(target, ["/bin/sh", "-c", 'rm -rf -- "$@"', "sh", *whole[start : start + _AT_ONCE]])
        for path in sorted(set(gone) - set(whole)):
            inside = [place for place in kept if below(place, path)]
            await _clear(target, path, _ways(path, inside), inside)


def collected(result: ExecResult, path: str, timeout: float) -> list[Issue]:
    """Notes about a command that ran before the transfer; exceeding the time limit is a `VerifierFailure`."""
    if result.timed_out:
        message = f"The command of {path} exceeded its limit of {timeout:g} s and was stopped."
        raise VerifierFailure(message, code="timeout", path=path)
    if result.ok:
        return []
    said = " ".join((result.stdout + result.stderr).decode(errors="replace").split())[-_LAST_WORDS:]
    message = f"The command exited with code {result.exit_code}{f': {said}' if said else '.'}"
    return [Issue("collect-failed", "warning", path, message)]


async def carry_over(
    source: Sandbox, target: Sandbox, items: Iterable[Transfer], *, services: Sandbox, built: Sequence[str] = ()
) -> list[Issue]:
    """Copy declared paths from one sandbox to the same places in another; a note about each that could not be copied.

    Paths of a service other than `main` are read from `services`, the sandbox in which they run. Tools that the
    environment `built` are in the target as its own environment has them. Failures that do not concern the content of
    a path are raised.
    """
    notes = []
    for item in items:
        own = item.service == MAIN_SERVICE
        place = source if own else services.service(item.service)
        tools = [root for root in built if own and below(root, item.source)]
        if own and below(item.source, *built):
            why = "it is a tool of the environment, and system changes are not kept"
            notes.append(_not_transferred(item, why))
            continue
        with scratch("transfer-") as folder:
            copy = folder / "copy"
            try:
                await _take(place, copy, item, tools, disposable=own)
            except SandboxFailure as error:
                if error.code not in OF_THE_FILE:
                    raise
                if error.code != NO_SUCH_FILE or item.declared:
                    notes.append(_not_transferred(item, str(error)))
                continue
            await anyio.to_thread.run_sync(_strip, copy, item.exclude)
            if copy.exists():
                notes += await _put(target, copy, item, tools)
    return notes


def _not_transferred(item: Transfer, why: str) -> Issue:
    return Issue("not-transferred", "warning", item.source, f"{item.source}: {why}")


async def _take(place: Sandbox, copy: Path, item: Transfer, tools: Sequence[str], *, disposable: bool) -> None:
    """Download an item without tools; if links of the environment interfere, from a disposable box without them."""
    if tools:
        await _must(place, ["/bin/sh", "-c", 'rm -rf -- "$@"', "sh", *tools])
    try:
        await place.download(item.source, copy, max_bytes=item.max_bytes, max_files=MAX_FILES)
    except SandboxFailure as error:
        if error.code not in ("refused", "refused-file") or not disposable:
            raise
        await place.exec(
            ["/bin/sh", "-c", _REMOVE_LINKS, "sh", item.source], user="root", cwd="/", timeout=_TIMEOUT_SEC
        )
        await place.download(item.source, copy, max_bytes=item.max_bytes, max_files=MAX_FILES)


async def _put(target: Sandbox, copy: Path, item: Transfer, tools: Sequence[str]) -> list[Issue]:
    """Upload an item, replacing everything there except tools and mounts; a note if the target has no space."""
    mounts = [mount.target for mount in target.spec.mounts if below(mount.target, item.source)]
    kept = (*tools, *mounts)
    folders = _ways(item.source, kept)
    await _clear(target, item.source, folders, kept)
    try:
        await target.upload(copy, item.source)
    except SandboxFailure as error:
        if error.code != "disk-full" or target.spec.limits.storage_mb is None:
            raise
        is_folder = await anyio.Path(copy).is_dir()
        await _clear(target, item.source, folders or ((item.source,) if is_folder else ()), kept)
        return [_not_transferred(item, "it exceeds the storage limit of the verifier's sandbox")]
    return []


async def _clear(target: Sandbox, place: str, folders: Sequence[str], kept: Sequence[str]) -> None:
    """Empty the folders above the kept paths; if there are none, remove the place itself."""
    for folder in folders:
        await _must(target, ["/bin/sh", "-c", _CLEAR, "sh", folder, *folders, *kept])
    if not folders:
        await _must(target, ["/bin/sh", "-c", 'rm -rf -- "$1"', "sh", place])


def _ways(top: str, places: Iterable[str]) -> tuple[str, ...]:
    """The folders from `top` down to the parents of places below it."""
    ways = (place[len(top) :].strip("/").split("/")[:-1] for place in places)
    return tuple(dict.fromkeys("/".join([top, *way[:count]]) for way in ways for count in range(len(way) + 1)))


async def _must(sandbox: Sandbox, command: Sequence[str]) -> None:
    """Run one of our own commands, which only a broken environment makes fail."""
    result = await sandbox.exec(command, user="root", cwd="/", timeout=_TIMEOUT_SEC)
    if not result.ok:
        how = f"exceeded its limit of {_TIMEOUT_SEC:g} s" if result.timed_out else f"exited with {result.exit_code}"
        said = " ".join(result.stderr.decode(errors="replace").split())[-_LAST_WORDS:]
        raise EnvironmentFailure(f"Clearing the target of a copy {how}: {said}", code="transfer-failed")


def _strip(copy: Path, exclude: tuple[str, ...]) -> None:
    """Remove links and excluded paths, by name or by path below the source."""
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
    """The specification of the verifier's own sandbox."""
    spec = environment.preparation.spec
    own = scope.config.environment
    pull = package_pulls(scope.view, environment.backend.pulling, machine)
    image = await _image(environment, scope, own, base_image, pull)
    fallback = network_policy(scope.view, "verifier")
    if own is not None and "network_mode" in own.declared:
        fallback = _declared_network(own)
    network = scope.network(fallback)
    given = phase_settings("verify", network.mode, machine)
    composition = spec.composition if own is None and image == spec.image else None
    composed = composition.mounts if composition is not None else ()
    changed = replace(
        spec,
        image=image,
        network=network,
        user=None,
        mounts=(*composed, *asset_mounts(scope.view, "verifier"), *given.mounts),
        composition=composition,
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
    environment: Environment,
    scope: Scope,
    own: EnvironmentConfig | None,
    base_image: str | None,
    pull: PullSettings,
) -> Image | None:
    """The image that the verifier names, the one its Dockerfile builds, or else the task's own."""
    dockerfile = scope.file("Dockerfile")
    found = await find_image(
        environment.backend,
        own.docker_image if own is not None else None,
        dockerfile.parent if dockerfile is not None else None,
        timeout_sec=(own or scope.view.config.environment).build_timeout_sec,
        base_image=base_image,
        pull=pull,
    )
    return found if found is not None else environment.preparation.spec.image
