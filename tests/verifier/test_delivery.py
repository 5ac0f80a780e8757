"""What the agent was to deliver and did not is 0 with its reason; what others should have provided is unscored."""

from __future__ import annotations

import json

import pytest

from benchflow.errors import SandboxFailure
from benchflow.rewards import Scored
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.testing import ModelServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.xdist_group("models"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ROLE = """\
    ---
    verifier:
      strategies:
        panel:
          {{type: agent-judge, role: panel, model: openai/test-model, isolation: verifier-only, inputs: [{inputs}]}}
    ---
    ## role:panel
    Judge the report.
    """
EPISODE = """\
    ---
    verifier:
      strategies:
        episode: {type: ors-episode, inputs: [%s]}
    ---
    """
BOARD = """\
    ---
    verifier:
      strategies:
        board: {type: leaderboard-submission, inputs: [/app/report.md], command: "echo '{\\"reward\\": 1}'"}
    ---
    """
RUBRIC = """\
    [judge]
    model = "openai/test-model"
    [[criterion]]
    name = "right"
    description = "The answer is 42."
    [[criterion]]
    name = "clear"
    description = "It reads well."
    """
JUDGE = """\
    ---
    verifier:
      strategies:
        prose: {type: llm-judge, rubric: rubric.toml, input_dir: /app/out}
    ---
    """
EVASIONS = {
    "nothing done": "true",
    "a link": "ln -s /etc/hostname report.md",
    "a link to itself": "ln -s report.md report.md",
    "a pipe": "mkfifo report.md",
    "a folder": "mkdir report.md",
    "a folder made of links": "ln -s / report.md",
    "too large": "head -c 20000000 /dev/zero > report.md",
    "sparse and huge": "truncate -s 1T report.md",
    "deleted": "echo x > report.md; rm report.md",
}


@pytest.mark.parametrize("script", EVASIONS.values(), ids=EVASIONS)
@pytest.mark.sandbox
async def test_a_report_that_cannot_be_read_is_scored_0(bench, package, script):
    files = {"verifier/verifier.md": ROLE.format(inputs="/app/report.md")}
    with ModelServer([{"score": 1}]) as server:
        async with bench(package(files=files), **server.environment) as it:
            await it.agent(script)
            found = await it.verify()
    assert isinstance(found.verdict, Scored), found.verdict
    assert found.verdict.reward == 0
    assert "/app/report.md" in found.verdict.document["reason"]
    assert [issue.code for issue in found.diagnostics] == ["not-delivered"]
    assert json.loads((it.output / "reward.json").read_text())["reward"] == 0
    assert not server.requests


async def test_a_report_that_nobody_may_read_is_read_all_the_same(bench, package):
    files = {"verifier/verifier.md": ROLE.format(inputs="/app/report.md")}
    with ModelServer([{"score": 1}]) as server:
        async with bench(package(files=files), **server.environment) as it:
            await it.agent("echo done > report.md; chmod 000 report.md; chmod 000 .")
            assert (await it.verify()).verdict.reward == 1


async def test_every_missing_deliverable_is_named(bench, package):
    files = {"verifier/verifier.md": ROLE.format(inputs="/app/a.md, /app/b.md")}
    async with bench(package(files=files)) as it:
        found = await it.verify()
    assert [item["path"] for item in found.verdict.details["not_delivered"]] == ["/app/a.md", "/app/b.md"]


async def test_a_deliverable_that_was_not_carried_over_says_why(bench, package):
    files = {"verifier/verifier.md": ROLE.format(inputs="/etc/report.conf")}
    async with bench(package(files=files)) as it:
        await it.agent("echo x > /etc/report.conf", user="root")
        found = await it.verify()
    assert found.verdict.reward == 0
    assert found.verdict.document["reason"] == (
        "/etc/report.conf was not carried over: /etc/report.conf is part of the system."
    )


@pytest.mark.parametrize("path", ["trajectory/acp_trajectory.jsonl", "/logs/agent/trajectory.json"])
async def test_a_record_that_the_runtime_should_have_kept_is_unscored(bench, package, tmp_path, path):
    files = {"verifier/verifier.md": ROLE.format(inputs=path)}
    async with bench(package(files=files)) as it:
        verdict = (await it.verify(rollout=tmp_path)).verdict
        assert (verdict.category, verdict.code) == ("verifier", "input-missing")


@pytest.mark.parametrize("path", ["/logs/artifacts/report.md", "artifacts/app/report.md"])
async def test_artifacts_are_the_agents_to_fill(bench, package, tmp_path, path):
    files = {"verifier/verifier.md": ROLE.format(inputs=path)}
    async with bench(package(files=files)) as it:
        assert (await it.verify(rollout=tmp_path)).verdict.reward == 0


@pytest.mark.sandbox
async def test_a_box_that_is_gone_is_no_score(bench, package, monkeypatch):
    read = LocalSandbox.read_file

    async def stop_and_read(self, path, **options):
        await self.stop()
        return await read(self, path, **options)

    monkeypatch.setattr(LocalSandbox, "read_file", stop_and_read)
    async with bench(package(files={"verifier/verifier.md": ROLE.format(inputs="/app/report.md")})) as it:
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("sandbox", "sandbox-gone")


@pytest.mark.parametrize("text", ["", "not json", '{"reward": 7}', '{"type": "dense", "reward": 0.5}'])
async def test_an_episode_that_the_agent_could_spoil_is_scored_0(bench, package, text):
    async with bench(package(files={"verifier/verifier.md": EPISODE % "/app/rewards.jsonl"})) as it:
        await it.agent(f"printf '%s' '{text}' > rewards.jsonl")
        found = await it.verify()
        assert found.verdict.reward == 0, found.verdict
        assert "rewards.jsonl" in found.verdict.document["reason"]


async def test_an_episode_that_the_runtime_spoiled_is_unscored(bench, package, tmp_path):
    (tmp_path / "trajectory").mkdir()
    (tmp_path / "trajectory" / "ors-rewards.jsonl").write_text("not json\n")
    async with bench(package(files={"verifier/verifier.md": EPISODE % "trajectory/ors-rewards.jsonl"})) as it:
        verdict = (await it.verify(rollout=tmp_path)).verdict
        assert (verdict.status, verdict.category) == ("unscored", "verifier")


async def test_nothing_is_submitted_for_an_agent_that_delivered_nothing(bench, package):
    async with bench(package(files={"verifier/verifier.md": BOARD})) as it:
        found = await it.verify()
        assert found.verdict.reward == 0
        assert not (it.output / "submission").exists()


@pytest.mark.parametrize(
    "script",
    [
        "true",
        "mkdir out",
        "ln -s /etc out",
        "mkdir out; mkfifo out/a.md; ln -s /etc/hostname out/b.md; mkdir out/c.md",
        "mkdir out; head -c 60000000 /dev/zero > out/a.md",
        "mkdir out; printf 'a\\0b' > out/a.md",
    ],
)
async def test_no_judge_is_asked_about_a_folder_with_nothing_to_read(bench, package, script):
    files = {"verifier/verifier.md": JUDGE, "verifier/rubric.toml": RUBRIC}
    with ModelServer([{"score": 1}, {"score": 1}]) as server:
        async with bench(package(files=files), **server.environment) as it:
            await it.agent(script)
            found = await it.verify()
    assert found.verdict.reward == 0, found.verdict
    assert [(item.name, item.score) for item in found.verdict.items] == [("right", 0), ("clear", 0)]
    assert not server.requests


async def test_a_criterion_about_a_file_that_is_not_there_is_0_and_the_others_are_judged(bench, package):
    rubric = RUBRIC.replace('description = "It reads well."', 'description = "It reads well."\n    files = ["essay"]')
    files = {"verifier/verifier.md": JUDGE, "verifier/rubric.toml": rubric}
    with ModelServer([{"score": 1}]) as server:
        async with bench(package(files=files), **server.environment) as it:
            await it.agent("mkdir out; echo 42 > out/answer.md")
            found = await it.verify()
    assert {item.name: item.score for item in found.verdict.items} == {"right": 1, "clear": 0}
    assert found.verdict.reward == 0.5


@pytest.mark.parametrize(
    "files",
    [
        {"verifier/verifier.md": ROLE.format(inputs="/app/out/a.md")},
        {"verifier/verifier.md": JUDGE, "verifier/rubric.toml": RUBRIC},
    ],
    ids=["agent-judge", "llm-judge"],
)
@pytest.mark.sandbox
async def test_a_file_that_a_healthy_box_fails_to_give_is_no_score(bench, package, monkeypatch, files):
    async def cut_short(*_, **__):
        raise SandboxFailure("A copy was interrupted inside the sandbox.", code="cut-short")

    monkeypatch.setattr(LocalSandbox, "read_file", cut_short)
    with ModelServer([{"score": 1}]) as server:
        async with bench(package(files=files), **server.environment) as it:
            await it.agent("mkdir out; echo 42 > out/a.md")
            verdict = (await it.verify()).verdict
    assert (verdict.status, verdict.category, verdict.code) == ("unscored", "sandbox", "cut-short"), verdict


@pytest.mark.parametrize(("gone", "outcome"), [("find", 1), ("sh", "listing-failed")])
@pytest.mark.sandbox
async def test_what_the_environment_lacks_does_not_count_against_the_agent(bench, package, gone, outcome):
    dockerfile = f"FROM debian:12\nWORKDIR /app\nRUN rm -f /usr/bin/{gone}\n"
    files = {"environment/Dockerfile": dockerfile, "verifier/verifier.md": JUDGE, "verifier/rubric.toml": RUBRIC}
    with ModelServer([{"score": 1}, {"score": 1}]) as server:
        async with bench(package(files=files), base_image="host", **server.environment) as it:
            await it.sandbox.write_file("/app/out/answer.md", b"42")
            verdict = (await it.verify()).verdict
    if isinstance(outcome, str):
        assert (verdict.status, verdict.category, verdict.code) == ("unscored", "environment", outcome)
    else:
        assert verdict.reward == outcome, verdict
