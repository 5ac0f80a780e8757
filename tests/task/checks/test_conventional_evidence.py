"""Evidence in its usual places, for packages with the presets of live acceptance."""

import json

import pytest

from benchflow.task.checks import check_folder
from benchflow.task.checks.conventional_evidence import effective_evidence
from benchflow.task.package import load_package
from live_packages import EVIDENCE_FILES, FOLDER, REPORT, write_live_package

PRESET = {"preset": "leaderboard-local"}


def found(folder):
    return effective_evidence(load_package(folder))


def codes(folder):
    issues = check_folder(folder, level="acceptance").issues
    return sorted({issue.code for issue in issues if issue.severity == "error"})


def test_files_in_their_usual_places_are_evidence(tmp_path):
    folder = write_live_package(tmp_path / "task", live={}, claims={}, root=PRESET)
    evidence = found(folder)
    assert (evidence.oracle_runs.required_reward, evidence.verifier.reruns) == (1.0, 3)
    assert evidence.review.instruction_alignment == "passed"
    calibration = evidence.calibration
    assert (calibration.no_op_reward_max, calibration.partial_solution_range) == (0.0, (0.5, 0.5))
    assert [item.artifact for item in calibration.human_or_reference_examples] == [f"{FOLDER}/gold-result.json"]
    assert codes(folder) == []


def test_without_such_a_preset_they_are_not(tmp_path):
    folder = write_live_package(tmp_path / "task", live={}, claims={}, pin=False)
    assert found(folder) is None


def test_what_is_declared_wins_and_the_rest_is_filled_in(tmp_path):
    claims = {"verifier": {"reruns": 2}}
    evidence = found(write_live_package(tmp_path / "task", live={}, claims=claims, root=PRESET))
    assert evidence.verifier.reruns == 2
    assert evidence.verifier.report == f"{FOLDER}/verifier-stability-report.json"
    assert evidence.oracle_runs is not None


def test_a_found_file_that_changes_after_it_was_pinned_is_noticed(tmp_path):
    folder = write_live_package(tmp_path / "task", live={}, claims={}, root=PRESET)
    (folder / FOLDER / "review.json").write_text(json.dumps({**EVIDENCE_FILES["review.json"], "reviewer": "me"}))
    assert codes(folder) == ["pin-mismatch"]


def test_found_files_without_pins_are_refused(tmp_path):
    folder = write_live_package(tmp_path / "task", live={}, claims={}, root=PRESET, pin=False)
    assert codes(folder) == ["evidence-unpinned"]


def test_a_review_that_says_nothing_has_not_passed(tmp_path):
    files = {f"{FOLDER}/review.json": "{}"}
    folder = write_live_package(tmp_path / "task", live={}, claims={}, root=PRESET, files=files)
    assert codes(folder) == ["evidence-missing"]


def test_a_calibration_without_all_low_cases_is_skipped(tmp_path):
    cases = EVIDENCE_FILES["calibration-report.json"]["cases"][1:]
    files = {f"{FOLDER}/calibration-report.json": json.dumps({"kind": "calibration-report", "cases": cases})}
    assert (
        found(write_live_package(tmp_path / "task", live={}, claims={}, root=PRESET, files=files)).calibration is None
    )


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"cases": 3}'])
def test_a_damaged_file_is_reported_where_it_is_checked(tmp_path, text):
    files = {f"{FOLDER}/oracle-run.json": text, REPORT: text}
    folder = write_live_package(tmp_path / "task", live={}, claims={}, root=PRESET, files=files)
    assert "evidence-file-invalid" in codes(folder)


def test_cases_of_a_live_report_are_run_again(tmp_path):
    expect = {"reward_min": 0.99, "reward_max": None, "reward_range": None, "reward_equals": None}
    case = {"name": "solve", "type": "oracle", "source": "declared", "command": None, "reruns": 2, "expect": expect}
    report = {
        "kind": "acceptance-live-report",
        "workspace": {"source": None, "target": None},
        "cases": [case, {**case, "name": "gold", "source": "calibration-report"}],
        "leaderboard_suitability": {"required": True, "max_flake_rate": 0.1},
    }
    folder = write_live_package(tmp_path / "task", live={}, claims={}, root=PRESET, files={REPORT: json.dumps(report)})
    live = found(folder).acceptance_live
    assert [(item.name, item.reruns, item.expect.reward_min) for item in live.cases] == [("solve", 2, 0.99)]
    assert (live.report, live.calibration.from_) == (REPORT, "calibration.report")
    assert live.leaderboard.max_flake_rate == 0.0, "the preset declares it"
    assert "workspace" not in live.declared
