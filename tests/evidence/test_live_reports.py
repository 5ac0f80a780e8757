"""Live reports that lie in a package: forged, stale, of another package, inconsistent with their own numbers."""

import hashlib
import json
import shutil

import anyio
import pytest

from benchflow.evidence.live_check import LiveOptions, check_live
from benchflow.evidence.trial_stage import StageOptions
from benchflow.files.strict_json import canonical_sha256
from benchflow.task.checks import check_folder
from benchflow.task.package import load_package
from benchflow.testing import InMemoryBackend
from live_packages import REPORT, pin_package, write_live_package


@pytest.fixture(scope="module")
def proven(tmp_path_factory):
    """A package with a live report that holds."""
    folder = write_live_package(tmp_path_factory.mktemp("live") / "task")
    options = LiveOptions("local", StageOptions(sandbox=InMemoryBackend()))
    report = anyio.run(check_live, load_package(folder), "task", options)
    assert report.issues == ()
    return folder


@pytest.fixture
def package(proven, tmp_path):
    return shutil.copytree(proven, tmp_path / "task")


def rewrite(folder, change, *, sidecar=True, seal=False):
    """Change the report; a careful forger also writes its hashes again."""
    document = json.loads((folder / REPORT).read_bytes())
    change(document)
    for run in document["runs"] if seal else ():
        run["sha256"] = canonical_sha256({key: value for key, value in run.items() if key != "sha256"})
    text = json.dumps(document)
    (folder / REPORT).write_text(text)
    if sidecar:
        (folder / f"{REPORT}.sha256").write_text(f"{hashlib.sha256(text.encode()).hexdigest()}  {REPORT}\n")


def errors(folder):
    return {(issue.code, issue.path) for issue in check_folder(folder, level="acceptance").issues}


def put(*keys, to):
    def change(document):
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = to

    return change


def test_a_changed_byte_does_not_match_the_sidecar(package):
    rewrite(package, put("generated_at", to="2020-01-01T00:00:00Z"), sidecar=False)
    assert errors(package) == {("pin-mismatch", "")}


def test_a_report_without_its_sidecar_is_refused(package):
    (package / f"{REPORT}.sha256").unlink()
    assert {code for code, _ in errors(package)} == {"evidence-file-missing"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (put("runs", 0, "reward", to=0.99), ("pin-mismatch", "runs[0].sha256")),
        (put("summary", "total_runs", to=60), ("evidence-disagrees", "summary.total_runs")),
        (put("summary", "flake_rate", to=0.5), ("evidence-disagrees", "summary.flake_rate")),
        (put("case_summaries", 0, "max_reward", to=0.1), ("evidence-disagrees", "case_summaries[0].max_reward")),
        (put("case_summaries", to=[]), ("evidence-disagrees", "case_summaries")),
        (put("case_summaries", 0, "status", to="failed"), ("evidence-disagrees", "case_summaries[0].status")),
        (put("cases", 0, "reruns", to=20), ("evidence-disagrees", "runs")),
        (put("runs", to="none"), ("evidence-file-invalid", "runs")),
        (put("runs", 0, "status", to="perhaps"), ("evidence-file-invalid", "runs")),
        (put("kind", to="other"), ("evidence-file-invalid", "kind")),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(package, change, expected):
    rewrite(package, change)
    assert expected in errors(package)


def test_a_failed_run_cannot_be_hidden_by_sealing_it_again(package):
    rewrite(package, put("runs", 2, "status", to="failed"), seal=True)
    assert ("evidence-disagrees", "summary.failed_runs") in errors(package)


def test_a_passed_run_without_a_reward_proves_nothing(package):
    rewrite(package, put("runs", 0, "reward", to=None), seal=True)
    assert ("evidence-file-invalid", "runs") in errors(package)


def test_a_reward_outside_the_bounds_of_its_case_cannot_have_passed(package):
    def forge(document):
        document["runs"][2]["reward"] = 0.9  # doing nothing
        document["case_summaries"][1] |= {"min_reward": 0.9, "max_reward": 0.9}

    rewrite(package, forge, seal=True)
    assert ("evidence-disagrees", "runs[2]") in errors(package)


@pytest.mark.parametrize("name", ["verifier/test.sh", "oracle/solve.sh"])
def test_a_package_that_changed_since_makes_the_report_stale(package, name):
    (package / name).write_text((package / name).read_text() + "# changed\n")
    pin_package(package)
    assert errors(package) == {("evidence-stale", "task.content_digest")}


def test_a_changed_case_makes_the_report_stale(package):
    text = (package / "task.md").read_text()
    (package / "task.md").write_text(text.replace("reward_min: 0.99", "reward_min: 0.5"))
    pin_package(package)
    assert errors(package) == {("evidence-stale", "cases")}


def test_the_report_of_another_package_is_refused(package, tmp_path):
    other = write_live_package(tmp_path / "other", files={"verifier/extra.txt": "more"})
    for name in (REPORT, f"{REPORT}.sha256"):
        shutil.copy(package / name, other / name)
    assert ("evidence-stale", "task.content_digest") in errors(other)


def test_a_report_of_another_tool_is_bound_by_its_files(package):
    rewrite(package, lambda document: document["task"].pop("content_digest"))
    assert errors(package) == set()
    (package / "verifier/test.sh").write_text("#!/bin/sh\ntrue\n")
    pin_package(package)
    assert errors(package) == {("evidence-stale", "task.verifier_sha256")}


def test_a_report_that_found_a_package_unsuitable_is_not_enough(package):
    rewrite(package, put("leaderboard_suitability", "status", to="insufficient"))
    assert errors(package) == {("evidence-insufficient", "leaderboard_suitability.status")}
