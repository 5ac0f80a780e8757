"""Jobs in trouble: a disk that is really full, a kill at any moment, agents that cannot begin."""

import json
import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from loaded_commands import BENCH, bench

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("jobs")]
NO_KEYS = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_AUTH_TOKEN"))}


def package(folder, name, verifier="echo 1 > /logs/verifier/reward.txt"):
    path = folder / name
    (path / "verifier").mkdir(parents=True)
    (path / "task.md").write_text(f"---\nschema_version: '1.3'\ntask: {{name: t/{name}}}\n---\nDo it.\n")
    (path / "verifier" / "test.sh").write_text(f"#!/bin/sh\n{verifier}\n")
    return path


@contextmanager
def small_disk(folder, size):
    """A real file system of its own; gives a way to make it larger."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")


@needs_root
def test_a_full_disk_is_told_plainly_and_the_job_goes_on_once_there_is_room(tmp_path):
    for name in "abcdef":
        package(tmp_path / "tasks", name)
    talker = tmp_path / "talker.sh"
    talker.write_text("head -c 600000 /dev/urandom | base64\n")
    with small_disk(tmp_path / "jobs", "2m") as grow:
        arguments = ["tasks", "--agent", f"script:{talker}", "--sandbox", "local", "--name", "job", "--concurrency", 2]
        full = bench("eval", "run", *arguments, cwd=tmp_path)
        assert full.returncode == 1
        assert "unscored (infrastructure/disk-full): No space is left on the disk of" in full.stderr
        assert "bench eval resume job" in full.stderr.splitlines()[-1]
        assert "Traceback" not in full.stderr
        before = (tmp_path / "jobs/job/results.jsonl").read_bytes()
        whole = [json.loads(line) for line in before.splitlines()]
        assert {line["error"]["category"] for line in whole if line["error"]} == {"infrastructure"}
        assert [line["reward"] for line in whole if line["reward"] is not None], "nobody was unharmed"
        grow("64m")
        resumed = bench("eval", "resume", "job", "--json", cwd=tmp_path)
        assert resumed.returncode == 0, resumed.stderr
        summary = json.loads(resumed.stdout)
        assert (summary["total"], summary["scored"]) == (6, 6)
        assert (tmp_path / "jobs/job/results.jsonl").read_bytes().startswith(before)


@needs_root
@pytest.mark.parametrize("command", [["run", "tasks/a"], ["eval", "run", "tasks"]])
def test_a_disk_without_any_room_is_one_sentence(tmp_path, command):
    package(tmp_path / "tasks", "a")
    with small_disk(tmp_path / "jobs", "4k"):
        (tmp_path / "jobs" / "ballast").write_bytes(b"x" * 4096)
        full = bench(*command, "--agent", "nop", "--sandbox", "local", cwd=tmp_path)
        assert full.returncode == 1
        assert "No space" in full.stdout + full.stderr
        assert "Traceback" not in full.stderr


@needs_root
def test_a_full_disk_leaves_the_earlier_verdicts_when_a_job_is_scored_again(tmp_path):
    package(tmp_path / "tasks", "a")
    with small_disk(tmp_path / "jobs", "1m") as grow:
        arguments = ["tasks", "--agent", "nop", "--sandbox", "local", "--name", "job"]
        assert bench("eval", "run", *arguments, cwd=tmp_path).returncode == 0
        free = os.statvfs(tmp_path / "jobs").f_bavail * 4096
        (tmp_path / "jobs" / "ballast").write_bytes(b"x" * free)
        full = bench("eval", "rescore", "job", cwd=tmp_path)
        assert full.returncode == 1
        assert "No space left" in full.stderr + full.stdout
        assert "Traceback" not in full.stderr
        assert (tmp_path / "jobs/job/results.jsonl").read_bytes().count(b"\n") == 1
        grow("4m")
        again = bench("eval", "rescore", "job", "--json", cwd=tmp_path)
        assert (again.returncode, json.loads(again.stdout)["summary"]["scored"]) == (0, 1), again.stderr


@needs_root
def test_a_job_waits_while_its_machine_keeps_failing_and_every_rollout_is_scored_once_it_recovers(tmp_path):
    for number in range(12):
        path = package(tmp_path / "tasks", f"t{number}")
        (path / "verifier" / "large").write_bytes(b"x" * 200_000)
    with small_disk(tmp_path / "scratch", "64k") as grow:
        arguments = ["tasks", "--agent", "nop", "--sandbox", "local", "--name", "job", "--concurrency", "12", "--json"]
        with subprocess.Popen(
            [*BENCH, "eval", "run", *arguments],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as job:
            told = next(line for line in job.stderr if line.startswith("The machine keeps failing"))
            assert "No space left on device. No new rollouts for 5 s; then one is tried." in told
            grow("64m")
            output, rest = job.communicate()
    assert job.returncode == 0, rest
    assert "A rollout has started; the job continues." in rest
    assert json.loads(output)["scored"] == 12


def left_behind(folder):
    """Processes and mounts that name the folder."""
    found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(folder).encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_any_moment_loses_nothing_and_repeats_nothing(tmp_path, seed):
    chance = random.Random(seed)
    for number in range(5):
        package(tmp_path / "tasks", f"t{number}")
    environment = {**os.environ, "TMPDIR": str(tmp_path / "scratch"), "KILLED_JOB": str(tmp_path)}
    (tmp_path / "scratch").mkdir()
    command = ["eval", "run", "tasks", "--agent", "nop", "--sandbox", "local", "--attempts", "3", "--name", "job"]
    whole = b""
    for _ in range(4):
        job = subprocess.Popen(
            [*BENCH, *command], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        )
        time.sleep(chance.uniform(0.3, 2.5))
        job.kill()
        job.wait()
        if (tmp_path / "jobs/job/job.json").exists():
            command = ["eval", "resume", "job"]
        results = tmp_path / "jobs/job/results.jsonl"
        now = results.read_bytes() if results.exists() else b""
        assert now.startswith(whole), "a whole line was changed"
        whole = now[: now.rfind(b"\n") + 1]
    done = bench(*command, "--json", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "jobs/job/results.jsonl").read_bytes().splitlines()]
    keys = [line["key"] for line in lines]
    assert len(keys) == len(set(keys)) == 15
    assert {line["reward"] for line in lines} == {1.0}
    deadline = time.monotonic() + 20
    while left_behind(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_behind(tmp_path) == []


def test_the_deadline_of_a_rollout_holds_in_a_job_and_on_resume(tmp_path):
    package(tmp_path / "tasks", "a", "sleep 600")
    arguments = ["tasks", "--agent", "nop", "--sandbox", "local", "--name", "job", "--timeout", 1, "--json"]
    late = bench("eval", "run", *arguments, cwd=tmp_path)
    for done in (late, bench("eval", "resume", "job", "--json", cwd=tmp_path)):
        [line] = json.loads(done.stdout)["results"]
        assert (line["error"]["category"], line["error"]["code"]) == ("infrastructure", "deadline"), done.stderr


STOP_FAILS = """
import sys
from benchflow.cli import main
from benchflow.environment import Environment

