"""A job of version 0.1 is shown by everything that shows jobs, is not changed by it, and cannot be continued.

`data/job-v1` was written by that version: five packages by the oracle, then scored again with one verifier changed.
"""

import json
import shutil
from pathlib import Path

import pytest

from benchflow.record import Isolation, Job, Result, RolloutFolder, read_rewards, read_trajectory
from written_documents import check_fits

OLD = Path(__file__).parent / "data" / "job-v1"


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    shutil.copytree(OLD, tmp_path / "jobs" / "old")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "jobs"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_its_results_are_read_as_results_of_today(jobs):
    job = Job.find(jobs, "old")
    assert (job.record.upgraded, job.record.planned, job.record.request.agent) == (True, 5, "oracle")
    assert (job.results.damaged, job.results.lines) == ([], 9)
    found = {result.task.name: result for _, result in job.results}
    assert {name: result.reward for name, result in found.items()} == {
        "invalid": None,
        "t/broken": None,
        "t/half": 0.75,
        "t/right": 1.0,
        "t/steps": 1.0,
    }
    half, right, steps = found["t/half"], found["t/right"], found["t/steps"]
    assert half.task.content_digest == half.task.digest
    assert (half.notes.rescore.pass_number, half.notes.rescore.before.reward) == (1, 0.5)
    assert right.verifier.isolation == Isolation("shared", "default", None)
    assert [artifact.status for artifact in right.notes.artifacts] == ["collected"]
    assert [(step.name, step.status, step.passed) for step in steps.steps] == [
        ("one", "scored", True),
        ("two", "scored", None),
    ]
    assert found["t/broken"].error.code == "reward-missing"
    for result in found.values():
        document = json.loads(json.dumps(result.to_dict()))
        check_fits(document, "result")
        assert Result.from_dict(document) == result


def test_its_rollouts_are_read(jobs):
    for rollout, result in Job.find(jobs, "old").results:
        places = RolloutFolder(jobs / "old" / "rollouts" / rollout)
        if result.task.name != "invalid":
            assert next(read_trajectory(places.trajectory))["type"] == "user_message"
            assert [line.value for line in read_rewards(places.newest().rewards)][-1:] == (
                [] if result.reward is None else [result.reward]
            )


def test_everything_that_shows_jobs_shows_it_and_changes_nothing(jobs, invoke):
    before = contents(jobs)
    code, out, err = invoke("eval", "show", "old", "--json")
    summary = json.loads(out)
    assert (code, summary["scored"], summary["unscored_by"], err) == (0, 3, {"package": 1, "verifier": 1}, "")
    assert summary["mean_reward"]["value"] == pytest.approx(2.75 / 3)
    code, out, _ = invoke("eval", "show", "old")
    assert (code, "3 of 5 rollouts scored, 5 tasks" in out) == (0, True)
    [row] = json.loads(invoke("eval", "list", "--json")[1])["jobs"]
    assert (row["state"], row["scored"], row["problem"]) == ("finished", 3, None)
    compared = json.loads(invoke("eval", "compare", "old", "old", "--json")[1])
    assert (compared["difference"]["value"], len(compared["tasks"])) == (0.0, 3)
    code, _, err = invoke("eval", "export", "old", "out", "--json")
    assert (code, len(list(Path("out").iterdir()))) == (0, 5), err
    assert contents(jobs) == before


def test_no_hint_says_that_it_can_be_continued(jobs, invoke):
    path = jobs / "old" / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "planned": 9}))
    _, out, _ = invoke("eval", "show", "old")
    assert ("4 more planned\n" in out, "resume" in out) == (True, False)
    package = jobs.parent / "tasks" / "p"
    package.mkdir(parents=True)
    (package / "task.md").write_text("---\ntask: {name: t/p}\n---\nDo it.\n")
    code, _, err = invoke("eval", "run", "tasks", "--agent", "nop", "--name", "old")
    assert (code, err) == (2, "bench: Job 'old' exists in jobs. It cannot be continued; choose another name.\n")


@pytest.mark.parametrize("command", ["resume", "rescore"])
def test_continuing_it_is_refused_with_one_sentence(jobs, invoke, command):
    before = contents(jobs)
    code, out, err = invoke("eval", command, "old")
    assert (code, out) == (2, "")
    assert err.startswith(
        "bench: Job 'old' was written by version 0.1, which hashed its inputs differently: it can only be shown"
    )
    assert err.count("\n") == 1
    assert contents(jobs) == before
