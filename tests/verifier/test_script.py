"""The script contract: reward files, exit codes, freshness, time and output limits."""

from __future__ import annotations

import json

import pytest

from benchflow.rewards import Scored, Unscored

pytestmark = pytest.mark.anyio


@pytest.mark.sandbox
async def test_a_solution_scores_and_doing_nothing_does_not(bench, package):
    async with bench(package()) as it:
        assert (await it.verify()).verdict.reward == 0
        await it.agent("echo 42 > answer.txt")
        found = await it.verify()
        assert found.verdict.reward == 1
        assert (it.output / "reward.txt").read_text() == "1.0\n"
        assert json.loads((it.output / "reward.json").read_text()) == {"reward": 1.0}
        record = found.record()
        assert (record.strategy, record.isolation.rung, record.exit_code) == ("script", "shared", 0)
        assert (record.isolation.chosen_by, record.opt_outs) == ("default", ())


UNSCORED = {
    "nothing written": ("true", "reward-missing"),
    "a failing script": ("exit 3", "reward-missing"),
    "a missing interpreter": ("#!/no/such/shell\n", "reward-missing"),
    "an empty file": (": > /logs/verifier/reward.txt", "reward-invalid"),
    "not a number": ("echo nan > /logs/verifier/reward.txt", "reward-invalid"),
    "out of range": ("echo 2 > /logs/verifier/reward.txt", "reward-invalid"),
    "two statements": (
        "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 0}' > /logs/verifier/reward.json",
        "reward-mismatch",
    ),
    "a link": ("echo 1 > /logs/verifier/x; ln -s x /logs/verifier/reward.txt", "reward-invalid"),
    "a link that leaves": ("ln -s /verifier/test.sh /logs/verifier/reward.txt", "reward-invalid"),
    "a pipe": ("mkfifo /logs/verifier/reward.txt", "reward-invalid"),
    "a folder": ("mkdir /logs/verifier/reward.txt", "reward-invalid"),
    "a large file": ("head -c 2M /dev/zero > /logs/verifier/reward.txt", "reward-invalid"),
    "a huge file": ("truncate -s 2G /logs/verifier/reward.json", "reward-invalid"),
}


