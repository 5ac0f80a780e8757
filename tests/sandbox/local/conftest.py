"""Real sandboxes for the tests of the local backend.

`test_as_user` runs this folder again as an ordinary user, with `BENCHCUBE_TEST_IDENTITY`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from benchflow.sandbox.local.inside.messages import Identity
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.protocol import SandboxSpec


@pytest.fixture(scope="session")
def identity(backend: LocalBackend) -> Identity:
    """How the sandboxes of this run isolate user ids: as told, and for root in the best way."""
    found = anyio.run(backend.runtime).launcher.identity
    assert found == (os.environ.get("BENCHCUBE_TEST_IDENTITY") or ("idmap" if os.geteuid() == 0 else found))
    return found


@pytest.fixture(scope="session")
def store(local_store: Path) -> Path:
    return local_store


@pytest.fixture
async def box(backend: LocalBackend) -> AsyncIterator[LocalSandbox]:
    """A running sandbox on the machine's own userland."""
    async with backend.create(SandboxSpec()) as sandbox:
        yield sandbox
