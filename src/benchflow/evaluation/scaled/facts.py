"""What a machine is, asked on that machine: its size, the sandboxes that really work there, what is installed and set.

Only what the job needs is looked at: a sandbox is tested by starting one, and of variables only names are reported.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import anyio.to_thread

from benchflow.agents.registry import create_agent, create_policy
from benchflow.agents.script_agent import script_digest
from benchflow.errors import BenchflowError
from benchflow.evaluation.scaled import machine_room
from benchflow.evaluation.scaled.abilities import Demand, NodeFacts, SandboxFacts
from benchflow.files.user_store import default_store
from benchflow.sandbox.backends import load_backend, status_of
from benchflow.sandbox.factory import require_base_image
from cube.registry import installed

_LARGE: Final = 1 << 20
"""A data file of a cube that is larger than this is compared by its size."""
_COMPILED: Final = "__pycache__"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a job asks its nodes."""

    sandboxes: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    agents: frozenset[tuple[str, str | None]] = frozenset()
    """To play packages."""
    policies: frozenset[tuple[str, str | None]] = frozenset()
    """To play cubes."""
    cubes: frozenset[str] = frozenset()
    base_images: frozenset[str] = frozenset()
    scripts: frozenset[tuple[str, str]] = frozenset()
    """Agents that are scripts, each with the digest of its file where the job was planned."""

    @classmethod
    def for_demands(cls, demands: frozenset[Demand]) -> Asked:
        """All that the tasks of a job need to know; scripts are read here."""
        agents = {agent for demand in demands for agent, _ in demand.agents}
        return cls(
            frozenset(name for demand in demands for name in demand.sandboxes),
            frozenset(name for demand in demands for name in demand.names),
            frozenset(agent for demand in demands if demand.cube is None for agent in demand.agents),
            frozenset(agent for demand in demands if demand.cube is not None for agent in demand.agents),
            frozenset(demand.cube.name for demand in demands if demand.cube is not None),
            frozenset(demand.base_image for demand in demands if demand.base_image is not None),
            frozenset((agent, digest) for agent in agents if (digest := script_digest(agent)) is not None),
        )


async def find_facts(
    name: str,
    asked: Asked,
    scratch: Path,
    *,
    processors: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> NodeFacts:
    """The facts of this machine, which the cluster calls `name`; `processors` are as the cluster counts them."""
    variables = os.environ if environ is None else environ
    room = machine_room.vitals(places(scratch))
    sandboxes = {backend: await _sandbox(backend) for backend in sorted(asked.sandboxes)}
    return NodeFacts(
        name,
        machine_room.processors() if processors is None else processors,
        machine_room.memory_mb(),
        room.disk_free_mb,
        sandboxes,
        frozenset(name for name in asked.variables if variables.get(name)),
        await anyio.to_thread.run_sync(_unable, asked, variables),
        {cube: digest for cube in sorted(asked.cubes) if (digest := cube_digest(cube)) is not None},
        frozenset({image for image in asked.base_images if await _has_image(image, sandboxes)}),
        {"benchcube": version("benchcube"), "python": platform.python_version()},
        time.time(),
    )


def places(scratch: Path) -> tuple[Path, ...]:
    """Where rollouts on this machine write: their folders, and the layers of their sandboxes."""
    return scratch, default_store()


async def _sandbox(name: str) -> SandboxFacts:
    try:
        backend = load_backend(name)
    except BenchflowError as error:
        return SandboxFacts(usable=False, reason=str(error))
    status = await status_of(backend)
    with suppress(Exception):  # boundary: what a backend raises when it ends does not change what it supports
        await backend.close()
    missing = {item.capability: item.how for item in status.missing}
    return SandboxFacts(status.usable, status.capabilities, status.reason, missing)


async def _has_image(name: str, sandboxes: Mapping[str, SandboxFacts]) -> bool:
    """Whether a substitute for base images is there, for a sandbox that works."""
    for backend_name in (each for each, found in sandboxes.items() if found.usable):
        backend = load_backend(backend_name)
        try:
            await require_base_image(name, backend)
        except BenchflowError:
            continue
        else:
            return True
        finally:
            await backend.close()
    return False


def _unable(asked: Asked, environ: Mapping[str, str]) -> dict[tuple[str, str | None], str]:
    """Why agents cannot start on this machine: a key, a file or an extra is missing."""
    found: dict[tuple[str, str | None], str] = {}
    scripts = dict(asked.scripts)
    for agent, model in sorted(asked.agents, key=str):
        try:
            create_agent(agent, model, environ=environ).check({})
        except BenchflowError as error:
            found[agent, model] = str(error)
        else:
            if agent in scripts and script_digest(agent) != scripts[agent]:
                found[agent, model] = f"its file for '{agent}' differs from the one where the job was started"
    for agent, model in sorted(asked.policies, key=str):
        try:
            create_policy(agent, model, environ=environ).check()
        except BenchflowError as error:
            found[agent, model] = str(error)
    return found


def cube_digest(name: str) -> str | None:
    """A digest of the package of an installed cube, which nothing is imported for; None if it is not installed."""
    entry = installed().get(name)
    spec = find_spec(entry.module.partition(".")[0]) if entry is not None else None
    if entry is None or spec is None:
        return None
    digest = hashlib.sha256(entry.value.encode())
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if _COMPILED not in path.parts]
    for path in files or ([Path(spec.origin)] if spec.origin else []):
        if path.is_file():
            size = path.stat().st_size
            content = hashlib.sha256(path.read_bytes()).hexdigest() if size <= _LARGE else str(size)
            digest.update(f"\n{path.name} {content}".encode())
    return f"sha256:{digest.hexdigest()}"