@pytest.mark.parametrize(("script", "code"), UNSCORED.values(), ids=UNSCORED)
@pytest.mark.sandbox
async def test_a_reward_that_breaks_the_contract_is_unscored_and_never_zero(bench, package, script, code):
    files = {"verifier/test.sh": script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"}
    async with bench(package(files=files)) as it:
        found = await it.verify()
        assert isinstance(found.verdict, Unscored)
        assert (found.verdict.category, found.verdict.phase, found.verdict.code) == ("verifier", "verify", code)
        assert not (it.output / "reward.txt").exists()
        assert (it.output / "test-stdout.txt").exists()


async def test_the_exit_code_does_not_decide_beside_a_fresh_reward(bench, package):
    script = "#!/bin/sh\necho 0.5 > /logs/verifier/reward.txt\nexit 7\n"
    async with bench(package(files={"verifier/test.sh": script})) as it:
        found = await it.verify()
        assert found.verdict.reward == 0.5
        assert found.exit_code == 7
        assert [issue.code for issue in found.diagnostics] == ["verifier-exit"]


async def test_without_a_reward_the_reason_names_the_exit_code_and_a_failed_install(bench, package):
    script = "#!/bin/sh\necho 'error: Failed to fetch: secret-token-123'\nexit 9\n"
    async with bench(package(files={"verifier/test.sh": script})) as it:
        verdict = (await it.verify()).verdict
        assert "with code 9" in verdict.reason
        assert "could not install" in verdict.reason
        assert "secret-token" not in verdict.reason


@pytest.mark.sandbox
async def test_a_timeout_ends_the_whole_tree_and_is_unscored(bench, package):
    script = """\
        #!/bin/sh
        echo 1 > /logs/verifier/reward.txt
        setsid sleep 300 & sleep 300
        """
    async with bench(package("verifier: {timeout_sec: 0.5}\n", {"verifier/test.sh": script})) as it:
        found = await it.verify()
        assert (found.verdict.category, found.verdict.code) == ("verifier", "timeout")
        assert found.duration_sec < 60


@pytest.mark.sandbox
async def test_what_a_verifier_leaves_running_cannot_change_its_reward(bench, package):
    script = """\
        #!/bin/sh
        (setsid sh -c 'sleep 0.05; while :; do echo 1 > /logs/verifier/reward.txt; done' &) >/dev/null 2>&1
        echo 0 > /logs/verifier/reward.txt
        """
    async with bench(package(files={"verifier/test.sh": script})) as it:
        assert (await it.verify()).verdict.reward == 0


@pytest.mark.sandbox
async def test_a_flood_of_output_is_kept_in_part(bench, package):
    script = "#!/bin/sh\necho begin; head -c 64M /dev/zero | tr '\\0' x; echo end\necho 1 > /logs/verifier/reward.txt\n"
    async with bench(package(files={"verifier/test.sh": script})) as it:
        assert (await it.verify()).verdict.reward == 1
        text = (it.output / "test-stdout.txt").read_text()
        assert len(text) < 5 << 20
        assert text.startswith("begin")
        assert "end" in text[-200:]
        assert "were dropped" in text


async def test_the_files_of_the_verifier_are_there_under_both_names_and_kept_afterwards(bench, package):
    script = """\
        #!/bin/bash
        [ /tests/data/x.txt -ef /verifier/data/x.txt ] && cat /tests/data/x.txt
        echo kept > /logs/verifier/note.txt
        mkdir /logs/verifier/more && echo deep > /logs/verifier/more/file
        echo '{"anything": [1]}' > /logs/verifier/reward-details.json
        echo 1 > /logs/verifier/reward.txt
        """
    async with bench(package(files={"verifier/test.sh": script, "verifier/data/x.txt": "hidden"})) as it:
        found = await it.verify()
        assert found.verdict.details == {"anything": [1]}
        assert (it.output / "test-stdout.txt").read_text() == "hidden"
        assert (it.output / "note.txt").read_text() == "kept\n"
        assert (it.output / "more" / "file").read_text() == "deep\n"


async def test_a_declared_command_runs_in_the_verifier_folder_with_its_policy_and_outputs(bench, package):
    document = """\
        ---
        verifier:
          strategies:
            exact: {type: script, command: "sh run.sh two words"}
          outputs:
            artifacts: [/tmp/kept.txt]
            aggregate_policy: {method: weighted_mean, weights: {a: 3, b: 1}}
        ---
        """
    script = """\
        [ "$PWD $#" = "/verifier 2" ] || exit 1
        echo evidence > /tmp/kept.txt
        echo '{"metrics": {"a": 1, "b": 0}}' > /logs/verifier/reward.json
        """
    async with bench(package(files={"verifier/verifier.md": document, "verifier/run.sh": script})) as it:
        found = await it.verify()
        assert isinstance(found.verdict, Scored), found
        assert found.verdict.reward == 0.75
        assert (found.strategy, found.name) == ("script", "exact")
        assert json.loads((it.output / "reward.json").read_text())["reward"] == 0.75
        assert (it.output / "artifacts/tmp/kept.txt").read_text() == "evidence\n"


async def test_dimensions_of_a_rubric_combine_metrics_of_the_same_names(bench, package):
    document = """\
        ---
        verifier:
          strategies:
            exact: {type: script, command: "sh run.sh"}
          rubric:
            combine: weighted_sum
            dimensions: {right: {weight: 0.75, source: exact}, neat: {weight: 0.25, source: exact}}
        ---
        """
    script = 'echo \'{"metrics": {"right": 1, "neat": 0}}\' > /logs/verifier/reward.json\n'
    async with bench(package(files={"verifier/verifier.md": document, "verifier/run.sh": script})) as it:
        assert (await it.verify()).verdict.reward == 0.75


@pytest.mark.parametrize("command", ["/bin/true", "../x.sh", "'unbalanced"])
async def test_a_command_from_outside_is_refused(bench, package, command):
    document = f"---\nverifier:\n  strategies:\n    a: {{type: script, command: {json.dumps(command)}}}\n---\n"
    async with bench(package(files={"verifier/verifier.md": document})) as it:
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("package", "invalid-command")


async def test_the_declared_range_counts(bench, package):
    script = "#!/bin/sh\necho -- -0.5 | tail -c 5 > /logs/verifier/reward.txt\n"
    async with bench(package("verifier: {reward_range: [-1, 1]}\n", {"verifier/test.sh": script})) as it:
        assert (await it.verify()).verdict.reward == -0.5


async def test_a_package_without_a_verifier_says_so(bench, package):
    async with bench(package(files={})) as it:
        found = await it.verify()
        assert (found.verdict.category, found.verdict.code) == ("package", "missing-verifier")


async def test_an_output_folder_that_cannot_be_made_is_an_error_of_the_machine(bench, package, tmp_path):
    async with bench(package()) as it:
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match="file"):
            await it.verifier.verify(tmp_path / "file" / "verifier")
