"""What plugin authors rely on: the names of `benchflow.sandbox`, and a class that is enough for a backend."""

import subprocess
import sys

import pytest

from benchflow import sandbox
from benchflow.errors import UnsupportedError
from benchflow.sandbox import BackendStatus, Sandbox, SandboxBackend, SandboxProcess, SandboxSpec, Snapshot

NAMES = {
    "BackendStatus", "BenchflowError", "BoundedOutput", "CAPABILITIES", "Change", "Composition", "EnvironmentFailure",
    "ExecResult", "Healthcheck", "Image", "InfrastructureFailure", "Limits", "Missing", "Mount", "NO_SUCH_FILE",
    "NetworkPolicy", "OF_THE_FILE", "OutputSink", "Revert", "Rights", "Sandbox", "SandboxBackend", "SandboxFailure",
    "SandboxProcess", "SandboxSpec", "Snapshot", "UnsupportedError", "UsageError",
}  # fmt: skip


def test_these_names_are_offered_and_no_others():
    assert set(sandbox.__all__) == NAMES
    assert len(sandbox.__all__) == len(NAMES)
    for name in NAMES:
        assert getattr(sandbox, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        sandbox.no_such_name  # noqa: B018


def test_importing_the_package_imports_nothing_else_of_it():
    code = "import sys, benchflow.sandbox; print([m for m in sys.modules if m.startswith('benchflow.sandbox.')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def test_what_a_backend_must_implement_is_this():
    assert SandboxBackend.__abstractmethods__ == {"declared", "status", "create"}
    assert Sandbox.__abstractmethods__ == {
        "capabilities", "start", "exec", "process", "upload", "write_file", "download", "read_file", "changes",
        "kill_processes", "set_network", "fork", "stop",
    }  # fmt: skip
    assert SandboxProcess.__abstractmethods__ == {"send", "close_stdin", "stdout", "stderr", "wait", "kill"}


class Least(SandboxBackend):
    name = "least"
    declared = frozenset()

    async def status(self):
        return BackendStatus(self.name, True, None, self.declared)

    def create(self, spec, *, snapshot=None):
        raise AssertionError("not made")


@pytest.mark.anyio
async def test_what_a_backend_does_not_implement_is_refused_in_a_sentence(tmp_path):
    backend = Least()
    for refused in (backend.build(tmp_path), backend.resolve("x"), backend.compose(tmp_path / "compose.yaml")):
        with pytest.raises(UnsupportedError, match="'least'"):
            await refused
    await backend.discard(Snapshot("least", "x", None))
    await backend.close()
    assert SandboxSpec().image is None
