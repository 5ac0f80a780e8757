"""The backends that need no plugin: what they declare, and where they are. Light: the gate reads it before a start."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchflow.sandbox.protocol import SandboxBackend


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
    }
)
LOCAL: Final = BuiltIn("local", _EVERYWHERE, "benchflow.sandbox.local.local_backend:LocalBackend")
ENGINE: Final = _EVERYWHERE | {"compose"}
_ENGINE_BACKEND: Final = "benchflow.sandbox.engine.engine_backend:EngineBackend"
DOCKER: Final = BuiltIn("docker", ENGINE, _ENGINE_BACKEND, ("docker",))
PODMAN: Final = BuiltIn("podman", ENGINE, _ENGINE_BACKEND, ("podman",))
ENGINES: Final = (DOCKER.name, PODMAN.name)
