"""Sandbox backends by name: the built-in ones, and those of plugins in the entry-point group `benchflow.sandboxes`.

A plugin's entry point is a `SandboxBackend` class that is made without arguments. Light: the gate reads what the
built-in ones declare before anything starts, so the protocol is imported only when a backend is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from benchflow.plugins import SANDBOXES

if TYPE_CHECKING:
    from benchflow.sandbox.protocol import BackendStatus, SandboxBackend


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A backend as long as nobody uses it."""

    name: str
    declared: frozenset[str]
    """What its class declares; see `SandboxBackend.declared`."""
    target: str
    arguments: tuple[str, ...] = ()

    def __call__(self) -> SandboxBackend:
        module, _, attribute = self.target.partition(":")
        made: SandboxBackend = getattr(import_module(module), attribute)(*self.arguments)
        return made


_EVERYWHERE: Final = frozenset(
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
    }
)
LOCAL: Final = BuiltIn("local", _EVERYWHERE, "benchflow.sandbox.local.local_backend:LocalBackend")
ENGINE: Final = _EVERYWHERE | {"compose"}
_ENGINE_BACKEND: Final = "benchflow.sandbox.engine.engine_backend:EngineBackend"
DOCKER: Final = BuiltIn("docker", ENGINE, _ENGINE_BACKEND, ("docker",))
PODMAN: Final = BuiltIn("podman", ENGINE, _ENGINE_BACKEND, ("podman",))
ENGINES: Final = (DOCKER.name, PODMAN.name)


def load_backend(name: str) -> SandboxBackend:
    """A new backend of that name; nothing is started. An unknown name is a `UsageError`."""
    found = SANDBOXES.load(name)
    if isinstance(found, BuiltIn):
        return found()
    from benchflow.sandbox.protocol import CAPABILITIES, SandboxBackend

    if not (isinstance(found, type) and issubclass(found, SandboxBackend)):
        raise SANDBOXES.invalid(name, "is not a subclass of SandboxBackend")
    try:
        made = found()
    except Exception as error:  # boundary: a plugin's code may raise anything
        raise SANDBOXES.invalid(name, f"cannot be made: {error}") from error
    if made.name != name:
        raise SANDBOXES.invalid(name, f"calls itself '{made.name}'")
    unknown = ", ".join(sorted(made.declared - CAPABILITIES.keys()))
    if unknown:
        raise SANDBOXES.invalid(name, f"declares capabilities that do not exist: {unknown}")
    return made


async def all_statuses() -> list[BackendStatus]:
    """What each backend supports on this machine, by testing it; a broken one is reported without affecting others."""
    from benchflow.sandbox.protocol import BackendStatus

    found = []
    for name in SANDBOXES.names():
        try:
            backend = load_backend(name)
            try:
                found.append(await backend.status())
            finally:
                await backend.close()
        except Exception as error:  # noqa: BLE001 (boundary: a backend that cannot even say what is wrong)
            found.append(BackendStatus(name, False, str(error) or type(error).__name__, frozenset()))
    return found
