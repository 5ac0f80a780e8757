"""What the tests of all packages share: the event loop they run in, local sandboxes of one backend, the command.

`BENCHCUBE_TEST_IDENTITY` settles how user ids are isolated, for runs as an ordinary user.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import anyio
import pytest

from benchflow.evaluation.store import JobStore
from benchflow.plugins import SANDBOXES
from benchflow.record import AgentPart, JobRecord, JobRequest, Result, SandboxPart, Score, TaskPart
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.testing import InMemoryBackend

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from engines import Engines, EngineUnavailable
from ray_nodes import RayNodes, RayUnavailable


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


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayNodes]:
    """A real Ray cluster with a head that runs no rollouts, one for all tests of the group `ray`; they add nodes."""
    try:
        started = RayNodes()
    except RayUnavailable as error:
        pytest.fail(str(error), pytrace=False)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def local_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all tests of a process, so that the host profile is composed once."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def backend(local_backend: LocalBackend) -> LocalBackend:
    """Where sandboxes of a test come from; folders of tests that need no real ones have their own."""
    return local_backend


@pytest.fixture
def memory_backend() -> Iterator[InMemoryBackend]:
    """Sandboxes without processes or disk, for rules that need no real one; a test stops what it starts."""
    made = InMemoryBackend()
    yield made
    assert made.started == [], "a test left a sandbox behind"


_entry_points = importlib.metadata.entry_points


@cache
def _installed(_path: tuple[str, ...], **wanted: str) -> tuple[EntryPoint, ...]:
    """Entry points of what is installed, searched once: that reads a file of each distribution."""
    return tuple(_entry_points(**wanted))


@pytest.fixture
def sandbox_name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `--sandbox` takes: `local` for tests that are marked `sandbox`, else `memory`, as if a plugin brought it."""
    if request.node.get_closest_marker("sandbox") is not None:
        return "local"
    memory = EntryPoint(InMemoryBackend.name, "benchflow.testing:InMemoryBackend", SANDBOXES.group)

    def with_memory(**wanted: str) -> list[EntryPoint]:
        found = _installed(tuple(sys.path), **wanted)
        return [*found, *([memory] if wanted.get("group") == SANDBOXES.group else [])]

    monkeypatch.setattr(importlib.metadata, "entry_points", with_memory)
    return InMemoryBackend.name


@pytest.fixture
def memory_or_local(request: pytest.FixtureRequest) -> SandboxBackend:
    """Real sandboxes for tests that are marked `sandbox`, else those in memory."""
    real = request.node.get_closest_marker("sandbox") is not None
    chosen: SandboxBackend = request.getfixturevalue("local_backend" if real else "memory_backend")
    return chosen


@pytest.fixture(scope="session")
def local_backend(local_store: Path) -> Iterator[LocalBackend]:
    """One backend for all tests of a process; nothing of a test may be left in it."""
    identity = os.environ.get("BENCHCUBE_TEST_IDENTITY")
    opened = LocalBackend(local_store, identity=identity)  # type: ignore[arg-type]
    yield opened
    anyio.run(opened.close)
    assert list(local_store.glob("owners/*")) == [], "a test left a sandbox behind"


@pytest.fixture
def invoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run `bench` inside this process, in the test's folder: exit code, stdout, stderr."""
    from benchflow.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return run


@pytest.fixture(scope="session")
def make_result():
    """Makes the result of an attempt: scored with a reward, or unscored with an error."""

    def make(task="t", reward=1.0, error=None, *, digest="sha256:0", ordinal=1, attempt=1, key=None, path=None, **more):
        outcome = error if error is not None else Score(reward, more.pop("rewards", {"reward": reward}))
        parts = {
            "task": TaskPart(task, path or task, digest, digest, ordinal),
            "agent": AgentPart("oracle", None, exit_code=0, timed_out=False),
            "sandbox": SandboxPart("local", "host", "exact"),
            "verifier": None,
            "timing": {"agent": 0.1},
            "usage": {},
            "key": key or f"{task}-{digest}-{ordinal}-{attempt}",
            "started_at": "2026-01-01T00:00:00Z",
            "finished_at": "2026-01-01T00:00:01Z",
        }
        return Result(attempt=attempt, outcome=outcome, **{**parts, **more})

    return make


@pytest.fixture(scope="session")
def make_job():
    """Makes a job with the given results, one rollout each; gives its store, which is closed."""

    def make(jobs_dir, name="job", results=(), *, planned=None, **request):
        wanted = JobRequest(**{"sources": ("tasks",), "agent": "oracle", **request})
        store = JobStore.create(jobs_dir, JobRecord(name, wanted, planned or len(results), "2026-01-01T00:00:00+00:00"))
        for number, result in enumerate(results):
            store.append(result, f"r{number}")
        store.close()
        return store

    return make
