"""What proving a package shows, on sandboxes in memory."""

import json
from dataclasses import replace
from unittest.mock import ANY

import pytest

from benchflow.evidence import prove as proving
from benchflow.evidence.perturbations import PERTURBATIONS
from benchflow.evidence.prove import ProveOptions, prove_package
from benchflow.evidence.reuse import known
from benchflow.evidence.trial_stage import StageOptions
from benchflow.task.package import load_package

pytestmark = pytest.mark.anyio
STEPS = """\
steps:
  - {name: first}
  - {name: second}
"""


@pytest.fixture
def prove(backend):
    async def run(folder, reruns=3, earlier=None, **options):
        chosen = ProveOptions(StageOptions(sandbox=backend), reruns, **options)
        package = load_package(folder)
        return await prove_package(package, chosen, known(earlier, package, chosen.wanted()))

    return run


def case(report, name):
    return next(item for item in report.cases if item.name == name)


async def test_a_sound_package_is_proven(make_package, prove):
    report = await prove(make_package())
    assert report.proven, report
    assert case(report, "oracle").rewards == (1.0, 1.0, 1.0)
    assert case(report, "no-op").rewards == (0.0,)
    assert case(report, "gold").rewards == (1.0,)
    assert (report.flake.runs, report.flake.failures) == (3, 0)
    assert set(report.bound.planes) == {"task", "environment", "verifier", "oracle"}


async def test_a_package_that_rewards_doing_nothing_is_not_proven(make_package, prove):
    report = await prove(make_package(verifier="echo 1 > /logs/verifier/reward.txt\n"))
    assert not report.proven
    assert case(report, "no-op").reasons == ("the reward 1 is above 0.1",)


async def test_a_cheat_that_scores_full_is_not_passed(make_package, prove):
    cheats = {
        "evidence/cheats/echo.sh": "echo done > answer.txt\n",
        "evidence/cheats/wrong.sh": "echo no > answer.txt\n",
    }
    report = await prove(make_package(files=cheats))
    assert not report.proven
    assert not case(report, "echo").passed
    assert case(report, "wrong").passed


async def test_an_oracle_that_fails_is_named_and_not_called_flaky(make_package, prove):
    report = await prove(make_package(files={"oracle/solve.sh": "echo no > answer.txt\n"}))
    assert not report.proven
    assert case(report, "oracle").reasons == ("the reward 0 is below 1",)
    assert report.flake.failures == 0


async def test_a_package_without_an_oracle_is_not_proven(make_package, prove):
    report = await prove(make_package(files={"oracle/solve.sh": None}))
    assert not report.proven
    assert [issue.code for issue in report.issues] == ["oracle-missing"]


async def test_a_verifier_without_a_reward_counts_against_the_package(make_package, prove):
    report = await prove(make_package(verifier="true\n"))
    assert not report.proven
    assert case(report, "oracle").rewards[0] is None
    assert not case(report, "oracle").undecided


async def test_an_oracle_that_stops_half_way_is_a_partial_solution(make_package, prove):
    verifier = "if [ -f /app/second.txt ]; then echo 1; elif [ -f /app/first.txt ]; then echo 0.5; else echo 0; fi"
    verifier += " > /logs/verifier/reward.txt\n"
    files = {
        f"steps/{step}/{name}": text
        for step in ("first", "second")
        for name, text in {
            "instruction.md": "Go.\n",
            "oracle/solve.sh": f"echo x > {step}.txt\n",
            "verifier/test.sh": verifier,
        }.items()
    }
    report = await prove(make_package(STEPS, files))
    assert case(report, "first 1 of 2 steps").rewards == (0.5,)
    assert case(report, "oracle").rewards == (0.75, 0.75, 0.75)


async def test_declared_commands_and_those_of_a_calibration_report_are_run(make_package, prove):
    declared = """\
benchflow:
  evidence:
    calibration: {partial_solution_range: [0, 0]}
    acceptance_live:
      cases:
        - {name: written, type: verifier, command: echo done > answer.txt, expect: {reward_equals: 1}}
"""
    entry = {"name": "half", "type": "partial", "reward": 0, "command": "echo d > answer.txt"}
    entries = json.dumps({"kind": "calibration-report", "cases": [entry]})
    report = await prove(make_package(declared, {"evidence/acceptance/calibration-report.json": entries}))
    assert report.proven, report
    assert case(report, "written").source == "declared"
    assert case(report, "half").source == "calibration-report"


async def test_what_did_not_change_is_not_run_again(make_package, prove, backend):
    folder = make_package()
    first = await prove(folder)
    (folder / "oracle" / "solve.sh").write_text("echo done done > answer.txt\n")
    second = await prove(folder, earlier=first)
    assert second.proven
    assert second.bound.planes["oracle"] != first.bound.planes["oracle"]


async def test_a_secret_that_a_verifier_prints_is_not_in_the_report(make_package, prove, monkeypatch):
    monkeypatch.setenv("JUDGE_PASS", "hunter2-hunter2")
    declared = "benchflow:\n  secrets:\n    - {name: JUDGE_PASS, scope: verifier, visibility: runtime_secret}\n"
    report = await prove(make_package(declared, verifier='echo "$JUDGE_PASS" > /logs/verifier/reward.txt\n'))
    assert not report.proven
    assert "hunter2" not in repr(report)


SEEDED = """\
if [ -z "$SEED" ] && grep -q done /app/answer.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
DECLARED = "benchflow:\n  evidence:\n    verifier: {depends_on: [seed]}\n"


async def test_a_verdict_that_a_perturbation_changes_is_not_proven(make_package, prove):
    report = await prove(make_package(verifier=SEEDED))
    assert not report.proven
    assert [item.name for item in report.cases if not item.passed] == ["seed"]
    seed = case(report, "seed")
    assert (seed.type, seed.rewards) == ("perturbation", (0.0, 0.0))
    assert seed.reasons[0].startswith("the reward is 0 with another random seed, and 1 otherwise")


async def test_a_dependency_that_the_package_declares_is_not_held_against_it(make_package, prove):
    report = await prove(make_package(DECLARED, verifier=SEEDED))
    assert report.proven, report
    assert "seed" not in [item.name for item in report.cases]
    assert report.not_perturbed["seed"] == "the package declares that its verdict depends on it"


async def test_what_perturbations_showed_is_kept_until_the_declaration_changes(make_package, prove, monkeypatch):
    tried = []
    perturb = proving.perturb

    async def counted(stage, usual, wanted):
        tried.append(set(wanted))
        return await perturb(stage, usual, wanted)

    monkeypatch.setattr(proving, "perturb", counted)
    folder = make_package(DECLARED, verifier=SEEDED)
    first = await prove(folder)
    assert await prove(folder, earlier=first) == replace(first, bound=ANY)
    (folder / "task.md").write_text((folder / "task.md").read_text().replace(DECLARED, ""))
    assert not (await prove(folder, earlier=first)).proven
    assert tried == [set(PERTURBATIONS) - {"seed"}, {"seed"}]
