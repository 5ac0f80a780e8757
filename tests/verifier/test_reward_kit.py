"""Reward kits: a runner with declared criteria, and folders of checks."""

from __future__ import annotations

import json

import pytest

from benchflow.rewards import Scored

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

DOCUMENT = """\
    ---
    document_version: "0.3"
    verifier:
      name: kit
      strategies:
        kit: {type: reward-kit, root: rewards, criteria: rewards/criteria.toml, config: {any: thing}}
    ---
    """
CRITERIA = """\
    [[criterion]]
    name = "right"
    description = "The answer is right."
    weight = 3
    [[criterion]]
    name = "neat"
    description = "It is neat."
    """
RUNNER = """\
    import json, os, pathlib
    manifest = json.loads(pathlib.Path(os.environ["BENCHFLOW_REWARD_KIT_MANIFEST"]).read_text())
    assert manifest["version"] == "benchflow.reward-kit.v1"
    assert manifest["strategy"]["config"] == {"any": "thing"}
    assert os.environ["BENCHFLOW_REWARD_KIT_CRITERIA"] == manifest["paths"]["criteria"]
    assert os.getcwd() == os.environ["BENCHFLOW_VERIFIER_DIR"] == "/verifier"
    METRICS = %s
    pathlib.Path(os.environ["BENCHFLOW_REWARD_JSON"]).write_text(json.dumps(METRICS))
    """


def kit(metrics: str) -> dict[str, str]:
    return {
        "verifier/verifier.md": DOCUMENT,
        "verifier/rewards/criteria.toml": CRITERIA,
        "verifier/rewards/reward.py": RUNNER % metrics,
    }


async def test_criteria_make_one_reward_of_exact_metrics(bench, package):
    async with bench(package(files=kit('{"metrics": {"right": 1, "neat": 0}}'))) as it:
        found = await it.verify()
        assert isinstance(found.verdict, Scored), (found, (it.output / "test-stdout.txt").read_text())
        assert found.verdict.reward == 0.75
        manifest = json.loads((it.output / "reward-kit-manifest.json").read_text())
        assert manifest["criteria_policy"]["criteria"] == ["right", "neat"]
        assert manifest["criteria_policy"]["weights"] == {"right": 3.0, "neat": 1.0}


REFUSED = {
    "a criterion is missing": ('{"metrics": {"right": 1}}', "reward-invalid"),
    "a metric that nobody declared": ('{"metrics": {"right": 1, "neat": 1, "x": 1}}', "reward-invalid"),
    "another reward": ('{"metrics": {"right": 1, "neat": 0}, "reward": 1}', "reward-mismatch"),
    "no metrics": ('{"reward": 1}', "reward-invalid"),
}


@pytest.mark.parametrize(("metrics", "code"), REFUSED.values(), ids=REFUSED)
async def test_metrics_that_do_not_fit_are_unscored(bench, package, metrics, code):
    async with bench(package(files=kit(metrics))) as it:
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("verifier", code)


async def test_wrong_criteria_stop_it_before_it_starts(bench, package):
    files = {**kit("{}"), "verifier/rewards/criteria.toml": "[[criterion]]\nname = 'x'\nweight = -1\n"}
    async with bench(package(files=files)) as it:
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("package", "invalid-rubric")
        assert not (it.output / "test-stdout.txt").exists()


async def test_a_runner_that_fails_is_unscored(bench, package):
    files = {**kit("{}"), "verifier/rewards/reward.py": "raise SystemExit(4)\n"}
    async with bench(package(files=files)) as it:
        found = await it.verify()
        assert (found.verdict.code, found.exit_code) == ("reward-missing", 4)


CHECKS = """\
    import rewardkit as rk

    rk.file_exists("answer.txt")
    rk.command_succeeds("grep -q 42 answer.txt", weight=2.0, name="answer", isolated=True)

    @rk.criterion(description="Short enough")
    def short(workspace):
        return (workspace / "answer.txt").stat().st_size < 10

    @rk.criterion
    def at_least(workspace, number):
        return int((workspace / "answer.txt").read_text()) >= number

    at_least(40, name="large")
    """
PLAIN = """\
    ---
    verifier:
      strategies:
        kit: {type: reward-kit, root: checks}
    ---
    """


