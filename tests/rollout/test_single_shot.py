"""One agent, one prompt, scored once: the record, its folder, and everything that can go wrong on the way."""

import json

import pytest

from benchflow.agents.protocol import TurnResult
from benchflow.environment import Environment
from benchflow.errors import AgentFailure, InfrastructureFailure, SandboxFailure
from benchflow.record import SandboxPart
from benchflow.rollout import RolloutConfig, run_rollout
from benchflow.testing import InMemoryBackend
from written_documents import check_fits

pytestmark = pytest.mark.anyio

OFFLINE = "environment: {network_mode: no-network}\n"


async def test_an_agent_that_solves_the_task_scores(run, make_package, tmp_path, events):
    result = await run(make_package(OFFLINE), commands=["echo done > answer.txt; echo finished"])
    assert (result.status, result.reward, result.error) == ("scored", 1.0, None)
    assert result.task.name == "acme/task"
    assert result.sandbox == SandboxPart("memory", "host", "exact")
    assert result.usage == {"input_tokens": 3, "output_tokens": 2}
    out = tmp_path / "out"
    document = json.loads((out / "result.json").read_text())
    check_fits(document, "result")
    assert document == result.to_dict()
    assert {"plan", "environment", "agent", "verify", "total"} <= set(document["timing"])
    assert (out / "verifier" / "reward.txt").read_text().strip() == "1.0"
    assert len((out / "result.json").read_bytes()) <= 4096
    assert [event["type"] for event in events()] == ["user_message", "agent_message", "verification"]
    assert json.loads((out / "config.json").read_text())["plan"]["mode"] == "single-shot"
    assert json.loads((out / "rewards.jsonl").read_text())["type"] == "terminal"


@pytest.mark.parametrize("error", [SandboxFailure("The helper is gone.", code="helper-gone"), ValueError("odd")])
async def test_a_clean_up_that_fails_is_noted_and_the_verdict_stays(run, make_package, tmp_path, monkeypatch, error):
    stop = Environment.stop

    async def stop_and_fail(self):
        await stop(self)
        raise error

    monkeypatch.setattr(Environment, "stop", stop_and_fail)
    result = await run(make_package(OFFLINE), "oracle")
    assert (result.status, result.reward) == ("scored", 1.0)
    document = json.loads((tmp_path / "out" / "result.json").read_text())
    check_fits(document, "result")
    [note] = document["cleanup"]
    assert (note["what"], note["category"]) == ("environment", "sandbox")
    assert str(error) in note["message"]


async def test_a_failure_that_nobody_foresaw_ends_its_own_rollout_only(run, make_package, monkeypatch):
    monkeypatch.setattr("benchflow.rollout.rollout.AgentDriver", lambda *_: {}["nothing"])
    result = await run(make_package(OFFLINE), "oracle")
    assert (result.status, result.error.category, result.error.code) == ("unscored", "infrastructure", "crashed")


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
@pytest.mark.sandbox
async def test_the_oracle_solves_and_nop_does_not(run, make_package, agent, reward):
    result = await run(make_package(OFFLINE), agent)
    assert (result.status, result.reward, result.agent.name) == ("scored", reward, agent)


@pytest.mark.sandbox
async def test_a_script_of_this_machine_is_an_agent(run, make_package, tmp_path):
    script = tmp_path / "agent.sh"
    script.write_text("cat /instruction.md; ls /oracle /verifier; echo done > answer.txt; exit 3\n")
    result = await run(make_package(OFFLINE), f"script:{script}")
    assert (result.status, result.reward, result.agent.exit_code) == ("scored", 1.0, 3)
    output = (tmp_path / "out" / "agent" / "script.txt").read_text()
    assert output.startswith("Write done into answer.txt.")
    assert output.count("No such file") == 2


@pytest.mark.sandbox
async def test_an_agent_that_runs_out_of_time_is_still_verified(run, make_package):
    package = make_package(OFFLINE + "agent: {timeout_sec: 0.5}\n")
    result = await run(package, commands=["echo done > answer.txt; sleep 60"])
    assert (result.status, result.reward, result.agent.timed_out) == ("scored", 1.0, True)


async def test_an_agent_that_ignores_its_time_is_cut_off(run, make_package, monkeypatch):
    import anyio

    from benchflow.rollout.drivers import turns

    monkeypatch.setattr(turns, "GRACE_SEC", 0.1)

    async def forever(context):
        await context.sandbox.exec("echo done > answer.txt")
        await anyio.sleep(60)

    result = await run(make_package(OFFLINE), commands=[forever], agent_timeout_sec=0.3)
    assert (result.status, result.reward, result.agent.timed_out) == ("scored", 1.0, True)


@pytest.mark.parametrize(
    ("error", "category", "code"),
    [
        (AgentFailure("no such program", code="start-failed"), "agent", "start-failed"),
        (InfrastructureFailure("the model is down", code="model-failed"), "infrastructure", "model-failed"),
        (ValueError("a bug"), "agent", "crashed"),
        (OSError(28, "No space left on device"), "infrastructure", "disk-full"),
    ],
)
async def test_an_agent_that_cannot_work_leaves_the_task_unscored(run, make_package, tmp_path, error, category, code):
    async def fail(context):
        raise error

    result = await run(make_package(OFFLINE), commands=[fail])
    assert (result.status, result.reward) == ("unscored", None)
    assert (result.error.category, result.error.code, result.error.phase) == (category, code, "agent")
    assert not (tmp_path / "out" / "verifier").exists()
    check_fits(json.loads((tmp_path / "out" / "result.json").read_text()), "result")


