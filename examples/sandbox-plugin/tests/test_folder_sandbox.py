"""The example backend keeps what every backend promises, and runs packages like any other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchflow.testing import check_backend
from folder_sandbox import FolderBackend

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.slow]

VERIFIER = "#!/bin/sh\nif grep -q done /app/answer.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"


@pytest.fixture
def package(tmp_path):
    def make(frontmatter=""):
        files = {
            "task.md": f"---\ntask: {{name: acme/small}}\n{frontmatter}---\nWrite done into answer.txt.\n",
            "oracle/solve.sh": "#!/bin/sh\necho done > answer.txt\n",
            "verifier/test.sh": VERIFIER,
        }
        for name, text in files.items():
            (tmp_path / "small" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "small" / name).write_text(text)
            (tmp_path / "small" / name).chmod(0o755)
        return tmp_path / "small"

    return make


def bench(*arguments, cwd):
    command = [Path(sys.executable).with_name("bench"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


async def test_the_example_keeps_its_promises():
    backend = FolderBackend()
    try:
        report = await check_backend(backend)
    finally:
        await backend.close()
    assert "a_fork_can_have_chosen_paths_as_they_were_built" in report.kept
    assert sorted(report.left_out) == [
        "a_fork_beside_uses_what_runs_and_is_not_reached_by_it",
        "a_snapshot_outlives_its_sandbox_and_starts_many",
        "an_unknown_image_says_which_one",
    ]


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_a_package_runs_in_it_by_its_name(package, tmp_path, agent, reward):
    done = bench("run", package(), "--sandbox", "folder", "--agent", agent, "--json", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert (result["status"], result["reward"], result["sandbox"]["name"]) == ("scored", reward, "folder"), done.stderr


def test_what_it_does_not_have_is_refused_before_anything_starts(package, tmp_path):
    folder = package("environment: {memory_mb: 100, network_mode: no-network}\n")
    checked = bench("tasks", "check", folder, "--sandbox", "folder", "--json", cwd=tmp_path)
    assert checked.returncode == 1
    issues = json.loads(checked.stdout)["tasks"][0]["issues"]
    assert {issue["path"] for issue in issues if issue["code"] == "unsupported-feature"} == {
        "environment.memory_mb", "environment.network_mode",
    }  # fmt: skip
    done = bench("run", folder, "--sandbox", "folder", "--agent", "oracle", "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs limits.memory, which folder does not have" in done.stderr


def test_it_is_listed_beside_the_others(tmp_path):
    shown = json.loads(bench("sandboxes", "--json", cwd=tmp_path).stdout)["sandboxes"]
    folder = next(one for one in shown if one["name"] == "folder")
    assert (folder["usable"], folder["capabilities"]) == (True, sorted(FolderBackend.declared))
