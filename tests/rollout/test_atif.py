"""A rollout's folder as an ATIF trajectory, by the rules that its validators enforce."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import UsageError
from benchflow.files.redaction import NO_SECRETS
from benchflow.record import AgentPart, ArenaPart, ArenaRole, Trajectory
from benchflow.record.trajectory import reward_lines
from benchflow.rewards import Scored
from benchflow.rollout.atif import export_atif, to_atif
from made_jobs import arena_job

AGENT_ONLY = {"model_name", "reasoning_content", "tool_calls", "metrics"}


def valid(document):
    """The rules of ATIF that a document of ours could break."""
    assert document["schema_version"].startswith("ATIF-v1.")
    assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
    assert document["steps"]
    for step in document["steps"]:
        assert step["source"] in ("system", "user", "agent")
        assert isinstance(step["message"], str)
        assert step["source"] == "agent" or not AGENT_ONLY & set(step)
        calls = {call["tool_call_id"] for call in step.get("tool_calls", [])}
        for call in step.get("tool_calls", []):
            assert isinstance(call["arguments"], dict)
        for result in step.get("observation", {}).get("results", []):
            assert result.get("source_call_id", "") in calls | {""}
    json.dumps(document, allow_nan=False)
    return document


@pytest.fixture(scope="module")
def result(make_result):
    agent = AgentPart("model:m", "m", exit_code=None, timed_out=False)
    return make_result("acme/a", agent=agent, usage={"input_tokens": 7, "cost_usd": 0.5}, key="k")


def event(kind, /, **fields):
    return {"seq": 1, "time": "2026-01-01T00:00:00.000Z", "type": kind, **fields}


def test_a_conversation_becomes_steps(result):
    events = [
        event("user_message", text="Go.", scene="s", role="r"),
        event("agent_thought", text="Hm."),
        event("agent_message", text="I look."),
        event("tool_call", tool="bash", tool_call_id="1", arguments={"command": "ls"}),
        event("tool_result", tool_call_id="1", output="a b"),
        event("usage", input_tokens=5, output_tokens=2),
        event("agent_message", text="Done."),
        event("user_message", text="Thanks."),
    ]
    rewards = list(reward_lines(Scored(1.0)))
    document = valid(to_atif(result, events, rewards))
    assert [step["source"] for step in document["steps"]] == ["user", "agent", "agent", "user", "system"]
    first, worked, said, _, reward = document["steps"]
    assert first["extra"] == {"scene": "s", "role": "r"}
    assert worked["tool_calls"] == [{"tool_call_id": "1", "function_name": "bash", "arguments": {"command": "ls"}}]
    assert worked["observation"] == {"results": [{"source_call_id": "1", "content": "a b"}]}
    assert (worked["reasoning_content"], worked["metrics"]) == ("Hm.", {"prompt_tokens": 5, "completion_tokens": 2})
    assert said["message"] == "Done."
    assert reward["extra"]["reward"]["value"] == 1.0
    assert document["final_metrics"] == {"total_prompt_tokens": 7, "total_cost_usd": 0.5, "total_steps": 5}
    assert document["extra"]["reward"] == 1.0


KINDS = st.sampled_from(["user_message", "agent_message", "agent_thought", "tool_call", "tool_result", "usage", "plan"])
EVENTS = st.builds(
    lambda kind, text, call: event(kind, text=text, tool_call_id=call, input_tokens=1, input=text),
    KINDS, st.text(max_size=5), st.sampled_from(["", "1", "2"]),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=12))
def test_whatever_happened_gives_a_valid_document(result, events):
    valid(to_atif(result, events))


def test_a_folder_is_exported_whole(tmp_path, result):
    (tmp_path / "result.json").write_text(json.dumps(result.to_dict()))
    (tmp_path / "trajectory.jsonl").write_text(json.dumps(event("oracle", stdout="solved")) + "\n")
    document = valid(export_atif(tmp_path))
    assert (document["session_id"], document["steps"][0]["message"]) == (tmp_path.name, "solved")


def test_a_folder_without_a_result_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no result"):
        export_atif(tmp_path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"schema": "\\ud800"}', b"NaN"])
def test_a_result_that_is_not_sound_json_is_refused_by_its_path(tmp_path, content):
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        export_atif(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/result.json ")


def test_roles_that_work_at_the_same_time_are_kept_apart(result):
    """Both call their first tool by the same id, and the results come back crosswise."""
    events = [
        event("user_message", text="A.", role="a"),
        event("user_message", text="B.", role="b"),
        event("tool_call", tool="bash", tool_call_id="1", arguments={"command": "a"}, role="a"),
        event("tool_call", tool="bash", tool_call_id="1", arguments={"command": "b"}, role="b"),
        event("tool_result", tool_call_id="1", output="for b", role="b"),
        event("tool_result", tool_call_id="1", output="for a", role="a"),
    ]
    steps = valid(to_atif(result, events))["steps"]
    assert [(step["source"], step["extra"]["role"]) for step in steps] == [
        ("user", "a"),
        ("user", "b"),
        ("agent", "a"),
        ("agent", "b"),
    ]
    for step in steps[2:]:
        role = step["extra"]["role"]
        assert step["tool_calls"][0]["arguments"] == {"command": role}
        assert step["observation"]["results"] == [{"source_call_id": "1", "content": f"for {role}"}]


def test_a_game_keeps_the_steps_of_its_roles_apart_and_its_messages_whole(tmp_path):
    job = arena_job(tmp_path, "games")
    folder = job / "rollouts/haggle__1__1"
    (folder / "trajectory.jsonl").unlink()
    with Trajectory(folder / "trajectory.jsonl", NO_SECRETS) as events:
        for role in ("buyer", "seller"):
            events("a2a_message", role="umpire", to=role, text="What do you offer?", kind="message", message=1)
            events("user_message", role=role, text=f"You are the {role}. What do you offer?")
        events("agent_thought", role="seller", text="High.")
        events("agent_thought", role="buyer", text="Low.")
        events("agent_message", role="seller", text="I say 100.")
        events("a2a_message", role="seller", to="umpire", text="I say 100.", kind="message", message=3)
        events("a2a_message", role="buyer", to="umpire", text="I say 80.", kind="message", message=4)
        events("a2a_message", role="umpire", to="buyer", text="working", kind="status", message=5)
    document = valid(export_atif(folder))
    steps = [(step["source"], step["message"], step.get("extra", {}).get("role")) for step in document["steps"]]
    assert [step for step in steps if step[0] != "system"] == [
        ("user", "You are the buyer. What do you offer?", "buyer"),
        ("user", "You are the seller. What do you offer?", "seller"),
        ("agent", "I say 100.", "seller"),
        ("agent", "I say 80.", "buyer"),
    ]
    thoughts = {step["message"]: step["reasoning_content"] for step in document["steps"] if "reasoning_content" in step}
    assert (thoughts["I say 100."], thoughts["I say 80."]) == ("High.", "Low.")
    extra = document["extra"]
    assert (extra["arena"]["winner"], len(extra["a2a_messages"]), len(extra["a2a_tool_calls"])) == ("buyer", 20, 2)
    [large] = [part["part"] for message in extra["a2a_messages"] for part in message["parts"] if "part" in part]
    assert extra["a2a_message_parts"][large].startswith("a long letter")


def test_of_an_agent_elsewhere_the_messages_to_it_are_its_prompts(result):
    role = ArenaRole("url", None, "http://127.0.0.1:1", 1.0, "played")
    arena = ArenaPart({"a": role}, "a", "built-in", None, None, {"a": "url"}, 2, 0)
    events = [
        event("a2a_message", role="umpire", to="a", text="Go.", kind="message"),
        event("a2a_message", role="a", to="umpire", text="Done.", kind="artifact"),
    ]
    document = valid(to_atif(replace(result, arena=arena), events))
    assert [(step["source"], step["message"]) for step in document["steps"]] == [("user", "Go."), ("agent", "Done.")]
