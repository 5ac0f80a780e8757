"""A local backend with a store of its own, and packages made of a few lines.

`BENCHCUBE_TEST_IDENTITY` settles how user ids are isolated, for runs as an ordinary user.
"""

import os

import pytest

from benchflow.sandbox.local.backend import LocalBackend
from benchflow.sandbox.protocol import SandboxSpec


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def local_store(tmp_path_factory):
    """One store for all tests of a process, so that the host profile is composed once."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture
async def backend(local_store):
    backend = LocalBackend(local_store, identity=os.environ.get("BENCHCUBE_TEST_IDENTITY"))
    yield backend
    await backend.close()


@pytest.fixture
async def sandbox(backend):
    async with backend.create(SandboxSpec()) as sandbox:
        yield sandbox


@pytest.fixture
def make_package(tmp_path):
    """A package with the given frontmatter and files; gives its folder."""

    def make(frontmatter="", files=None):
        folder = tmp_path / "task"
        (folder / "verifier").mkdir(parents=True)
        (folder / "verifier" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
        text = f"---\ntask:\n  name: acme/box\n{frontmatter}---\n\n## prompt\n\nDo it.\n"
        (folder / "task.md").write_text(text)
        for name, content in (files or {}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return folder

    return make
