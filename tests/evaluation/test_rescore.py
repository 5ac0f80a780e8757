"""Rescoring: jobs scored again by changed verifiers, without the agent, with every earlier verdict kept."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from benchflow.cli import main
from loaded_commands import BENCH
from written_documents import check_fits

SANDBOX = ["local"]
"""Where jobs of the running test are run: in memory, unless it is marked `sandbox`."""
SAYS = "grep -q right /app/answer.txt && r=1 || r=0; echo $r > /logs/verifier/reward.txt"


def bench(*arguments, cwd):
    """Run `bench` inside this process: what it does is the same, and it is loaded once."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@pytest.fixture(autouse=True)
def sandbox(sandbox_name):
    SANDBOX[:] = [sandbox_name]


def package(folder, name, verifier=SAYS, more="", files=None):
    path = folder / name
    everything = {
        "task.md": f"---\nschema_version: '1.3'\ntask: {{name: t/{name}}}\n{more}---\nDo it.\n",
        "verifier/test.sh": f"#!/bin/sh\n{verifier}\n",
        "oracle/solve.sh": "#!/bin/sh\necho right > /app/answer.txt\n",
        **(files or {}),
    }
    for file, text in everything.items():
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).write_text(text)
    return path


def run(cwd, *arguments, agent="oracle"):
    done = bench(
        "eval",
        "run",
        "tasks",
        "--agent",
        agent,
        "--sandbox",
        SANDBOX[0],
        "--name",
        "job",
        "--json",
        *arguments,
        cwd=cwd,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def rescore(cwd, *arguments):
    done = bench("eval", "rescore", "job", "--json", *arguments, cwd=cwd)
    assert done.stdout, done.stderr
    return done, json.loads(done.stdout)


def lines(cwd):
    return [json.loads(line) for line in (cwd / "jobs/job/results.jsonl").read_bytes().splitlines()]


def test_a_changed_verifier_scores_again_and_the_earlier_verdict_stays(tmp_path):
    once = tmp_path / "once.sh"
    once.write_text("echo wrong > answer.txt\n")
    for name in ("a", "b"):
        package(tmp_path / "tasks", name)
    before = run(tmp_path, "--attempts", 2, agent=f"script:{once}")
    assert before["mean_reward"]["value"] == 0.0
    first_lines = (tmp_path / "jobs/job/results.jsonl").read_bytes()
    once.write_text("exit 1\n")  # whoever ran the agent again would not find the answer
    for name in ("a", "b"):
        test = tmp_path / "tasks" / name / "verifier" / "test.sh"
        test.write_text(test.read_text().replace("right", "wrong"))
    done, report = rescore(tmp_path)
    assert done.returncode == 0, done.stderr
    assert (len(report["rescored"]), report["not_rescored"], report["changed_packages"]) == (4, [], {})
    assert {item["before"]["reward"] for item in report["rescored"]} == {0.0}
    assert {item["after"]["reward"] for item in report["rescored"]} == {1.0}
    assert (tmp_path / "jobs/job/results.jsonl").read_bytes().startswith(first_lines)
    written = lines(tmp_path)
    assert len(written) == 8
    for line in written[4:]:
        check_fits(line, "result")
        folder = tmp_path / "jobs/job/rollouts" / line["rollout"]
        assert json.loads((folder / "result.json").read_text())["reward"] == 0.0
        new = folder / line["rescore"]["folder"]
        assert json.loads((new / "result.json").read_text())["reward"] == 1.0
        assert (new / "verifier" / "reward.txt").read_text().strip() == "1.0"
        assert line["rescore"]["verifier_digest"].startswith("sha256:")
        assert line["rescore"]["before"] == {"status": "scored", "reward": 0.0}
    shown = json.loads(bench("eval", "show", "job", "--json", cwd=tmp_path).stdout)
    assert (shown["total"], shown["mean_reward"]["value"]) == (4, 1.0)
    assert json.loads((tmp_path / "jobs/job/summary.json").read_text()) == shown
    bench("eval", "export", "job", "out", cwd=tmp_path)
    assert {json.loads(path.read_text())["extra"]["reward"] for path in (tmp_path / "out").iterdir()} == {1.0}
    resumed = bench("eval", "resume", "job", "--json", cwd=tmp_path)
    assert (resumed.returncode, len(lines(tmp_path))) == (0, 8), "a resume runs the agent for nothing"
    assert json.loads(resumed.stdout)["total"] == 4


def test_what_was_not_kept_is_named_and_the_rest_goes_on(tmp_path):
    package(tmp_path / "tasks", "a")
    package(tmp_path / "tasks", "no-oracle")
    (tmp_path / "tasks/no-oracle/oracle/solve.sh").unlink()
    assert run(tmp_path)["scored"] == 1
    done, report = rescore(tmp_path)
    assert done.returncode == 1
    assert [item["task"] for item in report["rescored"]] == ["t/a"]
    [kept] = report["not_rescored"]
    assert (kept["task"], kept["reason"].count(".")) == ("t/no-oracle", 1)


def test_without_workspaces_nothing_is_scored_again_and_every_rollout_says_so(tmp_path):
    package(tmp_path / "tasks", "a")
    run(tmp_path, "--no-workspaces")
    assert not list(tmp_path.rglob("workspace.tar.gz"))
    done, report = rescore(tmp_path)
    assert done.returncode == 1
    assert [item["reason"] for item in report["not_rescored"]] == ["Its workspace was not kept: It was not asked for."]
    assert len(lines(tmp_path)) == 1


def test_packages_that_changed_in_something_else_are_named(tmp_path):
    folder = package(tmp_path / "tasks", "a")
    package(tmp_path / "tasks", "b")
    run(tmp_path)
    (folder / "task.md").write_text((folder / "task.md").read_text().replace("Do it.", "Do it well."))
    _, report = rescore(tmp_path)
    assert report["changed_packages"] == {"t/a": ["task"]}
    assert len(report["rescored"]) == 2
    said = bench("eval", "rescore", "job", cwd=tmp_path).stdout
    assert "t/a has also changed in task since its rollouts" in said


def test_an_unscored_rollout_is_scored_once_its_verifier_works(tmp_path):
    folder = package(tmp_path / "tasks", "a", "exit 1")
    assert run(tmp_path)["unscored_by"] == {"verifier": 1}
    (folder / "verifier/test.sh").write_text(f"#!/bin/sh\n{SAYS}\n")
    done, report = rescore(tmp_path)
    assert (done.returncode, report["summary"]["mean_reward"]["value"]) == (0, 1.0)


def test_a_verifier_that_breaks_takes_the_score_away_and_can_be_mended(tmp_path):
    folder = package(tmp_path / "tasks", "a")
    run(tmp_path)
    (folder / "verifier/test.sh").write_text("#!/bin/sh\nexit 1\n")
    done, report = rescore(tmp_path)
    assert (done.returncode, report["summary"]["unscored_by"]) == (1, {"verifier": 1})
    (folder / "verifier/test.sh").write_text(f"#!/bin/sh\n{SAYS}\n")
    done, report = rescore(tmp_path)
    assert (done.returncode, report["number"], report["summary"]["mean_reward"]["value"]) == (0, 2, 1.0)
    assert len(lines(tmp_path)) == 3


def test_steps_are_scored_again_one_by_one(tmp_path):
    step = "verifier/test.sh", "[ -e /app/{name} ] && r={reward} || r=0; echo $r > /logs/verifier/reward.txt"
    files = {}
    for name, reward in (("one", 1), ("two", 0.5)):
        files[f"steps/{name}/instruction.md"] = f"Make {name}.\n"
        files[f"steps/{name}/{step[0]}"] = "#!/bin/sh\n" + step[1].format(name=name, reward=reward) + "\n"
        files[f"steps/{name}/oracle/solve.sh"] = f"#!/bin/sh\ntouch /app/{name}\n"
    more = "steps: [{name: one, min_reward: 1.0}, {name: two}]\n"
    folder = package(tmp_path / "tasks", "a", more=more, files=files)
    assert run(tmp_path)["mean_reward"]["value"] == 0.75
    test = folder / "steps/two/verifier/test.sh"
    test.write_text(test.read_text().replace("0.5", "1"))
    done, report = rescore(tmp_path)
    assert (done.returncode, report["summary"]["mean_reward"]["value"]) == (0, 1.0), done.stderr
    first = folder / "steps/one/verifier/test.sh"
    first.write_text(first.read_text().replace("r=1", "r=0.25"))
    _, report = rescore(tmp_path)
    [line] = report["summary"]["results"]
    assert [(item["name"], item["status"]) for item in line["steps"]] == [("one", "scored"), ("two", "not-reached")]
    assert line["reward"] == 0.125


def test_a_step_that_the_agent_never_reached_cannot_be_scored(tmp_path):
    files = {}
    for name in ("one", "two"):
        files[f"steps/{name}/instruction.md"] = "Do it.\n"
        files[f"steps/{name}/verifier/test.sh"] = "#!/bin/sh\necho 0 > /logs/verifier/reward.txt\n"
    folder = package(tmp_path / "tasks", "a", more="steps: [{name: one, min_reward: 1.0}, {name: two}]\n", files=files)
    assert run(tmp_path, agent="nop")["mean_reward"]["value"] == 0.0
    (folder / "steps/one/verifier/test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    done, report = rescore(tmp_path)
    assert done.returncode == 1
    assert "Step two was not reached by the agent" in report["not_rescored"][0]["reason"]
    assert report["summary"]["mean_reward"]["value"] == 0.0
    assert len(lines(tmp_path)) == 1


def gives(reward):
    return f"echo {reward} > /logs/verifier/reward.txt"


def test_the_rollouts_of_a_package_that_is_gone_are_not_scored_by_another_of_its_name(tmp_path):
    for place, reward in (("x", 0.25), ("y", 0.5)):
        package(tmp_path / "tasks" / place, "p", gives(reward))
    run(tmp_path)
    shutil.rmtree(tmp_path / "tasks/x")
    package(tmp_path / "tasks/y", "p", gives(0.75))
    done, report = rescore(tmp_path)
    assert done.returncode == 1
    assert [(item["before"]["reward"], item["after"]["reward"]) for item in report["rescored"]] == [(0.5, 0.75)]
    assert [item["reason"] for item in report["not_rescored"]] == [
        "Its package is no longer in the sources of the job."
    ]
    (tmp_path / "tasks/y").rename(tmp_path / "tasks/x")
    _, report = rescore(tmp_path)
    assert report["rescored"] == []
    assert len(report["not_rescored"]) == 2


def test_packages_of_one_name_that_changed_places_keep_their_own_rollouts(tmp_path):
    for place, reward in (("x", 0.25), ("y", 0.5)):
        package(tmp_path / "tasks" / place, "p", gives(reward))
    run(tmp_path)
    for before, after in (("x", "z"), ("y", "x"), ("z", "y")):
        (tmp_path / "tasks" / before).rename(tmp_path / "tasks" / after)
    done, report = rescore(tmp_path)
    assert done.returncode == 0
    assert [item["before"] for item in report["rescored"]] == [item["after"] for item in report["rescored"]]
    shutil.rmtree(tmp_path / "tasks/y")
    _, report = rescore(tmp_path)
    assert [item["after"]["reward"] for item in report["rescored"]] == [0.5]
    assert [item["reason"] for item in report["not_rescored"]] == ["tasks/x/p now contains another package."]


def test_of_two_equal_packages_the_one_that_changed_is_scored_as_it_is_now(tmp_path):
    for place in ("x", "y"):
        package(tmp_path / "tasks" / place, "p", gives(0.25))
    run(tmp_path)
    package(tmp_path / "tasks/x", "p", gives(0.75))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = bench("eval", "rescore", tmp_path / "jobs/job", "--json", cwd=elsewhere)
    report = json.loads(done.stdout)
    assert (done.returncode, report["not_rescored"]) == (0, [])
    after = {line["task"]["path"]: line["reward"] for line in report["summary"]["results"]}
    assert after == {"tasks/x/p": 0.75, "tasks/y/p": 0.25}


def test_attempts_and_packages_of_one_name_are_told_apart_in_every_line(tmp_path):
    for place, reward in (("x", 0.25), ("y", 0.5)):
        package(tmp_path / "tasks" / place, "p", gives(reward))
    run(tmp_path)
    table = bench("eval", "show", "job", cwd=tmp_path).stdout.splitlines()
    names = {line.split()[0] for line in table if line.startswith("t/p@")}
    shutil.rmtree(tmp_path / "tasks/x")
    done = bench("eval", "rescore", "job", cwd=tmp_path)
    progress = re.search(r"^\[1/1\] (t/p@\w{8}), attempt 1: 0.5 → 0.5$", done.stderr, re.MULTILINE)
    kept = re.search(r"^(t/p@\w{8}), attempt 1 keeps its verdict: Its package", done.stdout, re.MULTILINE)
    assert {progress[1], kept[1]} == names


def test_resuming_a_job_whose_package_changed_ends_well_and_leaves_the_earlier_result_out(tmp_path):
    package(tmp_path / "tasks", "a", gives(0.25))
    package(tmp_path / "tasks", "b", gives(0.5))
    run(tmp_path)
    package(tmp_path / "tasks", "a", gives(0.75))
    done = bench("eval", "resume", "job", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "2 of 2 rollouts scored, 2 tasks" in done.stdout
    assert "mean reward 0.625" in done.stdout
    assert "1 result is left out, because its package has changed or is gone" in done.stdout
    assert len(lines(tmp_path)) == 3
    shown = bench("eval", "show", "job", cwd=tmp_path)
    assert [line.split()[0] for line in shown.stdout.splitlines() if line.startswith("t/")] == ["t/a", "t/b"]
    assert "mean reward 0.625" in shown.stdout
    assert "1 result is left out, because its package has changed or is gone" in shown.stdout
    [listed] = json.loads(bench("eval", "list", "--json", cwd=tmp_path).stdout)["jobs"]
    assert (listed["total"], listed["scored"], listed["state"]) == (2, 2, "finished")


def test_an_export_names_a_rollout_whose_folder_is_missing_and_has_the_others(tmp_path):
    for name in ("a", "b"):
        package(tmp_path / "tasks", name)
    missing = run(tmp_path)["results"][0]["rollout"]
    shutil.rmtree(tmp_path / "jobs/job/rollouts" / missing)
    done = bench("eval", "export", "job", "out", "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (done.returncode, report["exported"], report["missing"]) == (1, 1, [missing])
    assert f"{missing} is left out: " in done.stderr
    assert len(list((tmp_path / "out").iterdir())) == 1


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("jobs")
def test_a_pass_that_is_killed_goes_on_and_repeats_nothing(tmp_path):
    for number in range(6):
        package(tmp_path / "tasks", f"t{number}")
    run(tmp_path)
    for number in range(6):  # the later ones take so long that the pass is surely under way when it is killed
        slow = "sleep 20" if number > 2 else "sleep 0.1"
        (tmp_path / f"tasks/t{number}/verifier/test.sh").write_text(f"#!/bin/sh\n{slow}\n{SAYS}\n")
    command = [*BENCH, "eval", "rescore", "job", "--concurrency", "2"]
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(lines(tmp_path)) < 8 and job.poll() is None:
        time.sleep(0.02)
    locked = bench("eval", "rescore", "job", cwd=tmp_path)
    assert (locked.returncode, "another process" in locked.stderr) == (2, True)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    for number in range(3, 6):
        (tmp_path / f"tasks/t{number}/verifier/test.sh").write_text(f"#!/bin/sh\n{SAYS}\n")
    done, report = rescore(tmp_path)
    assert done.returncode == 0, done.stderr
    rescored = [line["rollout"] for line in lines(tmp_path)[6:]]
    assert sorted(rescored) == sorted(set(rescored))
    assert (len(rescored), report["number"], report["already"] + len(report["rescored"])) == (6, 1, 6)
    assert report["already"] >= 2
    assert not list((tmp_path / "jobs").rglob(".benchflow-*"))


def test_a_rescore_of_nothing_is_wrong_usage(tmp_path):
    done = bench("eval", "rescore", "nothing", "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_damaged_workspace_keeps_the_verdict_and_says_so(tmp_path):
    for name in ("a", "b", "c"):
        package(tmp_path / "tasks", name)
    run(tmp_path)
    for archive, damaged in zip(
        tmp_path.rglob("workspace.tar.gz"),
        (lambda _: b"", lambda _: b"no archive", lambda whole: whole[:-60]),
        strict=True,
    ):
        archive.write_bytes(damaged(archive.read_bytes()))
    done, report = rescore(tmp_path)
    assert done.returncode == 1
    assert ["damaged" in each["reason"] for each in report["not_rescored"]] == [True] * 3
    assert report["summary"]["mean_reward"]["value"] == 1.0


def test_secrets_are_not_in_what_is_kept(tmp_path, monkeypatch):
    package(tmp_path / "tasks", "a", more="benchflow: {secrets: [{name: TASK_TOKEN, scope: agent}]}\n")
    script = tmp_path / "agent.sh"
    script.write_text('echo "right $TASK_TOKEN" > answer.txt; touch "name-$TASK_TOKEN"\n')
    monkeypatch.setenv("TASK_TOKEN", "hush-hush-hush")
    arguments = ["tasks", "--agent", f"script:{script}", "--sandbox", SANDBOX[0], "--name", "job", "--json"]
    done = bench("eval", "run", *arguments, cwd=tmp_path)
    assert json.loads(done.stdout)["scored"] == 1, done.stdout
    [archive] = tmp_path.rglob("workspace.tar.gz")
    unpacked = subprocess.run(["gzip", "-dc", archive], capture_output=True, check=True).stdout
    assert b"hush-hush" not in unpacked
    assert b"right [redacted]" in unpacked
    monkeypatch.delenv("TASK_TOKEN")
    done, report = rescore(tmp_path)
    assert report["summary"]["mean_reward"]["value"] == 1.0, report
