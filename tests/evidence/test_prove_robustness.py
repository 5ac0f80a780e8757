"""Proving when things go wrong: a kill, a folder that cannot be written, and packages that do their worst."""

import json
import os
import signal
import subprocess
import sys

import pytest

from benchflow.cli import main
from benchflow.task.checks import check_package
from benchflow.task.package import load_package
from loaded_commands import BENCH

OPTIONS = ("--sandbox", "local", "--reruns", "2", "--no-audit", "--concurrency", "1", "--json")
WAITING = "until [ -e /nowhere ]; do sleep 1; done\n"
READ_ONLY = 'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; exec "$@"'
KILLED_WHILE_WRITING = """\
import os, signal, sys
from benchflow.cli import main
from benchflow.evidence import evidence_folder
evidence_folder.exchange = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main(["tasks", "prove", *sys.argv[1:]])
"""


@pytest.fixture
def prove(sandbox_name, capsys):
    def run(*arguments):
        words = ("--sandbox", sandbox_name, "--reruns", "2", "--no-audit", "--json", *map(str, arguments))
        code = main(["tasks", "prove", *words])
        return code, json.loads(capsys.readouterr().out)["tasks"]

    return run


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.sandbox
def test_a_killed_command_leaves_old_evidence_whole_and_the_next_one_continues(make_package, prove):
    folders = [make_package(name=name) for name in ("first", "second")]
    assert prove(folders[1])[0] == 0
    old = content(folders[1] / "evidence")
    (folders[1] / "oracle/solve.sh").write_text(WAITING)
    with subprocess.Popen(
        [*BENCH, "tasks", "prove", *OPTIONS, *map(str, folders)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as command:
        assert b"acme/first" in command.stdout.readline()  # then it waits for the second
        command.send_signal(signal.SIGKILL)
    assert content(folders[1] / "evidence") == old
    finished = content(folders[0])
    (folders[1] / "oracle/solve.sh").write_text("printf 'done\\n' > answer.txt\n")
    code, tasks = prove(*folders)
    assert code == 0
    assert [bool(task["written"]) for task in tasks] == [False, True]
    assert content(folders[0]) == finished


@pytest.mark.sandbox
def test_a_kill_while_the_evidence_is_written_leaves_nothing_half_done(make_package, prove, sandbox_name):
    folder = make_package()
    assert prove(folder)[0] == 0
    old = content(folder)
    words = ("--fresh", "--sandbox", sandbox_name, "--reruns", "3", "--no-audit")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_WRITING, *words, str(folder)], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert content(folder) == old
    code, [task] = prove("--fresh", folder)
    assert code == 0
    assert task["written"]
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".benchflow")] == []


@pytest.mark.sandbox
def test_a_folder_that_is_mounted_read_only_is_reported_only(make_package):
    folder = make_package()
    as_root = () if os.geteuid() == 0 else ("-r",)
    done = subprocess.run(
        [
            "unshare",
            *as_root,
            "-m",
            "sh",
            "-ec",
            READ_ONLY,
            "sh",
            folder.parent,
            *BENCH,
            "tasks",
            "prove",
            *OPTIONS,
            folder,
        ],
        capture_output=True,
        check=False,
    )
    [task] = json.loads(done.stdout)["tasks"]
    assert (done.returncode, task["proven"], task["written"]) == (0, True, []), done.stderr
    [issue] = task["issues"]
    assert issue["code"] == "evidence-not-written"
    assert issue["message"].endswith("(Read-only file system), so this is a report only.")
    assert not (folder / "evidence").exists()


@pytest.mark.sandbox
def test_an_oracle_that_destroys_its_environment_counts_against_the_package(make_package, prove):
    oracle = "echo done > answer.txt\nrm -f /bin/sh /usr/bin/sh /bin/bash /usr/bin/bash\nkill -9 -1\n"
    folder = make_package(files={"oracle/solve.sh": oracle})
    code, [task] = prove(folder)
    assert (code, task["proven"]) == (1, False)
    cases = {case["name"]: case for case in task["cases"]}
    assert cases["no-op"]["passed"]
    assert cases["oracle"]["rewards"] == [None]
    assert not cases["oracle"].get("undecided")
    assert "not scored" in cases["oracle"]["reasons"][0]


def test_a_verifier_that_never_ends_is_stopped_and_not_started_again_for_every_rerun(
    make_package, sandbox_name, capsys
):
    folder = make_package("verifier:\n  timeout_sec: 1\n", verifier="sleep 3600\n")
    words = ["tasks", "prove", "--sandbox", sandbox_name, "--json", str(folder)]
    assert main(words) == 1
    [task] = json.loads(capsys.readouterr().out)["tasks"]
    assert [case["runs"] for case in task["cases"]] == [1, 1, 1]
    assert "exceeded its limit of 1 s" in task["cases"][0]["reasons"][0]
    assert [issue["code"] for issue in task["issues"]] == ["audit-left-out"]


def test_a_secret_is_in_no_file_that_is_written(make_package, prove, monkeypatch):
    monkeypatch.setenv("JUDGE_PASS", "hunter2-hunter2")
    declared = "benchflow:\n  secrets:\n    - {name: JUDGE_PASS, scope: verifier, visibility: runtime_secret}\n"
    verifier = 'echo "$JUDGE_PASS" > /logs/verifier/reward.txt; echo "$JUDGE_PASS"; echo "$JUDGE_PASS" >&2\n'
    folder = make_package(declared, verifier=verifier)
    code, [task] = prove(folder)
    assert (code, bool(task["written"])) == (1, True)
    assert [path for path, data in content(folder).items() if b"hunter2" in data] == []
    assert "hunter2" not in json.dumps(task)


def test_evidence_of_another_package_is_stale_and_is_not_reused(make_package, prove):
    one, other = (
        make_package(name="one"),
        make_package(name="other", files={"oracle/solve.sh": "printf done > answer.txt"}),
    )
    assert prove(one)[0] == 0
    (one / "evidence").rename(other / "evidence")
    assert "evidence-stale" in {issue.code for issue in check_package(load_package(other), level="acceptance")}
    code, [task] = prove(other)
    assert code == 0
    assert "evidence/acceptance/proof-report.json" in task["written"]
