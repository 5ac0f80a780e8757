"""Sandbox backends by name: the built-in ones, and those of plugins in the entry-point group `benchflow.sandboxes`.

A plugin's entry point is a `SandboxBackend` class, or a function that makes a backend; it takes no arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.sandbox.protocol import BackendStatus, SandboxBackend

ENTRY_POINTS: Final = "benchflow.sandboxes"
_BUILT_IN: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "local": ("benchflow.sandbox.local.local_backend:LocalBackend", ()),
    "docker": ("benchflow.sandbox.engine.engine_backend:EngineBackend", ("docker",)),
    "podman": ("benchflow.sandbox.engine.engine_backend:EngineBackend", ("podman",)),
}
ENGINES: Final = ("docker", "podman")


def backend_names() -> tuple[str, ...]:
    """All backends, built-in ones first."""
    return (*_BUILT_IN, *(name for name in sorted(_plugins()) if name not in _BUILT_IN))


def load_backend(name: str) -> SandboxBackend:
    """A new backend of that name; nothing is started. An unknown name is a `UsageError`."""
    if name in _BUILT_IN:
        target, arguments = _BUILT_IN[name]
        module, _, attribute = target.partition(":")
        made: object = getattr(import_module(module), attribute)(*arguments)
    elif (plugin := _plugins().get(name)) is not None:
        made = _from_plugin(plugin)
    else:
        known = ", ".join(backend_names())
        raise UsageError(f"Unknown sandbox {name!r}; known: {known}.", code="unknown-sandbox")
    if not isinstance(made, SandboxBackend):
        raise InfrastructureFailure(f"The sandbox plugin {name!r} provides no backend.", code="plugin-invalid")
    return made


def _from_plugin(plugin: EntryPoint) -> object:
    try:
        make: Callable[[], object] = plugin.load()
        return make()
    except Exception as error:  # boundary: a plugin's code may raise anything
        message = f"The sandbox plugin {plugin.name!r} ({plugin.value}) cannot be loaded: {error}"
        raise InfrastructureFailure(message, code="plugin-invalid") from error


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


async def all_statuses() -> list[BackendStatus]:
    """What each backend supports on this machine, by testing it; a broken one is reported without affecting others."""
    found = []
    for name in backend_names():
        try:
            backend = load_backend(name)
            try:
                found.append(await backend.status())
            finally:
                await backend.close()
        except Exception as error:  # noqa: BLE001 (boundary: a backend that cannot even say what is wrong)
            found.append(BackendStatus(name, False, str(error) or type(error).__name__, frozenset()))
    return found
