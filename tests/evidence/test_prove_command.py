"""`bench tasks prove`, as a user calls it."""

import json
import os
import re

import pytest

from benchflow.cli import main
from benchflow.evidence import prove as proving
from benchflow.task.checks import check_package
from benchflow.task.package import load_package

FREE = "echo 1 > /logs/verifier/reward.txt\n"


@pytest.fixture
def prove(sandbox_name, capsys):
    def run(*arguments):
        code = main(["tasks", "prove", "--sandbox", sandbox_name, "--reruns", "3", "--no-audit", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_json_says_of_each_package_what_was_shown(make_package, prove):
    good, bad = make_package(name="good"), make_package(name="bad", verifier=FREE)
    broken = make_package("cpuz: 3\n", name="broken")
    code, out, _ = prove("--json", good, bad, broken)
    document = json.loads(out)
    assert code == 1
    assert document["summary"] == {"total": 3, "proven": 1, "unproven": 2}
    assert [(task["name"], task["proven"]) for task in document["tasks"]] == [
        ("acme/good", True),
        ("acme/bad", False),
        ("acme/broken", False),
    ]
    first = document["tasks"][0]
    assert set(first) >= {"path", "digest", "isolation", "cases", "flake", "audit", "leaderboard", "issues"}
    assert first["cases"][0] == {
        "name": "oracle",
        "type": "oracle",
        "runs": 3,
        "rewards": [1.0, 1.0, 1.0],
        "expect": {"reward_min": 1.0, "flake_rate_max": 0.0},
        "passed": True,
    }
    assert first["flake"]["upper_95"] == pytest.approx(1 - 0.05 ** (1 / 3))
    assert document["tasks"][2]["issues"][0]["code"] == "unknown-key"


def test_placeholders_that_are_left_are_listed_and_nothing_is_run(make_package, prove, sandbox_name, capsys):
    folder = make_package(files={"oracle/solve.sh": "# [REPLACE: the solution]\n"}, prompt="[REPLACE: what to do]")
    code, out, _ = prove(folder)
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        f"{folder}/task.md:6:",
        f"{folder}/oracle/solve.sh:1:",
    ]
    assert not (folder / "evidence").exists()
    assert main(["tasks", "audit", "--sandbox", sandbox_name, "--json", str(folder)]) == 1
    [task] = json.loads(capsys.readouterr().out)["tasks"]
    assert [issue["code"] for issue in task["findings"]] == ["marker-left", "marker-left"]


def test_a_failure_outside_the_package_is_shown_once_and_is_no_flake(make_package, prove):
    folder = make_package("environment: {docker_image: nowhere.invalid/missing:1}\n")
    code, out, _ = prove(folder)
    assert code == 1
    assert out.count("missing:1") == 1, out
    assert "no result for oracle 'oracle', no-op 'no-op', reference 'gold'" in out
    assert "flake" not in out
    [task] = json.loads(prove("--json", folder)[1])["tasks"]
    assert task["flake"] is None
    assert {issue["code"] for issue in task["issues"]} == {"case-undecided"}


def test_a_second_run_of_an_unchanged_package_runs_nothing(make_package, prove, monkeypatch):
    folder = make_package()
    first = json.loads(prove("--json", folder)[1])["tasks"][0]
    assert first["written"]
    monkeypatch.setattr(proving, "open_stage", None)
    code, out, _ = prove("--json", folder)
    again = json.loads(out)["tasks"][0]
    assert code == 0
    assert again["written"] == []
    assert again["cases"] == first["cases"]


def test_a_killed_run_over_many_packages_is_taken_up_where_it_was(make_package, prove, monkeypatch):
    folders = [make_package(name=name) for name in ("a", "b")]
    prove(folders[0])
    started = []
    open_stage = proving.open_stage
    monkeypatch.setattr(
        proving, "open_stage", lambda package, options: started.append(package.name) or open_stage(package, options)
    )
    code, _, _ = prove(*folders)
    assert code == 0
    assert started == ["acme/b"]


def test_the_text_says_in_one_short_line_what_was_written(make_package, prove):
    _, out, _ = prove("--declare", make_package())
    assert re.search(r"^     wrote task\.md, \d files below evidence/$", out, re.MULTILINE), out


def test_a_name_that_is_no_text_does_not_break_the_json(make_package, prove):
    folder = make_package()
    other = folder.rename(folder.with_name(os.fsdecode(b"t\xe9")))
    _, out, _ = prove("--json", "--report-only", other)
    assert json.loads(out)["tasks"][0]["path"] == str(other)


def test_report_only_writes_nothing_and_contradicts_declare(make_package, prove):
    folder = make_package()
    code, out, _ = prove("--report-only", folder)
    assert code == 0
    assert out.startswith("proven   ")
    assert not (folder / "evidence").exists()
    assert prove("--report-only", "--declare", folder)[0] == 2


def test_a_folder_that_cannot_be_written_is_reported_only(make_package, prove):
    folder = make_package(files={"evidence": "not a folder\n"})
    code, out, _ = prove(folder)
    assert code == 0
    assert "evidence-not-written" in out
    assert (folder / "evidence").read_text() == "not a folder\n"


def test_several_packages_end_with_a_table(make_package, prove):
    good, bad = make_package(name="good"), make_package(name="bad", verifier=FREE)
    code, out, _ = prove(good, bad)
    assert code == 1
    assert "no-op 'no-op': the reward 1 is above 0.1" in out
    lines = out.splitlines()
    assert re.fullmatch(
        r"PACKAGE +VERDICT +RUNG +ORACLE +NO-OP +KNOWN-BAD +PARTIAL +FLAKES +PERTURBED +AUDIT +BOARD", lines[-4]
    )
    assert re.fullmatch(rf"{good} +proven +shared +1 +0 +- +- +<= 63.2% +same +- +insufficient", lines[-3])
    assert lines[-1] == "2 packages: 1 proven, 1 unproven"


@pytest.mark.sandbox
def test_a_real_package_is_proven_audited_and_declared(make_package, sandbox_name, capsys):
    cheats = {"evidence/cheats/wrong.sh": "echo no > answer.txt\n"}
    exact = 'if [ "$(cat /app/answer.txt)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
    folder = make_package(files=cheats, verifier=exact)
    assert main(["tasks", "prove", "--sandbox", sandbox_name, "--declare", "--json", str(folder)]) == 0
    [task] = json.loads(capsys.readouterr().out)["tasks"]
    assert task["flake"] == {"runs": 60, "failures": 0, "upper_95": pytest.approx(0.0487, abs=1e-3)}
    assert {family["verdict"] for family in task["audit"]["families"]} <= {"held", "not-applicable"}
    missing = {
        issue.path
        for issue in check_package(load_package(folder), level="acceptance")
        if issue.code == "evidence-missing"
    }
    assert missing == {
        "benchflow.evidence.review.instruction_alignment",
        "benchflow.evidence.calibration.partial_solution_range",
    }
