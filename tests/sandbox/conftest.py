"""The backends that the conformance suite runs on: one table, one line per backend."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchflow.sandbox.protocol import Image, Sandbox, SandboxBackend, SandboxSpec

sys.path.insert(0, str(Path(__file__).parent))

from engines import BASE_IMAGE, Engines, EngineUnavailable

ENGINE_MARKS = [pytest.mark.engine, pytest.mark.xdist_group("engine")]
BACKENDS = [
    pytest.param("docker", marks=ENGINE_MARKS),
    pytest.param("podman", marks=ENGINE_MARKS),
]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Real engines, started once a session; on a machine where they cannot run, the reason is the failure."""
    try:
        started = Engines(tmp_path_factory.mktemp("e"))
    except EngineUnavailable as error:
        pytest.fail(str(error), pytrace=False)
    yield started
    started.stop()


@dataclass
class Bench:
    """A backend with an image to start from."""

    backend: SandboxBackend
    image: Image | None
    capabilities: frozenset[str]

    def sandbox(self, **spec: object) -> Sandbox:
        return self.backend.create(SandboxSpec(image=self.image, **spec))  # type: ignore[arg-type]


def make_backend(name: str, request: pytest.FixtureRequest, state: Path) -> SandboxBackend:
    from benchflow.sandbox.engine import EngineBackend

    engines: Engines = request.getfixturevalue("engines")
    try:
        if name == "docker":
            return EngineBackend("docker", env=engines.docker(), state=state)
        command, env = engines.podman()
        return EngineBackend("podman", command=command, env=env, state=state)
    except EngineUnavailable as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="module", params=BACKENDS)
async def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[Bench]:
    backend = make_backend(request.param, request, tmp_path_factory.mktemp("state"))
    status = await backend.status()
    assert status.usable, status.reason
    yield Bench(backend, await backend.resolve(BASE_IMAGE), status.capabilities)
    await backend.close()


@pytest.fixture(scope="module")
async def box(bench: Bench) -> AsyncIterator[Sandbox]:
    """A running sandbox that the tests of a module share; each keeps to files of its own."""
    async with bench.sandbox(env={"FROM_SPEC": "a b"}) as running:
        yield running
