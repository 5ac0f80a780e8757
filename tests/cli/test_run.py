"""`bench run`: one folder, one record, one exit code."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from benchflow.cli.rollouts.rollout_view import result_lines
from benchflow.record import Notes
from loaded_commands import BENCH
from written_documents import check_fits

pytestmark = pytest.mark.slow

TASK_MD = """---
task:
  name: acme/a
environment: {network_mode: no-network}
%s---
Write done into answer.txt.
"""
VERIFIER = "if grep -q done /app/answer.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


@pytest.fixture
def package(tmp_path):
    """A package without image, with more frontmatter if wanted."""

    def make(more=""):
        folder = tmp_path / "task"
        files = {"task.md": TASK_MD % more, "verifier/test.sh": VERIFIER, "oracle/solve.sh": "echo done > answer.txt\n"}
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder

    return make


def test_the_record_is_printed_and_kept(bench, package, tmp_path):
    done = bench("run", package(), "--json", "--out", tmp_path / "results")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    check_fits(document, "result")
    assert (document["status"], document["reward"], document["agent"]["name"]) == ("scored", 1.0, "oracle")
    assert document["task"]["path"] == str(tmp_path / "task")
    (folder,) = (tmp_path / "results").iterdir()
    assert (folder.name, document.pop("rollout")) == (folder.name, folder.name)
    assert json.loads((folder / "result.json").read_text()) == document


def test_a_reward_of_nothing_is_a_good_end(bench, package, tmp_path):
    done = bench("run", package(), "--agent", "nop")
    assert done.returncode == 0
    assert "reward 0" in done.stdout
    (folder,) = (tmp_path / "jobs").iterdir()
    assert str(folder.relative_to(tmp_path)) in done.stdout


def test_a_script_that_fails_is_scored_and_told(bench, package, tmp_path):
    (tmp_path / "agent.sh").write_text("echo done > answer.txt; exit 7\n")
    done = bench("run", package(), "--agent", "script:agent.sh")
    assert done.returncode == 0
    assert "exited with code 7" in done.stdout


def test_an_unscored_rollout_ends_with_1_and_a_record(bench, package, tmp_path):
    folder = package()
    (folder / "verifier" / "test.sh").write_text("exit 1\n")
    done = bench("run", folder, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "reward-missing"


def test_an_invalid_package_ends_with_1_and_a_record(bench, package):
    done = bench("run", package("nonsense: 1\n"), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["category"] == "package"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no such folder"),
        (["task", "--agent", "nobody"], "nknown agent 'nobody'"),
        (["task", "--agent", "script:missing.sh"], "missing.sh"),
        (["task", "--sandbox", "nowhere"], "nknown sandbox 'nowhere'"),
        (["task", "--timeout", "-1"], "--timeout"),
        ([".", "--agent", "nop"], "name one"),
        (["gpu"], "gpus"),
    ],
)
def test_what_is_refused_changes_nothing(invoke, package, tmp_path, monkeypatch, arguments, said):
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))
    package()
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "task.md").write_text("---\ntask: {name: acme/g}\nenvironment: {gpus: 1}\n---\nGo.\n")
    (tmp_path / "gpu" / "verifier").mkdir()
    (tmp_path / "gpu" / "verifier" / "test.sh").write_text(VERIFIER)
    code, out, err = invoke("run", *arguments, "--json")
    assert (code, out) == (2, "")
    assert said in err
    assert not (tmp_path / "jobs").exists()
    assert not (tmp_path / "store").exists()


def test_an_interrupt_ends_everything_and_leaves_a_record(package, tmp_path):
    mine = f"sleep 987.{os.getpid()}"
    (tmp_path / "agent.sh").write_text(f"{mine}\n")
    process = subprocess.Popen(
        [*BENCH, "run", str(package()), "--agent", "script:agent.sh"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until = time.monotonic() + 50
    while not list(tmp_path.glob("jobs/*/trajectory.jsonl")):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=50)
    assert process.returncode == 130, errors
    (folder,) = (tmp_path / "jobs").iterdir()
    assert json.loads((folder / "result.json").read_text())["error"]["category"] == "cancelled"
    running = subprocess.run(["pgrep", "-s", str(process.pid)], capture_output=True, text=True)
    assert running.stdout == ""
    assert subprocess.run(["pgrep", "-f", mine], capture_output=True).returncode == 1


def test_the_help_names_every_option(bench):
    done = bench("run", "--help")
    assert done.returncode == 0
    for option in ("--agent", "--model", "--sandbox", "--base-image", "--out", "--json"):
        assert option in done.stdout


def test_a_limit_that_the_agent_reached_is_shown(make_result):
    result = make_result(notes=Notes(limits_reached=("processes",)))
    assert "  the agent reached the sandbox's limit of processes" in result_lines(result, Path("out"))
    assert "limit" not in "".join(result_lines(make_result(), Path("out")))
