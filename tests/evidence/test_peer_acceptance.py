"""The command of benchflow 0.6.2 and ours agree at the level acceptance, in both directions."""

import json
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from peers import PeerUnavailable, peer_environment

from benchflow.task.checks import check_folder
from live_packages import CLAIMS, EVIDENCE_FILES, FOLDER, write_live_package

PEER = (
    "benchflow==0.6.2",
    *("typer", "pydantic", "pyyaml", "rich", "agent-client-protocol", "anyio", "httpx", "packaging", "tomli-w"),
)
"""What its checks need; all of its dependencies would take minutes to install."""
EXAMPLES = Path(__file__).parents[2] / "examples" / "packages"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def accepts():
    """Whether the peer accepts a package."""
    try:
        command = peer_environment(*PEER, dependencies=False) / "bench"
    except PeerUnavailable as error:
        pytest.skip(str(error))

    def ask(folder):
        asked = [command, "tasks", "check", folder, "--level", "acceptance"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout, done.stderr
        return done.returncode == 0

    return ask


@pytest.fixture
def package(tmp_path):
    """Evidence by hand, pinned in task.md alone, as the peer has it."""
    artifacts = [
        {"path": f"{FOLDER}/{name}", "sha256": sha256(json.dumps(content).encode()).hexdigest()}
        for name, content in EVIDENCE_FILES.items()
    ]
    files = {"environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n"}
    claims = {**CLAIMS, "artifacts": artifacts}
    return write_live_package(tmp_path / "task", live={}, claims=claims, files=files, pin=False)


def test_evidence_that_the_peer_accepts_is_accepted_here(accepts, package):
    assert accepts(package)
    assert check_folder(package, level="acceptance").valid


def test_evidence_that_changed_is_refused_by_both(accepts, package):
    (package / FOLDER / "oracle-run.json").write_text('{"reward": 0.2, "status": "failed"}')
    assert not accepts(package)
    assert not check_folder(package, level="acceptance").valid


def test_evidence_that_is_generated_here_is_accepted_by_the_peer(accepts, tmp_path):
    folder = shutil.copytree(EXAMPLES / "fix-parser", tmp_path / "fix-parser")
    assert check_folder(folder, level="acceptance").valid
    assert accepts(folder)
