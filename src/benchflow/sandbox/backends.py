"""Sandbox backends by name: the built-in ones, and those of plugins in the entry-point group `benchflow.sandboxes`.

A plugin's entry point is a `SandboxBackend` class that is created without arguments. Light: the gate reads what the
built-in ones declare before anything starts, so the protocol is imported only when a backend is created.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from benchflow.errors import PluginError
from benchflow.plugins import SANDBOXES, reason

if TYPE_CHECKING:
    from benchflow.sandbox.protocol import BackendStatus, SandboxBackend


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A backend that is imported when it is first used."""

    name: str
    declared: frozenset[str]
    """What its class declares; see `SandboxBackend.declared`."""
    target: str
    arguments: tuple[str, ...] = ()

    def __call__(self) -> SandboxBackend:
        module, _, attribute = self.target.partition(":")
        made: SandboxBackend = getattr(import_module(module), attribute)(*self.arguments)
        return made


BUILT_IN: Final = frozenset(
    {
        "network.none",
        "network.public",
        "network.allowlist",
        "limits.cpu",
        "limits.memory",
        "limits.pids",
        "limits.disk",
        "limits.time",
        "users",
        "build.dockerfile",
        "image",
        "services",
        "healthcheck",
        "mounts",
        "fork",
        "snapshot",
        "forward",
        "compose",
    }
)
LOCAL: Final = BuiltIn("local", BUILT_IN, "benchflow.sandbox.local.local_backend:LocalBackend")
_ENGINE_BACKEND: Final = "benchflow.sandbox.engine.engine_backend:EngineBackend"
DOCKER: Final = BuiltIn("docker", BUILT_IN, _ENGINE_BACKEND, ("docker",))
PODMAN: Final = BuiltIn("podman", BUILT_IN, _ENGINE_BACKEND, ("podman",))
ENGINES: Final = (DOCKER.name, PODMAN.name)


def wrong_with(name: str, found: object) -> str | None:
    """What is wrong with the object of a plugin; None if it is a complete backend class."""
    from benchflow.sandbox.protocol import CAPABILITIES, SandboxBackend

    if not (isinstance(found, type) and issubclass(found, SandboxBackend)):
        return "is not a subclass of SandboxBackend"
    if missing := ", ".join(sorted(found.__abstractmethods__)):
        return f"does not define {missing}"
    called = getattr(found, "name", None)
    if called != name:
        return f"has the name {called!r}; set its class attribute `name` to '{name}'"
    declared: object = found.declared
    if not isinstance(declared, frozenset):
        return "does not declare its capabilities: its class attribute `declared` is not a frozenset"
    if unknown := ", ".join(sorted(str(each) for each in declared - CAPABILITIES.keys())):
        return f"declares capabilities that do not exist: {unknown}"
    return None


def load_backend(name: str) -> SandboxBackend:
    """A new backend of that name; nothing is started. An unknown name is a `UsageError`."""
    found = cast("Callable[[], SandboxBackend]", SANDBOXES.load(name))
    if name in SANDBOXES.built_in:
        return found()
    try:
        return found()
    except Exception as error:  # boundary: a plugin's code may raise anything
        raise SANDBOXES.invalid(name, f"cannot be created: {reason(error)}") from error


async def status_of(backend: SandboxBackend) -> BackendStatus:
    """What the backend supports on this machine; one that cannot tell is not usable."""
    from benchflow.sandbox.protocol import BackendStatus

    try:
        found: object = await backend.status()
    except Exception as error:  # noqa: BLE001 (boundary: a plugin's code may raise anything)
        return _unusable(backend.name, f"Its status() failed: {reason(error)}.")
    if not isinstance(found, BackendStatus):
        return _unusable(backend.name, f"Its status() returned {type(found).__name__} instead of a BackendStatus.")
    return found


async def all_statuses() -> list[BackendStatus]:
    """What each backend supports on this machine, by testing it; a broken one is reported without affecting others."""
    found = []
    for name in SANDBOXES.names():
        try:
            backend = load_backend(name)
        except PluginError as error:
            found.append(_unusable(name, str(error)))
            continue
        found.append(await status_of(backend))
        with suppress(Exception):  # boundary: what a backend raises when it ends does not change what it supports
            await backend.close()
    return found


def _unusable(name: str, why: str) -> BackendStatus:
    from benchflow.sandbox.protocol import BackendStatus

    return BackendStatus(name, False, why, frozenset())
