"""Sandbox backends by name: the built-in ones, and those of plugins in the entry-point group `benchflow.sandboxes`.

A plugin's entry point is a `SandboxBackend` class that is made without arguments.
"""

from __future__ import annotations

from benchflow.plugins import SANDBOXES
from benchflow.sandbox.built_in import BuiltIn
from benchflow.sandbox.protocol import BackendStatus, SandboxBackend


def load_backend(name: str) -> SandboxBackend:
    """A new backend of that name; nothing is started. An unknown name is a `UsageError`."""
    found = SANDBOXES.load(name)
    if isinstance(found, BuiltIn):
        return found()
    if not (isinstance(found, type) and issubclass(found, SandboxBackend)):
        raise SANDBOXES.invalid(name, "is not a subclass of SandboxBackend")
    try:
        made = found()
    except Exception as error:  # boundary: a plugin's code may raise anything
        raise SANDBOXES.invalid(name, f"cannot be made: {error}") from error
    if made.name != name:
        raise SANDBOXES.invalid(name, f"calls itself '{made.name}'")
    return made


async def all_statuses() -> list[BackendStatus]:
    """What each backend supports on this machine, by testing it; a broken one is reported without affecting others."""
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
