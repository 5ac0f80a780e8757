"""The files that a proof writes into a package."""

import json
import shutil
from dataclasses import replace

import pytest

from benchflow.evidence.evidence_folder import write_evidence
from benchflow.evidence.prove import ProveOptions, prove_package
from benchflow.evidence.trial_stage import StageOptions
from benchflow.files import atomic
from benchflow.record.evidence import AuditReport, FamilyReport, read_proof_report
from benchflow.task.checks import check_package
from benchflow.task.checks.acceptance_level import check_evidence
from benchflow.task.checks.pins import pinnable_hashes
from benchflow.task.package import load_package
from written_documents import check_fits

pytestmark = pytest.mark.anyio
CALIBRATED = {
    "evidence/cheats/wrong.sh": "echo no > answer.txt\n",
    "evidence/acceptance/calibration-report.json": json.dumps(
        {"cases": [{"name": "half", "type": "partial", "reward": 0, "command": "echo d > answer.txt"}]}
    ),
    "evidence/acceptance/review.json": json.dumps({"instruction_alignment": "passed", "reviewer": "Ann"}),
}


@pytest.fixture
def proven(make_package, backend):
    """A package and the report on it, without an audit of its own."""

    async def run(files=None, *, sound=True):
        folder = make_package(files=files)
        package = load_package(folder)
        report = await prove_package(package, ProveOptions(StageOptions(sandbox=backend), 3))
        held = FamilyReport("empty", "held" if sound else "broken", 1, 0.0, "Tried.")
        return folder, replace(report, audit=AuditReport(sound, report.isolation, (held,)))

    return run


def errors(folder):
    package = load_package(folder)
    return check_evidence(folder, package.document.namespace.evidence, pinnable_hashes(package))


async def test_declared_evidence_with_all_kinds_of_cases_is_accepted(proven):
    folder, report = await proven(CALIBRATED)
    before = load_package(folder).content_digest
    written = write_evidence(load_package(folder), report, declare=True)
    assert "task.md" in written.files
    assert errors(folder) == []
    assert load_package(folder).content_digest == before
    read = read_proof_report(folder / "evidence/acceptance")
    assert replace(read, files={}) == report
    check_fits(read.to_dict(), "proof-report")


async def test_writing_again_changes_nothing(proven):
    folder, report = await proven(CALIBRATED)
    write_evidence(load_package(folder), report, declare=True)
    assert write_evidence(load_package(folder), report, declare=True).files == ()


async def test_the_review_of_the_author_is_kept_and_none_is_made_up(proven):
    folder, report = await proven(CALIBRATED)
    write_evidence(load_package(folder), report)
    review = json.loads((folder / "evidence/acceptance/review.json").read_text())
    assert review["instruction_alignment"] == "passed"
    assert review["reviewers"]["instruction_alignment"] == "Ann"
    assert review["reviewers"]["anti_cheat"].startswith("benchcube")
    shutil.rmtree(folder / "evidence")
    write_evidence(load_package(folder), report)
    assert "instruction_alignment" not in json.loads((folder / "evidence/acceptance/review.json").read_text())


async def test_an_audit_that_found_a_hole_does_not_pass_review(proven):
    folder, report = await proven(CALIBRATED, sound=False)
    write_evidence(load_package(folder), report, declare=True)
    assert any(issue.path.endswith("review.anti_cheat") for issue in errors(folder))


async def test_a_failure_while_writing_leaves_the_old_evidence_whole(proven, monkeypatch):
    folder, report = await proven({"evidence/cheats/wrong.sh": "echo no > answer.txt\n"})

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("benchflow.evidence.evidence_folder.exchange", fail)
    written = write_evidence(load_package(folder), report)
    assert [issue.code for issue in written.issues] == ["evidence-not-written"]
    assert [path.name for path in (folder / "evidence").rglob("*") if path.is_file()] == ["wrong.sh"]
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


def test_two_folders_are_exchanged_in_one_step(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    atomic.exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "name").read_text() == "b"
    assert (tmp_path / "b" / "name").read_text() == "a"


def codes(folder):
    return {issue.code for issue in check_package(load_package(folder), level="acceptance")} - BEYOND


BEYOND = {"legacy-file", "verifier-document-missing", "rubric-missing", "reward-json-undeclared"}
"""What publication demands beside the evidence."""


@pytest.mark.parametrize("part", ["verifier/test.sh", "oracle/solve.sh", "environment/Dockerfile"])
async def test_evidence_is_stale_once_a_part_of_the_package_changes(proven, part):
    folder, report = await proven(CALIBRATED)
    write_evidence(load_package(folder), report, declare=True)
    assert codes(folder) == set()
    (folder / part).parent.mkdir(exist_ok=True)
    (folder / part).write_text("# changed\n")
    assert "evidence-stale" in codes(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"runs": 3', '"runs": 30'), ("1.0,\n        1.0", "1.0,\n        0.2"), ('"held"', '"broken"')],
)
async def test_numbers_that_contradict_each_other_are_refused(proven, old, new):
    folder, report = await proven(CALIBRATED)
    write_evidence(load_package(folder), report, declare=True)
    path = folder / "evidence/acceptance/proof-report.json"
    path.write_text(path.read_text().replace(old, new))
    assert codes(folder) == {"evidence-disagrees"}


async def test_a_file_that_was_changed_after_it_was_written_is_refused(proven):
    folder, report = await proven(CALIBRATED)
    write_evidence(load_package(folder), report, declare=True)
    path = folder / "evidence/acceptance/audit-report.json"
    path.write_text(path.read_text() + " ")
    assert "evidence-disagrees" in codes(folder)
