"""Jobs run what was planned: a package that changes before its rollout is unscored, or keeps its verdict."""

import contextlib
import io
import json

import pytest

from benchflow.cli import main
from benchflow.evaluation.packages import PackageRunner

VERIFIER = "#!/bin/sh\necho 0.5 > /logs/verifier/reward.txt\n"
FORGED = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two packages; the working folder is above them."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        place = tmp_path / "tasks" / name
        (place / "verifier").mkdir(parents=True)
        (place / "task.md").write_text(f"---\ntask: {{name: t/{name}}}\n---\nDo it.\n")
        (place / "verifier" / "test.sh").write_text(VERIFIER)
    return tmp_path


def bench(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main([*arguments, "--json"])
    return json.loads(out.getvalue())


def run(sandbox, *arguments):
    options = ("--agent", "nop", "--sandbox", sandbox, "--name", "job", "--concurrency", "1")
    return bench("eval", "run", "tasks", *options, *arguments)


def before(monkeypatch, method, action):
    """Do something on this machine before the runner does what it was asked for the first time."""
    original, done = getattr(PackageRunner, method), []

    async def patched(self, *arguments):
        if not done:
            done.append(True)
            action()
        return await original(self, *arguments)

    monkeypatch.setattr(PackageRunner, method, patched)


def test_a_package_that_changes_before_its_rollout_is_unscored_and_the_others_are_not(
    folder, sandbox_name, monkeypatch
):
    test = folder / "tasks" / "b" / "verifier" / "test.sh"
    before(monkeypatch, "run", lambda: test.write_text(FORGED))
    lines = {line["task"]["name"]: line for line in run(sandbox_name)["results"]}
    assert lines["t/a"]["reward"] == 0.5
    assert (lines["t/b"]["error"]["category"], lines["t/b"]["error"]["code"]) == ("package", "package-changed")
    assert "tasks/b has changed since it was planned: verifier/test.sh" in lines["t/b"]["error"]["message"]
    test.write_text(VERIFIER)
    resumed = {line["task"]["name"]: line["reward"] for line in bench("eval", "resume", "job")["results"]}
    assert resumed == {"t/a": 0.5, "t/b": 0.5}


def test_all_attempts_are_scored_by_what_was_planned_once_the_first_has_begun(folder, sandbox_name, monkeypatch):
    original = PackageRunner.run

    async def run_then_forge(self, item, place):
        result = await original(self, item, place)
        (folder / "tasks" / item.task.payload.path.name / "verifier" / "test.sh").write_text(FORGED)
        return result

    monkeypatch.setattr(PackageRunner, "run", run_then_forge)
    summary = run(sandbox_name, "--attempts", "3")
    assert [line["reward"] for line in summary["results"]] == [0.5] * 6


def test_a_package_that_changes_while_a_job_is_rescored_keeps_its_verdict_and_says_so(
    folder, sandbox_name, monkeypatch
):
    run(sandbox_name)
    for name in ("a", "b"):
        (folder / "tasks" / name / "verifier" / "test.sh").write_text(VERIFIER.replace("0.5", "0.75"))
    before(monkeypatch, "rescore", lambda: (folder / "tasks" / "b" / "verifier" / "test.sh").write_text(FORGED))
    report = bench("eval", "rescore", "job", "--concurrency", "1")
    assert [(item["task"], item["after"]["reward"]) for item in report["rescored"]] == [("t/a", 0.75)]
    [kept] = report["not_rescored"]
    assert kept["task"] == "t/b"
    assert "has changed since it was planned: verifier/test.sh is different" in kept["reason"]
    assert len((folder / "jobs" / "job" / "results.jsonl").read_text().splitlines()) == 3
