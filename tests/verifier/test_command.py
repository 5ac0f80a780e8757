"""`bench verify` as a person types it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from loaded_commands import bench

pytestmark = pytest.mark.sandbox


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return bench("verify", *words, cwd=Path.cwd())


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "answer.txt").write_text("42\n")
    return folder


def test_a_workspace_is_scored(package, workspace, tmp_path):
    done = run(package(), "--workspace", workspace, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["status"], record["reward"], record["error"]) == ("scored", 1.0, None)
    assert record["verifier"]["strategy"] == "script"
    assert (tmp_path / "out" / "reward.txt").read_text() == "1.0\n"
    assert (workspace / "answer.txt").read_text() == "42\n"


def test_without_a_reward_it_ends_with_1_and_says_why(package, workspace):
    done = run(package(files={"verifier/test.sh": "#!/bin/sh\nexit 5\n"}), "--workspace", workspace)
    assert done.returncode == 1
    assert "verifier/reward-missing" in done.stdout
    assert "with code 5" in done.stdout


def test_what_was_not_carried_over_is_told(package, workspace):
    (workspace / "sitecustomize.py").write_text("")
    done = run(package(), "--workspace", workspace)
    assert done.returncode == 0
    assert done.stdout == "reward 1\n  isolation shared\n  not carried over /app/sitecustomize.py (startup)\n"


@pytest.mark.parametrize("wrong", ["workspace", "out", "strategy", "package"])
def test_wrong_usage_ends_with_2_and_changes_nothing(package, workspace, tmp_path, wrong):
    folder = package()
    words = {
        "workspace": [folder, "--workspace", tmp_path / "none"],
        "out": [folder, "--workspace", workspace, "--out", workspace],
        "strategy": [folder, "--workspace", workspace, "--strategy", "none"],
        "package": [tmp_path / "none", "--workspace", workspace],
    }[wrong]
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bench: ")
    assert "Traceback" not in done.stderr


STEPS = {
    "steps/one/instruction.md": "One.",
    "steps/one/verifier/test.sh": "echo 0 > /logs/verifier/reward.txt\n",
    "steps/two/instruction.md": "Two.",
    "steps/two/verifier/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
}


def test_a_step_of_a_package_with_steps_must_be_named(package, workspace):
    folder = package("steps: [{name: one}, {name: two}]\n", {"verifier/test.sh": "exit 1\n", **STEPS})
    done = run(folder, "--workspace", workspace)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("choose one with --step: one, two.\n")
    rewards = [run(folder, "--workspace", workspace, "--step", step).stdout for step in ("one", "two")]
    assert rewards == ["reward 0\n  isolation shared\n", "reward 1\n  isolation shared\n"]


def test_a_pending_submission_is_finished_later(package, workspace, tmp_path):
    document = """\
        ---
        verifier:
          strategies:
            board: {type: leaderboard-submission, inputs: [/app/answer.txt], command: sh scorer.sh}
        ---
        """
    folder = package(files={"verifier/verifier.md": document, "verifier/scorer.sh": "exit 75\n"})
    first = run(folder, "--workspace", workspace, "--out", tmp_path / "out")
    assert first.returncode == 1
    assert "verifier/pending" in first.stdout
    (tmp_path / "record.json").write_text('{"reward": 0.5}')
    done = run(folder, "--out", tmp_path / "out", "--record", tmp_path / "record.json")
    assert (done.returncode, done.stdout) == (0, "reward 0.5\n")
    assert (tmp_path / "out" / "reward.txt").read_text() == "0.5\n"
