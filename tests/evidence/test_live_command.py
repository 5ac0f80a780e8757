"""`bench tasks check --level acceptance-live`, from the command line."""

import json

import pytest

from live_packages import REPORT, write_live_package

LIVE = ("tasks", "check", "task", "--level", "acceptance-live")


@pytest.mark.sandbox
def test_a_package_is_proven_live_in_a_real_sandbox(invoke, tmp_path):
    folder = write_live_package(tmp_path / "task")
    code, out, _ = invoke(*LIVE, "--sandbox", "local", "--base-image", "host", "--json")
    document = json.loads(out)
    assert (code, document["tasks"][0]["issues"]) == (0, [])
    assert document["level"] == "acceptance-live"
    live = document["tasks"][0]["live"]
    assert (live["summary"]["passed_runs"], live["leaderboard_suitability"]["status"]) == (6, "suitable")
    assert json.loads((folder / REPORT).read_bytes())["sandbox"] == "local"
    code, out, _ = invoke("tasks", "check", "task", "--level", "acceptance", "--json")
    assert (code, json.loads(out)["tasks"][0]["issues"]) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*LIVE,), "needs a sandbox"),
        ((*LIVE, "--sandbox", "nowhere"), "nowhere"),
        ((*LIVE, "--sandbox", "local", "--no-report-write", "--report-output", "r.json"), "contradict"),
        ((*LIVE, "--sandbox", "local", "--report-output", "none/r.json"), "does not exist"),
        ((*LIVE, "--sandbox", "local", "--report-output", "task/task.md"), "not an older report"),
        ((*LIVE, "task2", "--sandbox", "local", "--report-output", "r.json"), "one package"),
        (("tasks", "check", "task", "--report-output", "r.json"), "acceptance-live"),
        (("tasks", "check", "task", "--base-image", "host"), "acceptance-live"),
        (("tasks", "check", "task", "--pull", "never"), "acceptance-live"),
        (("tasks", "check", "task", "--machine-settings", "none"), "acceptance-live"),
    ],
)
def test_wrong_usage_ends_with_2_and_changes_nothing(invoke, tmp_path, monkeypatch, arguments, words):
    monkeypatch.setenv("BENCHCUBE_MACHINE_SETTINGS", "none")
    for name in ("task", "task2"):
        write_live_package(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = invoke(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert sorted(tmp_path.rglob("*")) == before


def test_the_level_that_runs_nothing_says_so(invoke, tmp_path):
    write_live_package(tmp_path / "task")
    for level in ("publication-grade", "acceptance"):
        code, out, _ = invoke("tasks", "check", "task", "--level", level, "--json")
        found = [(issue["code"], issue["severity"]) for issue in json.loads(out)["tasks"][0]["issues"]]
        assert (code, found) == (0, [("live-proof-not-run", "warning")])
