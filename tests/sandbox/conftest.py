"""Sandboxes for tests: the backends of the conformance suite, a running sandbox, small packages."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchflow.sandbox.images.image_sources import add_rootfs
from benchflow.sandbox.local.image_builds import LocalImages
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import Image, Sandbox, SandboxBackend, SandboxSpec

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from engines import ACCOUNTS, BARE_ACCOUNTS, BARE_IMAGE, BASE_IMAGE, Engines, EngineUnavailable, base_rootfs

BACKENDS = [
    *(pytest.param(name, marks=[pytest.mark.engine, pytest.mark.xdist_group(name)]) for name in ("docker", "podman")),
    pytest.param("local", marks=pytest.mark.xdist_group("local-conformance")),
]


@dataclass
class Bench:
    """A backend with an image to start from."""

    backend: SandboxBackend
    image: Image | None
    bare: Image
    """The same without a user `agent`."""
    capabilities: frozenset[str]

    def sandbox(self, **spec: object) -> Sandbox:
        return self.backend.create(SandboxSpec(image=self.image, **spec))  # type: ignore[arg-type]


def engine_backend(name: str, engines: Engines, state: Path) -> SandboxBackend:
    from benchflow.sandbox.engine import EngineBackend

    try:
        if name == "docker":
            return EngineBackend("docker", env=engines.docker(), state=state)
        command, env = engines.podman()
        return EngineBackend("podman", command=command, env=env, state=state)
    except EngineUnavailable as error:
        pytest.fail(str(error), pytrace=False)


def local_image(folder: Path, name: str, passwd: str) -> Image:
    """A base image, unpacked as its one layer."""
    with tarfile.open(fileobj=io.BytesIO(base_rootfs(passwd))) as archive:
        archive.extractall(folder, numeric_owner=True)
    path = "/usr/local/bin:/usr/bin:/bin"
    return Image(str(folder), f"sha256:{name}", layers=(folder,), env={"PATH": path}, base=name)


@pytest.fixture(scope="module", params=BACKENDS)
async def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[Bench]:
    folder = tmp_path_factory.mktemp("state")
    backend: SandboxBackend
    if request.param == "local":
        backend = LocalBackend(folder / "store")
        image = local_image(folder / "base", BASE_IMAGE, ACCOUNTS)
        await add_rootfs(await LocalImages(backend).registry(), BASE_IMAGE, folder / "base")
        bare = local_image(folder / "bare", BARE_IMAGE, BARE_ACCOUNTS)
    else:
        backend = engine_backend(request.param, request.getfixturevalue("engines"), folder)
        image, bare = await backend.resolve(BASE_IMAGE), await backend.resolve(BARE_IMAGE)
    status = await backend.status()
    assert status.usable, status.reason
    yield Bench(backend, image, bare, status.capabilities)
    await backend.close()


@pytest.fixture(scope="module")
async def box(bench: Bench) -> AsyncIterator[Sandbox]:
    """A running sandbox that the tests of a module share; each keeps to files of its own."""
    async with bench.sandbox(env={"FROM_SPEC": "a b"}) as running:
        yield running


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
