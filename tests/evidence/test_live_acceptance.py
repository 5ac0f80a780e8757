"""The level acceptance-live: cases are run, judged and reported; reports that do not hold are refused."""

import hashlib
import json
from dataclasses import replace

import pytest

from benchflow.evidence.live_acceptance import _play
from benchflow.evidence.live_check import LiveOptions, check_live
from benchflow.evidence.trial_stage import StageOptions
from benchflow.record.live_report import LiveReport
from benchflow.task.checks import check_folder
from benchflow.task.package import load_package
from live_packages import EVIDENCE_FILES, FOLDER, LIVE, REPORT, pin_package, write_live_package

pytestmark = pytest.mark.anyio


@pytest.fixture
def checked(backend, tmp_path):
    """Check a package live."""

    async def run(folder, **options):
        settings = LiveOptions("local", StageOptions(sandbox=backend), **options)
        return await check_live(load_package(folder), str(folder), settings)

    return run


@pytest.fixture
def package(tmp_path):
    def make(**changes):
        return write_live_package(tmp_path / "task", **changes)

    return make


def codes(report):
    return [issue.code for issue in report.issues if issue.severity == "error"]


def one_case(**case):
    return {"cases": [{"name": "one", "type": "verifier", "expect": {"reward_min": 1.0}, **case}], "report": REPORT}


