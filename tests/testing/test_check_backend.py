"""The conformance function: a backend that keeps its promises passes, one that breaks some is told which."""

import pytest

from benchflow.errors import SandboxFailure
from benchflow.sandbox.protocol import BackendStatus
from benchflow.testing import PROMISES, BackendFault, InMemoryBackend, InMemorySandbox, check_backend

pytestmark = pytest.mark.anyio
WAITS = (
    "a_fork_beside_uses_what_runs_and_is_not_reached_by_it",
    "a_timeout_ends_the_whole_tree_and_keeps_the_output",
    "a_cancelled_caller_leaves_nothing_running",
    "a_killed_process_takes_its_children_along",
    "processes_end_when_they_are_all_to_end_and_files_stay",
)
"""Promises that are checked by waiting whether something still runs."""


@pytest.fixture
def without_waits(monkeypatch):
    """How faults are collected and reported needs no promise that takes seconds to check."""
    for name in WAITS:
        monkeypatch.delitem(PROMISES, name)


async def test_the_in_memory_sandbox_keeps_every_promise():
    backend = InMemoryBackend()
    report = await check_backend(backend)
    assert (set(report.kept), report.left_out) == (set(PROMISES), ())
    assert backend.started == []


@pytest.mark.usefixtures("without_waits")
async def test_what_needs_a_missing_capability_is_left_out_and_its_refusal_is_checked():
    report = await check_backend(InMemoryBackend(without=["fork", "snapshot", "limits.memory", "network.public"]))
    assert "what_it_lacks_is_refused_before_anything_starts" in report.kept
    assert set(report.left_out) == {
        name for name, (_, needed) in PROMISES.items() if needed & {"fork", "snapshot"}
    }  # fmt: skip


@pytest.mark.usefixtures("without_waits")
async def test_every_broken_promise_is_named():
    class Leaking(InMemoryBackend):
        def create(self, spec, *, snapshot=None):
            made = super().create(spec, snapshot=snapshot)
            made.changes = self.no_changes
            made.read_file = self.any_file
            return made

        async def no_changes(self):
            return []

        async def any_file(self, path, *, max_bytes=1 << 20):
            return b"anything"

    with pytest.raises(BackendFault) as caught:
        await check_backend(Leaking())
    said = str(caught.value)
    assert "- changes name what was added changed and deleted: " in said
    assert "- unsafe paths are refused: reading 'relative' was not refused" in said
    assert "a string is run by the shell" not in said


@pytest.mark.usefixtures("without_waits")
async def test_trouble_of_the_backend_is_a_broken_promise_and_no_crash():
    backend = InMemoryBackend()
    backend.fail("upload", error=RuntimeError("a bug of the backend"))
    with pytest.raises(BackendFault, match="a bug of the backend"):
        await check_backend(backend)
    for sandbox in list(backend.started):
        await sandbox.stop()


async def test_a_backend_that_does_not_work_here_is_not_checked():
    class Down(InMemoryBackend):
        async def status(self):
            return BackendStatus(self.name, False, "the cloud is down", frozenset())

    with pytest.raises(BackendFault, match="the cloud is down"):
        await check_backend(Down())


@pytest.mark.usefixtures("without_waits")
async def test_a_declaration_that_claims_too_little_is_noticed():
    class Modest(InMemoryBackend):
        async def status(self):
            return BackendStatus(self.name, True, None, self.declared | {"gpu"})

    with pytest.raises(BackendFault, match=r"not declared: \['gpu'\]"):
        await check_backend(Modest())


@pytest.mark.usefixtures("without_waits")
async def test_a_sandbox_that_ignores_a_limit_is_noticed(monkeypatch):
    backend = InMemoryBackend(without=["limits.memory"])
    monkeypatch.setattr(InMemorySandbox, "_require", lambda self, capability: None)
    with pytest.raises(BackendFault, match="a limit that needs gpu was not refused"):
        await check_backend(backend)
    assert issubclass(BackendFault, AssertionError)
    assert not issubclass(BackendFault, SandboxFailure)
