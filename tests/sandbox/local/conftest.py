"""Real sandboxes for the tests of the local backend.

`BENCHCUBE_TEST_IDENTITY` settles how user ids are isolated; `test_as_user` runs this folder again with it, as an
ordinary user.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from benchflow.sandbox.local.backend import LocalBackend
from benchflow.sandbox.local.plan import Identity
from benchflow.sandbox.local.sandbox import LocalSandbox
from benchflow.sandbox.protocol import SandboxSpec


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def identity() -> Identity:
    """How the sandboxes of this run isolate user ids."""
    chosen = os.environ.get("BENCHCUBE_TEST_IDENTITY") or ("idmap" if os.geteuid() == 0 else "single")
    assert chosen in ("idmap", "identity", "range", "single")
    return chosen  # type: ignore[return-value]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def backend(store: Path, identity: Identity) -> Iterator[LocalBackend]:
    opened = LocalBackend(store, identity=identity)
    yield opened
    anyio.run(opened.close)
    assert list((store / "owners").iterdir()) == [], "a test left a sandbox behind"


@pytest.fixture
async def box(backend: LocalBackend) -> AsyncIterator[LocalSandbox]:
    """A running sandbox on the machine's own userland."""
    async with backend.create(SandboxSpec()) as sandbox:
        yield sandbox
