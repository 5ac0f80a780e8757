"""Jobs for real: packages in the local sandbox and installed cubes, killed, interrupted, resumed, run twice."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from loaded_commands import BENCH, bench
from written_documents import check_fits

EXAMPLES = Path(__file__).parents[2] / "examples" / "packages"
LOCAL = ["--sandbox", "local", "--base-image", "host"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("jobs")]


def run(*arguments, cwd):
    result = bench("eval", "run", *arguments, "--json", cwd=cwd)
    assert result.stdout, result.stderr
    return result, json.loads(result.stdout)


def package(folder, name, verifier="echo 1 > /logs/verifier/reward.txt", more=""):
    path = folder / name
    (path / "verifier").mkdir(parents=True)
    (path / "oracle").mkdir()
    (path / "task.md").write_text(f"---\nschema_version: '1.3'\ntask: {{name: t/{name}}}\n{more}---\nDo it.\n")
    (path / "verifier" / "test.sh").write_text(f"#!/bin/sh\n{verifier}\n")
    (path / "oracle" / "solve.sh").write_text("#!/bin/sh\ntouch /app/done\n")
    return path


@pytest.fixture
def tasks(tmp_path):
    """Three packages that the oracle solves and doing nothing does not."""
    for name in ("a", "b", "c"):
        package(tmp_path / "tasks", name, "[ -e /app/done ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt")
    return tmp_path


def test_the_oracle_solves_and_nothing_does_not(tasks):
    result, oracle = run("tasks", "--agent", "oracle", "--sandbox", "local", "--name", "oracle", cwd=tasks)
    assert result.returncode == 0, result.stderr
    assert (oracle["total"], oracle["scored"], oracle["mean_reward"]["value"]) == (3, 3, 1.0)
    _, nothing = run("tasks", "--agent", "nop", "--sandbox", "local", "--name", "nop", "--attempts", 2, cwd=tasks)
    assert (nothing["total"], nothing["mean_reward"]["value"]) == (6, 0.0)
    for summary in (oracle, nothing):
        for line in summary["results"]:
            check_fits(line, "result")
            folder = tasks / "jobs" / summary["job"] / "rollouts" / line["rollout"]
            record = json.loads((folder / "result.json").read_text())
            assert record == {key: value for key, value in line.items() if key != "rollout"}
            assert (folder / "config.json").is_file()
            assert (folder / "trajectory.jsonl").is_file()
    exported = bench("eval", "export", "oracle", "out", "--json", cwd=tasks)
    assert json.loads(exported.stdout)["exported"] == 3
    documents = [json.loads(path.read_text()) for path in (tasks / "out").iterdir()]
    assert {document["schema_version"] for document in documents} == {"ATIF-v1.8"}
    assert all(document["extra"]["reward"] == 1.0 for document in documents)
    assert bench("eval", "export", "oracle", "out", cwd=tasks).returncode == 2
    compared = bench("eval", "compare", "nop", "oracle", "--json", cwd=tasks)
    assert json.loads(compared.stdout)["difference"]["value"] == 1.0


def test_packages_of_one_name_and_equal_ones_are_tasks_of_their_own(tmp_path):
    for place, reward in (("x", 1), ("y", 0), ("z", 0)):
        package(tmp_path / "tasks" / place, "p", f"echo {reward} > /logs/verifier/reward.txt")
    options = ["--agent", "nop", "--sandbox", "local", "--attempts", 2]
    result, summary = run("tasks", *options, "--name", "job", cwd=tmp_path)
    assert (result.returncode, summary["total"], summary["scored"], summary["tasks"]) == (0, 6, 6, 3), result.stderr
    assert sorted(line["task"].get("ordinal", 1) for line in summary["results"]) == [1, 1, 1, 1, 2, 2]
    assert (summary["pass_rate"]["value"], summary["pass_at_k"]["2"]["tasks"]) == (pytest.approx(1 / 3), 3)
    again = bench("eval", "resume", "job", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, ""), "nothing is left to run"
    assert "6 of 6 rollouts scored, 3 tasks" in again.stdout


def test_resume_runs_what_a_damaged_line_said_and_rewrites_nothing(tasks):
    run("tasks", "--agent", "nop", "--sandbox", "local", "--name", "job", cwd=tasks)
    path = tasks / "jobs" / "job" / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1][:40] + b"\n"
    path.write_bytes(b"".join(lines))
    resumed = bench("eval", "resume", "job", "--json", cwd=tasks)
    assert resumed.returncode == 0, resumed.stderr
    assert "jobs/job/results.jsonl, line 2 is damaged and left out: " in resumed.stderr
    assert "[1/1]" in resumed.stderr
    assert path.read_bytes().splitlines(keepends=True)[:3] == lines
    summary = json.loads(resumed.stdout)
    assert (summary["total"], summary["scored"], [line["line"] for line in summary["damaged_lines"]]) == (3, 3, [2])


def test_what_cannot_run_is_reported_and_the_rest_goes_on(tasks):
    broken = tasks / "tasks" / "broken"
    broken.mkdir()
    (broken / "task.md").write_text("---\nnonsense: 1\n---\nx\n")
    package(tasks / "tasks", "windows", more="environment: {os: windows}\n")
    package(tasks / "tasks", "mute", "exit 1")
    result, summary = run("tasks", "--agent", "oracle", "--sandbox", "local", cwd=tasks)
    assert result.returncode == 1
    assert (summary["total"], summary["scored"]) == (6, 3)
    assert summary["unscored_by"] == {"package": 1, "unsupported": 1, "verifier": 1}
    assert "Traceback" not in result.stderr


def test_example_packages_run_with_oracle_and_nothing(tmp_path):
    names = ["rotate-logs", "fix-parser", "count-words", "pack-boxes", "guess-the-number", "two-step-release"]
    paths = [EXAMPLES / name for name in names]
    _, oracle = run(*paths, "--agent", "oracle", *LOCAL, cwd=tmp_path)
    assert {line["task"]["name"]: line["reward"] for line in oracle["results"]} == {f"examples/{n}": 1.0 for n in names}
    _, nothing = run(*paths, "--agent", "nop", *LOCAL, "--name", "nop", cwd=tmp_path)
    scored = {line["task"]["name"]: line["reward"] for line in nothing["results"] if line["status"] == "scored"}
    assert set(scored.values()) == {0.0}
    assert {line["sandbox"]["fidelity"] for line in oracle["results"]} == {"substituted"}


def test_cubes_run_in_the_same_engine(tmp_path):
    result, summary = run("cube:counter-cube", "--agent", "debug", "--attempts", 2, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (summary["total"], summary["mean_reward"]["value"]) == (8, 1.0)
    names = {line["task"]["name"] for line in summary["results"]}
    assert "counter-cube/far-100" in names
    for line in summary["results"]:
        check_fits(line, "result")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing-here", "--agent", "oracle"],
        ["tasks", "--agent", "no-such-agent"],
        ["tasks", "--agent", "oracle", "--sandbox", "no-such-sandbox"],
        ["cube:no-such-cube", "--agent", "debug"],
        ["tasks", "--agent", "oracle", "--name", "../x"],
        ["tasks", "--agent", "oracle", "--concurrency", "0"],
        ["tasks"],
    ],
)
def test_wrong_usage_ends_with_two_and_leaves_nothing(tasks, invoke, arguments):
    code, out, err = invoke("eval", "run", *arguments, "--json")
    assert (code, out) == (2, ""), err
    assert not list((tasks / "jobs").glob("*"))


def test_a_name_that_is_taken_points_to_resume(tasks):
    run("tasks/a", "--agent", "nop", "--sandbox", "local", "--name", "mine", cwd=tasks)
    again = bench("eval", "run", "tasks/a", "--agent", "nop", "--name", "mine", cwd=tasks)
    assert again.returncode == 2
    assert "bench eval resume mine" in again.stderr


def processes_of(folder):
    """Processes that a job left, found by the folder in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(folder) in (entry / "cmdline").read_bytes().decode(errors="replace"):
                    found.append(entry.name)
            except OSError:
                continue
    return found