async def test_folders_of_checks_are_graded(bench, package):
    files = {
        "verifier/verifier.md": PLAIN,
        "verifier/checks/first.py": CHECKS,
        "verifier/checks/files/more.py": "import rewardkit as rk\nrk.file_contains('answer.txt', '4')\n",
    }
    async with bench(package(files=files)) as it:
        assert (await it.verify()).verdict.reward == 0
        await it.agent("echo 41 > answer.txt")
        found = await it.verify()
        assert isinstance(found.verdict, Scored), (it.output / "test-stdout.txt").read_text()
        assert found.verdict.metrics == {
            "short": 1.0,
            "file_exists:answer.txt": 1.0,
            "answer": 0.0,
            "large": 1.0,
            "files/file_contains:answer.txt:4": 1.0,
        }
        assert found.verdict.reward == pytest.approx(4 / 6)
        assert len(json.loads((it.output / "reward-details.json").read_text())["criteria"]) == 5


async def test_a_test_script_may_call_the_kit_by_its_command(bench, package):
    files = {
        "verifier/test.sh": "#!/bin/sh\nrewardkit /tests/checks --workspace /app\n",
        "verifier/checks/a.py": "import rewardkit as rk\nrk.file_exists('x')\n",
    }
    async with bench(package(files=files)) as it:
        await it.agent("touch x")
        assert (await it.verify()).verdict.reward == 1, (it.output / "test-stdout.txt").read_text()


async def test_scoring_of_checks_is_declared_beside_them(bench, package):
    files = {
        "verifier/verifier.md": PLAIN,
        "verifier/checks/a.py": "import rewardkit as rk\nrk.file_exists('x')\nrk.file_exists('y')\n",
        "verifier/checks/reward.toml": '[[reward]]\naggregation = "any-pass"\n',
    }
    async with bench(package(files=files)) as it:
        await it.agent("touch x")
        assert (await it.verify()).verdict.reward == 1


@pytest.mark.parametrize("checks", ["import rewardkit as rk\nrk.no_such_check()\n", "x = 1\n"])
async def test_checks_that_cannot_be_run_are_unscored(bench, package, checks):
    async with bench(package(files={"verifier/verifier.md": PLAIN, "verifier/checks/a.py": checks})) as it:
        found = await it.verify()
        assert (found.verdict.category, found.verdict.code) == ("verifier", "reward-missing")
        assert found.exit_code


async def test_a_kit_without_runner_and_checks_is_a_broken_package(bench, package):
    async with bench(package(files={"verifier/verifier.md": PLAIN, "verifier/checks/x.txt": ""})) as it:
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("package", "missing-runner")


WATCHES = """\
    import rewardkit as rk
    rk.trajectory_tool_used("bash", name="used")
    rk.trajectory_tool_not_used("browser", name="not used", path="/logs/agent/trajectory.json")
    rk.trajectory_turn_count(2, name="turns")
    """
DID = [
    {"type": "user_message", "text": "Do it."},
    {"type": "tool_call", "tool": "bash", "tool_call_id": "1", "arguments": {}},
    {"type": "tool_result", "tool_call_id": "1", "text": "ok"},
    {"type": "tool_call", "tool": "browser", "tool_call_id": "2", "arguments": {}},
    {"type": "tool_result", "tool_call_id": "2", "text": "ok"},
    {"type": "agent_message", "text": "Done."},
]
FORGED = {"steps": [{"source": "agent", "tool_calls": [{"function_name": "bash"}]}]}


async def test_checks_of_trajectories_read_the_record_and_not_what_the_agent_wrote(bench, package, tmp_path):
    (tmp_path / "rollout").mkdir()
    lines = [json.dumps({"seq": number, "time": "", **event}) for number, event in enumerate(DID, 1)]
    (tmp_path / "rollout" / "trajectory.jsonl").write_text("\n".join(lines) + "\n")
    files = {"verifier/verifier.md": PLAIN, "verifier/checks/a.py": WATCHES}
    async with bench(package(files=files)) as it:
        await it.agent(f"mkdir -p /logs/agent; echo '{json.dumps(FORGED)}' > /logs/agent/trajectory.json", user="root")
        found = await it.verify(rollout=tmp_path / "rollout")
        assert isinstance(found.verdict, Scored), (it.output / "test-stdout.txt").read_text()
        assert found.verdict.metrics == {"used": 1.0, "not used": 0.0, "turns": 0.0}
        found = await it.verify()
        assert (found.verdict.category, found.verdict.code) == ("verifier", "reward-missing")
        assert "no recorded trajectory" in (it.output / "test-stdout.txt").read_text()
