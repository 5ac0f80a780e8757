"""The static evidence gate: claims, files and pins must agree."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchflow.errors import Issue
from benchflow.task.checks.acceptance_level import check_evidence
from benchflow.task.checks.pins import DEFAULT_PINS, build_pins, render_pins
from benchflow.task.config.evidence_config import Evidence
from benchflow.task.config.parsed_record import IssueLog


def parsed(claims) -> Evidence:
    log = IssueLog("task.md")
    evidence = Evidence.parse(claims, "benchflow.evidence", log)
    assert evidence is not None
    assert not log.issues
    return evidence


def file_map(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def check(root: Path, claims, **options) -> list[Issue]:
    return check_evidence(root, parsed(claims), file_map(root), **options)


def errors(root: Path, claims, **options) -> list[tuple[str, str]]:
    return [(issue.code, issue.path) for issue in check(root, claims, **options) if issue.severity == "error"]


def rewrite(root: Path, name: str, change) -> None:
    content = json.loads((root / name).read_text())
    change(content)
    (root / name).write_text(json.dumps(content))


def test_evidence_that_is_pinned_by_task_md_alone_is_accepted_with_a_warning(evidence_folder):
    root, claims = evidence_folder()
    assert check(root, claims, with_pins_file=False) == []
    assert [(issue.code, issue.severity) for issue in check(root, claims)] == [("pins-missing", "warning")]
    assert errors(root, {**claims, "pins": "evidence/my-pins.json"}) == [("pins-missing", "benchflow.evidence.pins")]


def test_no_evidence_at_all_is_an_error(tmp_path):
    assert [issue.path for issue in check_evidence(tmp_path, None, {})] == ["benchflow.evidence"]


def test_a_missing_claim_names_the_file_that_is_there_for_it(tmp_path):
    files = {"evidence/acceptance/review.json": "0" * 64}
    issues = check_evidence(tmp_path, parsed({}), files)
    hinted = {issue.path for issue in issues if "review.json" in issue.message}
    assert hinted == {"benchflow.evidence.review"}


@pytest.mark.parametrize("section", ["oracle_runs", "verifier", "review", "calibration"])
def test_every_section_is_required(evidence_folder, section):
    root, claims = evidence_folder()
    del claims[section]
    assert ("evidence-missing", f"benchflow.evidence.{section}") in errors(root, claims)


@pytest.mark.parametrize(
    ("section", "key", "value", "code"),
    [
        ("oracle_runs", "required_reward", 0.5, "evidence-insufficient"),
        ("oracle_runs", "required_reward", None, "evidence-missing"),
        ("verifier", "reruns", 2, "evidence-insufficient"),
        ("verifier", "flake_rate", 0.2, "evidence-insufficient"),
        ("verifier", "report", None, "evidence-missing"),
        ("review", "anti_cheat", "pending", "evidence-insufficient"),
        ("review", "instruction_alignment", None, "evidence-missing"),
        ("review", "artifact", None, "evidence-missing"),
        ("calibration", "no_op_reward_max", 0.3, "evidence-insufficient"),
        ("calibration", "known_bad_reward_max", 1.0, "evidence-insufficient"),
        ("calibration", "partial_solution_range", None, "evidence-missing"),
        ("calibration", "human_or_reference_examples", [], "evidence-missing"),
        ("calibration", "report", None, "evidence-missing"),
    ],
)
def test_claims_must_be_there_and_strong_enough(evidence_folder, section, key, value, code):
    root, claims = evidence_folder()
    if value is None:
        del claims[section][key]
    else:
        claims[section][key] = value
    assert (code, f"benchflow.evidence.{section}.{key}") in errors(root, claims)


def test_an_oracle_run_may_be_named_by_its_job(evidence_folder):
    root, claims = evidence_folder()
    claims["oracle_runs"] = {"required_reward": 1.0, "last_job": "jobs/2026-01-01"}
    assert errors(root, claims, with_pins_file=False) == []
    del claims["oracle_runs"]["last_job"]
    assert ("evidence-missing", "benchflow.evidence.oracle_runs.artifact") in errors(root, claims)


def set_key(*keys, to):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = to

    return change


@pytest.mark.parametrize(
    ("name", "change", "code", "path"),
    [
        ("oracle", set_key("reward", to=0.4), "evidence-disagrees", "reward"),
        ("oracle", set_key("status", to="failed"), "evidence-disagrees", "status"),
        ("oracle", set_key("reward", to=True), "evidence-file-invalid", "reward"),
        ("stability", set_key("kind", to="other"), "evidence-file-invalid", "kind"),
        ("stability", set_key("reruns", to=4), "evidence-disagrees", "reruns"),
        ("stability", set_key("runs", to=[]), "evidence-file-invalid", "runs"),
        ("stability", set_key("runs", 0, "status", to="failed"), "evidence-disagrees", "flake_rate"),
        ("stability", set_key("runs", 0, "status", to="maybe"), "evidence-file-invalid", "runs[0]"),
        ("stability", set_key("runs", 1, "reward", to=0.2), "evidence-disagrees", "runs[1]"),
        ("stability", set_key("min_reward", to=7), "evidence-file-invalid", "min_reward"),
        ("stability", set_key("flake_rate", to=0.5), "evidence-disagrees", "flake_rate"),
        ("review", set_key("anti_cheat", to="failed"), "evidence-disagrees", "anti_cheat"),
        ("review", set_key("kind", to="x"), "evidence-file-invalid", "kind"),
        ("calibration", set_key("cases", to=[]), "evidence-file-invalid", "cases"),
        ("calibration", set_key("cases", 0, "reward", to=0.5), "evidence-disagrees", "cases[0]"),
        ("calibration", set_key("cases", 1, "reward", to=0.9), "evidence-disagrees", "cases[1]"),
        ("calibration", set_key("cases", 2, "reward", to=0.1), "evidence-disagrees", "cases[2]"),
        ("calibration", set_key("cases", 3, "reward", to=0.9), "evidence-disagrees", "cases[3]"),
        ("calibration", set_key("cases", 0, "type", to="odd"), "evidence-file-invalid", "cases[0]"),
        ("calibration", set_key("cases", 2, "type", to="no-op"), "evidence-disagrees", "cases"),
        ("gold", set_key("expected_reward", to=0.5), "evidence-disagrees", "expected_reward"),
    ],
)
def test_files_must_agree_with_the_claims(evidence_folder, name, change, code, path):
    root, claims = evidence_folder()
    rewrite(root, f"evidence/{name}.json", change)
    found = check(root, claims, with_pins_file=False)
    assert (code, path, f"evidence/{name}.json") in [(issue.code, issue.path, issue.file) for issue in found]


def test_fewer_runs_than_declared_disagree(evidence_folder):
    root, claims = evidence_folder()
    claims["verifier"]["reruns"] = 5
    assert ("evidence-disagrees", "runs") in errors(root, claims)


@pytest.mark.parametrize(
    "content", ["", "[]", "nonsense", '{"reward": NaN}', "[" * 100_000, "\0", '{"reward": 1' + "0" * 9999]
)
def test_unreadable_files_are_one_issue_each(evidence_folder, content):
    root, claims = evidence_folder()
    del claims["artifacts"]
    (root / "evidence/oracle.json").write_text(content)
    assert [code for code, _ in errors(root, claims, with_pins_file=False)] == ["evidence-file-invalid"]


def test_a_file_that_is_missing_is_reported_where_it_is_named(evidence_folder):
    root, claims = evidence_folder()
    (root / "evidence/review.json").unlink()
    assert ("evidence-file-missing", "benchflow.evidence.review.artifact") in errors(root, claims)


def test_a_changed_file_fails_its_pin_though_it_is_consistent(evidence_folder):
    root, claims = evidence_folder()
    rewrite(root, "evidence/oracle.json", set_key("note", to="touched"))
    assert [code for code, _ in errors(root, claims, with_pins_file=False)] == ["pin-mismatch"]


def test_a_primary_file_without_a_pin_is_reported(evidence_folder):
    root, claims = evidence_folder()
    claims["artifacts"] = [pin for pin in claims["artifacts"] if pin["path"] != "evidence/review.json"]
    assert ("evidence-unpinned", "benchflow.evidence.review.artifact") in errors(root, claims)


def test_the_pins_file_covers_task_md_and_the_verifier(evidence_folder):
    root, claims = evidence_folder()
    del claims["artifacts"]
    (root / "task.md").write_text("task")
    for name in ("verifier/test.sh", "steps/one/verifier/test.sh"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("test")
    (root / "notes.txt").write_text("free")
    pins = build_pins(parsed(claims), file_map(root))
    (root / DEFAULT_PINS).write_text(render_pins(pins))
    assert check(root, claims) == []
    (root / "notes.txt").write_text("changed")
    assert check(root, claims) == []
    for name in ("verifier/test.sh", "steps/one/verifier/test.sh"):
        (root / name).write_text("easier")
    (root / "verifier/extra.py").write_text("added")
    (root / "task.md").unlink()
    assert {issue.path for issue in check(root, claims)} == {
        "files.verifier/test.sh",
        "files.steps/one/verifier/test.sh",
        "files.verifier/extra.py",
        "files.task.md",
    }


def test_pins_that_leave_out_task_md_or_the_verifier_are_refused(evidence_folder):
    root, claims = evidence_folder()
    (root / "task.md").write_text("task")
    (root / "verifier").mkdir()
    (root / "verifier/test.sh").write_text("test")
    (root / DEFAULT_PINS).write_text(json.dumps({"kind": "evidence-pins", "files": {}}))
    assert errors(root, claims) == [
        ("pin-mismatch", "files.task.md"),
        ("pin-mismatch", "files.verifier/test.sh"),
    ]


def test_a_malformed_pins_file_pins_nothing(evidence_folder):
    root, claims = evidence_folder()
    for content in ('{"kind": "evidence-pins", "files": []}', '{"kind": "x"}', "{"):
        (root / DEFAULT_PINS).write_text(content)
        assert [code for code, _ in errors(root, claims)] == ["evidence-file-invalid"]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "runs", "cases", "reward", "type", "status", "files"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(
    max_examples=settings().max_examples // 3,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from(["oracle", "stability", "review", "calibration", "gold", "pins"]),
    content=json_values,
)
def test_any_json_is_judged_and_never_crashes(evidence_folder, name, content):
    root, claims = evidence_folder()
    kinds = {
        "stability": "verifier-stability-report",
        "calibration": "calibration-report",
        "pins": "evidence-pins",
    }
    if isinstance(content, dict) and name in kinds:
        content["kind"] = kinds[name]
    (root / f"evidence/{name}.json").write_text(json.dumps(content))
    assert all(issue.message and "\n" not in issue.message for issue in check(root, claims))


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (None, [("evidence-missing", "benchflow.evidence.calibration.judge_agreement")]),
        ({"sample_count": "ten"}, [("evidence-file-invalid", "judge_agreement")]),
        ({"sample_count": 9, "pairwise_agreement": 1.0}, [("evidence-disagrees", "judge_agreement.sample_count")]),
        (
            {"sample_count": 10, "pairwise_agreement": 0.7},
            [("evidence-disagrees", "judge_agreement.pairwise_agreement")],
        ),
        ({"sample_count": 10, "pairwise_agreement": 0.8}, []),
    ],
)
def test_the_agreement_of_a_judge_is_demanded_where_it_is_required(evidence_folder, measured, expected):
    root, claims = evidence_folder()
    wanted = {"required": True, "sample_count": 10, "min_pairwise_agreement": 0.8}
    claims["calibration"]["judge_agreement"] = wanted
    if measured is not None:
        rewrite(root, "evidence/calibration.json", lambda report: report.update(judge_agreement=measured))
    assert [found for found in errors(root, claims) if "judge_agreement" in found[1]] == expected
    claims["calibration"]["judge_agreement"] = {**wanted, "required": False}
    assert [found for found in errors(root, claims) if "judge_agreement" in found[1]] == []
