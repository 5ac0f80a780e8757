"""The table of promises that `check_backend` runs, and what their checks have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import anyio

from benchflow.errors import BenchflowError, RuntimeFailure
from benchflow.sandbox.protocol import (
    NO_SUCH_FILE,
    Change,
    Sandbox,
    SandboxBackend,
    SandboxSpec,
)

PATIENCE: Final = 30.0
PAUSE: Final = 0.4


class BackendFault(AssertionError):
    """A promise that a backend does not keep."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The backend that is checked, the environment its sandboxes have, and an empty folder of the host."""

    backend: SandboxBackend
    spec: SandboxSpec
    capabilities: frozenset[str]
    folder: Path

    def sandbox(self, **changes: Any) -> Sandbox:
        return self.backend.create(replace(self.spec, **changes))


Check = Callable[[Subject], Awaitable[None]]
PROMISES: Final[dict[str, tuple[Check, frozenset[str]]]] = {}
"""By name: the check, and the capabilities without which it does not apply."""


def promise(*capabilities: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        PROMISES[check.__name__] = (check, frozenset(capabilities))
        return check

    return register


def require(kept: object, otherwise: str) -> None:
    if not kept:
        raise BackendFault(otherwise)


def equal(found: object, expected: object, what: str) -> None:
    require(found == expected, f"{what}: expected {expected!r}, got {found!r}")


@asynccontextmanager
async def refused(what: str, error: type[BenchflowError] = BenchflowError) -> AsyncIterator[None]:
    try:
        yield
    except error:
        return
    raise BackendFault(f"{what} was not refused")


@asynccontextmanager
async def forked(sandbox: Sandbox, **options: Any) -> AsyncIterator[Sandbox]:
    fork = await sandbox.fork(**options)
    try:
        yield fork
    finally:
        await fork.stop()


async def changed(sandbox: Sandbox) -> dict[str, Change]:
    return {change.path: change for change in await sandbox.changes()}


def beating(name: str) -> str:
    """A command that writes to `/app/NAME` as long as it runs."""
    return f"while :; do echo x >> {name}; sleep 0.05; done"


async def beats(sandbox: Sandbox, path: str) -> bool:
    """Whether something still writes to a file."""
    before = await size_of_file(sandbox, path)
    await anyio.sleep(PAUSE)
    return await size_of_file(sandbox, path) > before


async def size_of_file(sandbox: Sandbox, path: str) -> int:
    try:
        return len(await sandbox.read_file(path, max_bytes=1 << 24))
    except RuntimeFailure as error:
        if error.code == NO_SUCH_FILE:
            return 0
        raise


async def until_beating(sandbox: Sandbox, path: str) -> None:
    with anyio.fail_after(PATIENCE):
        while not await size_of_file(sandbox, path):  # noqa: ASYNC110 - a file is watched
            await anyio.sleep(0.05)