stop, failed = Environment.stop, []

async def fail_once(self):
    await stop(self)
    if not failed:
        failed.append(self)
        raise RuntimeError("the helper is gone")

Environment.stop = fail_once
sys.exit(main())
"""


def test_a_clean_up_that_fails_costs_no_verdict_and_no_other_rollout(tmp_path):
    for name in "abc":
        package(tmp_path / "tasks", name)
    arguments = ["eval", "run", "tasks", "--agent", "nop", "--sandbox", "local", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", STOP_FAILS, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [line["reward"] for line in results] == [1.0] * 3
    [noted] = [line["cleanup"] for line in results if "cleanup" in line]
    assert [(note["what"], "the helper is gone" in note["message"]) for note in noted] == [("environment", True)]


@pytest.mark.parametrize(
    ("agent", "variable"),
    [("model:gpt-4o", "OPENAI_API_KEY"), ("claude", "ANTHROPIC_API_KEY"), ("goose", "OPENROUTER_API_KEY")],
)
@pytest.mark.parametrize("command", [["run", "tasks/a"], ["eval", "run", "tasks"]])
def test_a_missing_key_is_told_before_anything_begins(tmp_path, command, agent, variable):
    package(tmp_path / "tasks", "a")
    refused = bench(*command, "--agent", agent, "--sandbox", "local", cwd=tmp_path, env=NO_KEYS)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert variable in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "jobs").exists()


def test_a_missing_key_of_a_policy_is_told_before_anything_begins(tmp_path):
    refused = bench("eval", "run", "cube:counter-cube", "--agent", "model:gpt-4o", cwd=tmp_path, env=NO_KEYS)
    assert (refused.returncode, "OPENAI_API_KEY" in refused.stderr) == (2, True)
    assert not (tmp_path / "jobs").exists()
