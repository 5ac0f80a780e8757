"""Several rounds: users that look at rewards and oracles, facts that are told on a question, models that play users."""

import pytest

from benchflow.errors import InfrastructureFailure
from benchflow.rollout import BaseUser, FunctionUser, users

pytestmark = pytest.mark.anyio

OFFLINE = "environment: {network_mode: no-network}\n"
SCRIPTED = OFFLINE + (
    "user:\n  model: scripted\n  stop_rule: satisfied-or-3-rounds\n  private_facts: {secret_word: done}\n"
)


async def test_a_user_sees_the_reward_of_every_round_and_the_agent_does_not(run, make_package, rounds, tmp_path):
    seen = []

    def user(number, instruction, last):
        seen.append((number, last and last.rewards))
        return None if last and last.rewards["reward"] == 1.0 else f"{instruction} Try {number}."

    commands = ["ls /verifier /logs/verifier; true", "echo done > answer.txt; ls /verifier; true"]
    result = await run(make_package(OFFLINE), commands=commands, user=FunctionUser(user))
    assert result.reward == 1.0
    assert seen == [(0, None), (1, {"reward": 0.0}), (2, {"reward": 1.0})]
    first, second = rounds()
    assert (first["round"], first["prompt"]) == (0, "Write done into answer.txt. Try 0.")
    assert (first["rewards"], second["rewards"]) == ({"reward": 0.0}, {"reward": 1.0})
    assert second["tokens"] == 5
    assert result.usage["input_tokens"] == 6
    assert (tmp_path / "out" / "rounds" / "1" / "reward.txt").is_file()


async def test_an_agent_stays_open_between_rounds(run, make_package, new_script):
    script = new_script("true")
    await run(make_package(OFFLINE), script=script, user=FunctionUser(lambda n, i, last: "again" if n < 3 else None))
    assert len(script.prompts) == 3
    assert (len(script.contexts), script.closed) == (1, 1)


async def test_a_soft_verification_leaves_the_agents_processes_alone(run, make_package):
    commands = [
        "(while :; do sleep 0.1; done) & echo $! > /tmp/pid; true",
        "kill -0 $(cat /tmp/pid) && echo done > answer.txt",
    ]
    user = FunctionUser(lambda number, instruction, last: instruction if number < 2 else None)
    assert (await run(make_package(OFFLINE), commands=commands, user=user)).reward == 1.0


async def test_the_oracle_is_shown_to_users_who_were_granted_it_only(run, make_package):
    class Knowing(BaseUser):
        wants_rewards = False

        async def setup(self, instruction, solution=None):
            self.solution = solution

        async def run(self, number, instruction, round_result):
            return instruction if number == 0 else None

    granted, denied = Knowing(), Knowing()
    package = make_package(OFFLINE)
    await run(package, user=granted, oracle_access=True, commands=["ls /oracle"])
    await run(package, user=denied, out="second")
    assert granted.solution == "echo done > answer.txt\n"
    assert denied.solution is None


async def test_rounds_end_at_their_limit(run, make_package, rounds):
    user = FunctionUser(lambda number, instruction, last: "more")
    await run(make_package(OFFLINE), user=user, max_user_rounds=2)
    assert [line["round"] for line in rounds()] == [0, 1]
    assert rounds()[1]["rewards"] is None


async def test_a_user_that_fails_is_not_the_agents_fault(run, make_package):
    def broken(number, instruction, last):
        raise KeyError("oops")

    result = await run(make_package(OFFLINE), user=FunctionUser(broken))
    assert (result.error.category, result.error.code) == ("infrastructure", "user-failed")


async def test_a_private_fact_is_told_when_the_agent_asks_for_it(run, make_package, rounds, new_script, tmp_path):
    script = new_script("echo 'What is the secret word?'", "echo done > answer.txt")
    result = await run(make_package(SCRIPTED), script=script)
    assert result.reward == 1.0
    assert [text for _, text in script.prompts] == [
        "Write done into answer.txt.",
        "Additional user detail for secret word: done",
    ]
    assert len(rounds()) == 2
    assert "done" not in (tmp_path / "out" / "config.json").read_text()


async def test_a_private_fact_stays_private_when_nobody_asks(run, make_package, new_script):
    script = new_script("echo 'I guess there is no secret word.'")
    result = await run(make_package(SCRIPTED), script=script)
    assert (result.reward, len(script.prompts)) == (0.0, 1)


async def test_oracle_and_nop_win_over_a_declared_user(run, make_package, tmp_path):
    assert (await run(make_package(SCRIPTED), "oracle")).reward == 1.0
    assert not (tmp_path / "out" / "user_rounds.jsonl").exists()


async def test_a_model_plays_a_persona(run, make_package, new_script, monkeypatch):
    asked = []

    def caller(machine, access=None, tools=None):
        async def answer(model, prompt):
            asked.append((model, prompt))
            return "Write done, please." if len(asked) == 1 else "DONE"

        return answer

    monkeypatch.setattr(users, "model_caller", caller)
    frontmatter = OFFLINE + "user: {model: gpt-5, stop_rule: satisfied-or-4-rounds}\n"
    package = make_package(frontmatter, {"prompts/user-persona.md": "A hurried manager."})
    script = new_script("echo 'Finished.'", "echo done > answer.txt")
    result = await run(package, script=script)
    assert (result.reward, script.prompts[1][1]) == (1.0, "Write done, please.")
    assert [model for model, _ in asked] == ["gpt-5", "gpt-5"]
    assert "A hurried manager." in asked[0][1]
    assert "reward 0" in asked[0][1]
    assert "reward 1" in asked[1][1]


async def test_a_model_user_that_cannot_be_reached_leaves_the_task_unscored(run, make_package, monkeypatch):
    def caller(machine, access=None, tools=None):
        async def answer(model, prompt):
            raise InfrastructureFailure("nobody there", code="user-failed")

        return answer

    monkeypatch.setattr(users, "model_caller", caller)
    package = make_package(OFFLINE + "user: {model: gpt-5, persona: A manager.}\n")
    result = await run(package)
    assert (result.error.category, result.error.code) == ("infrastructure", "user-failed")


async def test_a_declared_multi_round_task_without_user_is_refused(run, make_package):
    package = make_package(OFFLINE + "benchflow: {interaction: {mode: multi-round}}\n")
    result = await run(package)
    assert (result.error.category, result.error.code, result.error.phase) == ("unsupported", "user-missing", "plan")
    assert (await run(package, "oracle", out="other")).reward == 1.0


async def test_prompts_of_the_caller_replace_the_documents(run, make_package, new_script):
    script = new_script("true", "echo done > answer.txt")
    result = await run(make_package(SCRIPTED), script=script, prompts=("First.", "Second."))
    assert ([text for _, text in script.prompts], result.reward) == (["First.", "Second."], 1.0)