async def test_an_agent_that_gives_up_is_verified(run, make_package):
    async def refuse(context):
        return TurnResult("refusal", "I would rather not.")

    result = await run(make_package(OFFLINE), commands=[refuse])
    assert (result.status, result.reward, result.agent.stop_reason) == ("scored", 0.0, "refusal")


@pytest.mark.parametrize(
    ("frontmatter", "verifier", "expected"),
    [
        ("environment: {cpuz: 1}\n", None, ("package", "unknown-key", "plan")),
        ("environment: {gpus: 1}\n", None, ("unsupported", "unsupported-feature", "plan")),
        (OFFLINE, "exit 0\n", ("verifier", "reward-missing", "verify")),
        (OFFLINE + "verifier: {timeout_sec: 0.3}\n", "sleep 30\n", ("verifier", "timeout", "verify")),
        ("environment:\n  network_mode: no-network\n  healthcheck: {command: 'false', interval_sec: 0.01}\n", None,
         ("environment", "unhealthy", "environment")),
        ("environment:\n  network_mode: no-network\n  env: {A: '${NOT_SET_ANYWHERE}'}\n", None,
         ("environment", "variable-missing", "environment")),
    ],
    ids=["invalid", "unsupported", "no reward", "slow verifier", "unhealthy", "variable"],
)  # fmt: skip
async def test_trouble_belongs_to_one_boundary(run, make_package, tmp_path, frontmatter, verifier, expected):
    package = make_package(frontmatter, {"verifier/test.sh": verifier} if verifier else None)
    result = await run(package, commands=["true"])
    assert result.status == "unscored"
    assert (result.error.category, result.error.code, result.error.phase) == expected
    assert json.loads((tmp_path / "out" / "result.json").read_text())["reward"] is None


@pytest.mark.sandbox
async def test_a_healthcheck_is_waited_for(run, make_package):
    package = make_package(
        "environment:\n  network_mode: no-network\n  healthcheck:\n"
        "    command: 'test -e /tmp/seen || { touch /tmp/seen; exit 1; }'\n    interval_sec: 0.01\n"
    )
    assert (await run(package, "oracle")).reward == 1.0


async def test_the_same_work_has_the_same_key(backend, make_package, tmp_path):
    package = make_package(OFFLINE)
    one = RolloutConfig(package, "nop", sandbox=backend)
    two = RolloutConfig(package, "nop", sandbox=backend, attempt=2)
    keys = [(await run_rollout(config, tmp_path / name)).key for name, config in (("a", one), ("b", one), ("c", two))]
    assert keys[0] == keys[1] != keys[2]


async def test_a_folder_that_cannot_be_written_is_told(backend, make_package, tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = await run_rollout(RolloutConfig(make_package(OFFLINE), "nop", sandbox=backend), tmp_path / "file" / "out")
    assert result.status == "unscored"
    assert result.error.category == "infrastructure"


async def test_a_sandbox_that_cannot_be_copied_is_refused_before_the_agent_works(make_package, tmp_path):
    backend = InMemoryBackend(without=["fork"])
    result = await run_rollout(RolloutConfig(make_package(OFFLINE), "oracle", sandbox=backend), tmp_path / "out")
    assert (result.status, result.error.category) == ("unscored", "unsupported")
    assert "fork" in result.error.message
    assert backend.calls == []


@pytest.mark.parametrize(
    ("verb", "matching", "phase"),
    [
        ("start", None, "environment"),
        ("process", "solve.sh", "agent"),
        ("fork", None, "verify"),
        ("exec", "test.sh", "verify"),
        ("download", "/logs/verifier", "verify"),
    ],
)
async def test_trouble_of_the_sandbox_at_any_moment_is_no_score(
    make_package, tmp_path, memory_backend, verb, matching, phase
):
    memory_backend.fail(verb, matching=matching)
    config = RolloutConfig(make_package(OFFLINE), "oracle", sandbox=memory_backend)
    result = await run_rollout(config, tmp_path / "out")
    assert (result.status, result.reward) == ("unscored", None)
    assert (result.error.category, result.error.code, result.error.phase) == ("sandbox", "scripted", phase)


WEIGHTED = """\
---
verifier:
  strategies:
    exact: {type: script, command: ./test.sh}
  outputs:
    aggregate_policy: {fallback: weighted_mean, metrics: {right: RIGHT, neat: 1}}
---
"""


@pytest.mark.parametrize(("weight", "reward"), [(3, 0.75), (1, 0.5)])
async def test_the_weights_of_metrics_decide_the_reward(run, make_package, weight, reward):
    check = """printf '{"metrics": {"right": 1, "neat": 0}}' > /logs/verifier/reward.json\n"""
    document = WEIGHTED.replace("RIGHT", str(weight))
    result = await run(make_package(files={"verifier/verifier.md": document}, verifier=check))
    assert (result.status, result.reward) == ("scored", reward), result.error
    assert result.rewards == {"reward": reward, "right": 1.0, "neat": 0.0}