def test_a_job_that_is_killed_among_its_results_loses_nothing_and_repeats_nothing(tmp_path):
    for number in range(6):
        package(tmp_path / "tasks", f"t{number}", "echo 1 > /logs/verifier/reward.txt")
    arguments = ["eval", "run", "tasks", "--agent", "nop", "--sandbox", "local", "--attempts", "4", "--name", "job"]
    job = subprocess.Popen([*BENCH, *arguments], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    results = tmp_path / "jobs" / "job" / "results.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and job.poll() is None:
        if results.exists() and results.read_bytes().count(b"\n") >= 7:
            break
        time.sleep(0.01)
    job.kill()
    job.wait()
    before = results.read_bytes()
    whole = before[: before.rfind(b"\n") + 1]
    resumed = bench("eval", "resume", "job", "--json", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    after = results.read_bytes()
    assert after.startswith(whole)
    keys = [json.loads(line)["key"] for line in after.splitlines()]
    assert len(keys) == len(set(keys)) == 24
    assert json.loads(resumed.stdout)["scored"] == 24
    assert processes_of(tmp_path) == []


def test_interrupting_once_ends_cleanly_and_can_be_resumed(tmp_path):
    sleeper = tmp_path / "sleep.sh"
    sleeper.write_text("sleep 30\n")
    for name in ("a", "b", "c"):
        package(tmp_path / "tasks", name)
    arguments = ["eval", "run", "tasks", "--agent", f"script:{sleeper}", "--sandbox", "local", "--name", "job"]
    job = subprocess.Popen(
        [*BENCH, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True, stdout=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list((tmp_path / "jobs").glob("job/rollouts/*/trajectory.jsonl")):
        time.sleep(0.05)
    locked = bench("eval", "resume", "job", cwd=tmp_path)
    assert (locked.returncode, "another process" in locked.stderr) == (2, True)
    job.send_signal(signal.SIGINT)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 130, errors
    assert "bench eval resume job" in errors
    sleeper.write_text("true\n")
    summary = json.loads(bench("eval", "resume", "job", "--json", cwd=tmp_path).stdout)
    assert (summary["total"], summary["scored"]) == (3, 3)