def tree(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def test_declared_and_generated_cases_are_run_and_reported(package, checked):
    folder = package()
    report = await checked(folder)
    assert report.issues == ()
    text = (folder / REPORT).read_bytes()
    found = LiveReport.from_dict(json.loads(text))
    assert [(run.case, run.run_index, run.reward, run.source) for run in found.runs] == [
        ("live-oracle", 1, 1.0, "declared"),
        ("live-oracle", 2, 1.0, "declared"),
        ("nothing", 1, 0.0, "calibration-report"),
        ("wrong", 1, 0.0, "calibration-report"),
        ("half", 1, 0.5, "calibration-report"),
        ("gold", 1, 1.0, "calibration-report"),
    ]
    assert (found.summary.total_runs, found.summary.failed_runs, found.summary.max_reward) == (6, 0, 1.0)
    assert found.leaderboard_suitability.status == "suitable"
    assert "exploit-audit" in found.leaderboard_suitability.unchecked
    sidecar = (folder / f"{REPORT}.sha256").read_text()
    assert sidecar == f"{hashlib.sha256(text).hexdigest()}  {REPORT}\n"
    assert report.live["report"] == str(folder / REPORT)
    assert check_folder(folder, level="acceptance").issues == (), "a live report that holds leaves nothing to say"


async def test_a_case_outside_its_bounds_fails_with_its_place(package, checked):
    live = {**LIVE, "cases": [{"name": "low", "type": "oracle", "expect": {"reward_max": 0.5}}]}
    report = await checked(package(live=live))
    failed = [issue for issue in report.issues if issue.code == "live-case-failed"]
    assert [issue.path for issue in failed] == ["benchflow.evidence.acceptance_live.cases[0]"]
    assert "the reward 1 is above 0.5" in failed[0].message
    assert report.live["case_summaries"][0]["status"] == "failed"
    assert "live-unsuitable" in codes(report)


@pytest.mark.parametrize(
    ("allowed", "failures"), [(None, ["run 1: The command"]), (0.2, ["1 of 2 runs failed"]), (0.5, [])]
)
async def test_a_tolerated_flake_rate_decides_over_single_runs(package, checked, monkeypatch, allowed, failures):
    played = []

    async def flaky(stage, case, staged):
        played.append(case)
        return await _play(stage, replace(case, command="exit 3") if len(played) == 1 else case, staged)

    monkeypatch.setattr("benchflow.evidence.live_acceptance._play", flaky)
    expect = {"reward_equals": 1.0, **({} if allowed is None else {"flake_rate_max": allowed})}
    report = await checked(package(live=one_case(command="echo done > answer.txt", reruns=2, expect=expect)))
    assert report.live["summary"]["flake_rate"] == 0.5
    assert codes(report) == ["live-case-failed"] * len(failures)
    assert all(words in issue.message for words, issue in zip(failures, report.issues, strict=True))


async def test_a_command_that_fails_is_a_failed_run_without_a_reward(package, checked):
    folder = package(live=one_case(command="exit 3"))
    report = await checked(folder)
    assert codes(report) == ["live-case-failed"]
    run = json.loads((folder / REPORT).read_bytes())["runs"][0]
    assert (run["reward"], run["status"], run["diagnostic_code"]) == (None, "failed", "setup_command_failed")
    assert "exited with code 3" in run["error"]


async def test_a_verifier_that_never_ends_is_a_failed_run(package, checked):
    files = {"verifier/test.sh": "#!/bin/sh\nsleep 600\n"}
    report = await checked(package(live=one_case(), files=files, root={"verifier": {"timeout_sec": 1}}))
    assert codes(report) == ["live-case-failed"]
    assert report.live["summary"]["max_reward"] is None


async def test_an_oracle_that_destroys_its_working_folder_fails(package, checked):
    live = {"cases": [{"name": "solve", "type": "oracle", "expect": {"reward_min": 1.0}}], "report": REPORT}
    report = await checked(package(live=live, files={"oracle/solve.sh": "#!/bin/sh\nrm -rf /app\n"}))
    assert codes(report) == ["live-case-failed"]


async def test_the_worktree_is_staged_where_a_workspace_is_declared(package, checked, tmp_path):
    work = tmp_path / "work"
    (work / "node_modules").mkdir(parents=True)
    (work / "node_modules/big.js").write_text("left out")
    (work / "real.txt").write_text("done")
    (work / "answer.txt").symlink_to("real.txt")
    live = {**one_case(type="reference", command="test ! -e node_modules"), "workspace": {"target": "/app"}}
    folder = package(live=live)
    report = await checked(folder, worktree=work)
    assert report.issues == ()
    workspace = json.loads((folder / REPORT).read_bytes())["workspace"]
    assert (workspace["source"], workspace["target"]) == ("current-worktree", "/app")
    (work / "real.txt").write_text("wrong")
    assert codes(await checked(folder, worktree=work)) == ["live-case-failed"]
    changed = json.loads((folder / REPORT).read_bytes())["workspace"]
    assert changed["staged_tree_sha256"] != workspace["staged_tree_sha256"]


async def test_nothing_is_staged_without_a_declared_workspace(package, checked, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "answer.txt").write_text("done")
    report = await checked(package(live=one_case(expect={"reward_max": 0.0})), worktree=work)
    assert report.issues == ()


async def test_without_a_report_the_tree_is_unchanged(package, checked, tmp_path):
    folder = package()
    before = tree(folder)
    assert (await checked(folder, write_report=False)).issues == ()
    assert tree(folder) == before
    output = tmp_path / "elsewhere.json"
    assert (await checked(folder, report_output=output)).live["report"] == str(output)
    assert tree(folder) == before
    assert (tmp_path / "elsewhere.json.sha256").read_text().endswith("  elsewhere.json\n")


async def test_a_run_that_breaks_off_leaves_the_old_report(package, checked, monkeypatch):
    folder = package()
    await checked(folder)
    before = tree(folder)

    async def broken(*_args, **_options):
        raise MemoryError

    monkeypatch.setattr("benchflow.evidence.live_acceptance._play", broken)
    with pytest.raises(ExceptionGroup):
        await checked(folder)
    assert tree(folder) == before


async def test_a_folder_that_cannot_be_written_gets_no_report_and_a_warning(package, checked):
    folder = package()
    (folder / REPORT).mkdir()
    report = await checked(folder)
    assert [(issue.code, issue.severity) for issue in report.issues] == [("report-not-written", "warning")]
    assert report.live["summary"]["failed_runs"] == 0


async def test_no_secret_value_is_in_a_report(package, checked, monkeypatch):
    monkeypatch.setenv("LIVE_TOKEN", "a-secret-value-42")
    secrets = [{"name": "LIVE_TOKEN", "scope": "verifier", "visibility": "runtime_secret", "never_persist": True}]
    live = one_case(command=": a-secret-value-42")
    folder = package(live=live)
    text = (folder / "task.md").read_text().replace("benchflow:\n", f"benchflow:\n  secrets: {json.dumps(secrets)}\n")
    (folder / "task.md").write_text(text)
    pin_package(folder)
    report = await checked(folder)
    assert codes(report) == ["live-case-failed"]
    assert "a-secret-value-42" not in (folder / REPORT).read_text()


async def test_a_package_with_an_error_is_not_run(package, checked, monkeypatch):
    folder = package()
    (folder / FOLDER / "review.json").unlink()

    async def run(*_args, **_options):
        pytest.fail("it was run")

    monkeypatch.setattr("benchflow.evidence.live_check.run_live", run)
    report = await checked(folder)
    assert report.live is None
    assert "evidence-file-missing" in codes(report)


@pytest.mark.parametrize(
    ("live", "words"),
    [
        ({}, "there are no live cases"),
        ({"report": REPORT}, "neither cases nor calibration"),
        ({**LIVE, "cases": [{"name": "half", "type": "oracle", "expect": {"reward_min": 1}}]}, "called 'half'"),
        (one_case(type="partial"), "no command and no workspace"),
        ({key: value for key, value in LIVE.items() if key != "report"}, "needs a report"),
    ],
)
async def test_live_cases_that_cannot_be_run_are_refused(package, checked, live, words):
    report = await checked(package(live=live))
    assert report.live is None
    assert any(words in issue.message for issue in report.issues)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"command": None}, "needs a command"), ({"command": "a\nb"}, "single line"), ({"name": ""}, "no name")],
)
async def test_calibration_entries_must_be_runnable(package, checked, change, words):
    calibration = json.loads(json.dumps(EVIDENCE_FILES["calibration-report.json"]))
    calibration["cases"][2].update(change)
    folder = package(files={f"{FOLDER}/calibration-report.json": json.dumps(calibration)})
    report = await checked(folder)
    assert codes(report) == ["live-case-invalid"]
    assert words in report.issues[0].message
