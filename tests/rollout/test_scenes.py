"""Several agents, one after the other, in one workspace: prompts, handoffs, roles."""

import json

import pytest

from benchflow.errors import UsageError
from benchflow.rollout import Role, Scene, Turn

pytestmark = pytest.mark.anyio

TEAM = """\
environment: {network_mode: no-network}
agents:
  roles:
    writer: {agent: shell-a, model: m1, env: {TONE: dry}}
    checker: {agent: shell-b, reasoning_effort: high}
scenes:
  - name: draft
    turns: [writer]
  - name: check
    turns: [checker, {role: writer, prompt: Apply the comments.}]
benchflow:
  prompt: {composition: append}
"""
HANDOFF = (
    "  teams: {core: {handoff: {mode: sequential, workspace_visibility: shared, trajectory_visibility: metadata}}}\n"
)
FILES = {"prompts/role.checker.md": "You check.", "prompts/scene.check.md": "Check it."}


async def test_roles_take_turns_in_one_workspace(run, make_package, new_script, rounds, events):
    script = new_script("echo $TONE > answer.txt", "cat answer.txt", "echo done >> answer.txt")
    result = await run(make_package(TEAM, FILES), script=script)
    assert result.reward == 1.0
    base = "Write done into answer.txt."
    assert script.prompts == [
        ("shell-a", base),
        ("shell-b", f"{base}\n\nYou check.\n\nCheck it."),
        ("shell-a", f"{base}\n\nCheck it.\n\nApply the comments."),
    ]
    assert [context.model for context in script.contexts] == ["m1", None]
    assert script.contexts[1].reasoning_effort == "high"
    handed = [(line["scene"], line["role"], line.get("handoff_from"), line.get("handoff_to")) for line in rounds()]
    assert handed == [
        ("draft", "writer", None, None),
        ("check", "checker", "writer", "checker"),
        ("check", "writer", "checker", "writer"),
    ]
    said = [event for event in events() if event["type"] == "agent_message"]
    assert [(event["text"], event["role"], event["scene"]) for event in said] == [("dry\n", "checker", "check")]


async def test_a_team_passes_on_metadata_when_it_says_so(run, make_package, new_script):
    script = new_script("true")
    await run(make_package(TEAM + HANDOFF, FILES), script=script)
    assert "Handoff from" not in script.prompts[0][1]
    assert script.prompts[1][1].endswith("Handoff from writer (scene draft): 0 tool calls in its last turn.")


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
async def test_fixed_agents_win_over_declared_roles(run, make_package, tmp_path, agent, reward):
    result = await run(make_package(TEAM, FILES), agent)
    assert (result.reward, result.agent.name) == (reward, agent)
    plan = json.loads((tmp_path / "out" / "config.json").read_text())["plan"]
    assert [turn["agent"] for step in plan["steps"] for turn in step["turns"]] == [agent]


async def test_a_script_runs_once_whatever_scenes_are_declared(run, make_package, tmp_path):
    script = tmp_path / "agent.sh"
    script.write_text("echo done >> answer.txt; [ $(wc -l < answer.txt) = 1 ]\n")
    result = await run(make_package(TEAM, FILES), f"script:{script}")
    assert (result.reward, result.agent.exit_code) == (1.0, 0)


async def test_scenes_of_the_caller_replace_the_documents(run, make_package, new_script):
    script = new_script("true")
    scenes = (
        Scene.single(agent="one", prompts=("Go.", None)),
        Scene("last", (Role("r", "two", env={"A": "b"}),), (Turn("r"),)),
    )
    await run(make_package(TEAM, FILES), script=script, scenes=scenes)
    base = "Write done into answer.txt."
    assert script.prompts == [("one", "Go."), ("one", base), ("two", base)]


def test_a_turn_by_nobody_is_refused():
    with pytest.raises(UsageError, match="'b'"):
        Scene("s", (Role("a", "nop"),), (Turn("b"),))


async def test_a_roles_own_time_ends_its_turn_only(run, make_package, new_script):
    package = make_package(TEAM.replace("reasoning_effort: high", "timeout_sec: 0.4"), FILES)
    script = new_script("true", "sleep 30", "echo done > answer.txt")
    result = await run(package, script=script)
    assert (result.reward, result.agent.timed_out, len(script.prompts)) == (1.0, True, 3)


async def test_a_user_speaks_between_declared_turns(run, make_package, new_script, rounds):
    user = "user: {model: scripted, stop_rule: satisfied-or-4-rounds, private_facts: {code_word: done}}\n"
    script = new_script("echo 'What is the code word?'", "true", "echo done > answer.txt", "true")
    await run(make_package(user + TEAM + HANDOFF, FILES), script=script)
    assert "User follow-up:\nAdditional user detail for code word: done" in script.prompts[1][1]
    assert "User follow-up" not in script.prompts[2][1]
    assert len(rounds()) == 3
