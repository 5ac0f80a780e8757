"""Who may assess a game: the built-in referee, a program (see the games), or any agent in the verifier's ground."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.arena.arena_packages import game_package

from benchflow.testing import Answer, ModelServer, ToolCall

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.slow]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("package", "seed"), [("haggle-arena", None), ("tip-auction", 3)])
async def test_the_oracle_of_an_example_scores_high_and_nop_low(play, package, seed):
    place = EXAMPLES / "packages" / package
    high = await play(place, "oracle", base_image="host", seed=seed)
    low = await play(place, "nop", base_image="host", seed=seed)
    assert (high.why, low.why) == (None, None)
    assert high.result.reward >= 0.9
    assert low.result.reward <= 0.1
    assert high.result.arena.assessor == "built-in"


async def test_a_model_assesses_through_tools_and_its_key_stays_out_of_every_box(tmp_path, play, script):
    package = game_package(tmp_path / "game", agent="model:openai/gpt-5-mini")
    replies = [
        Answer(tool_calls=[ToolCall("send_message", {"role": "first", "text": "Your move."})]),
        Answer(tool_calls=[ToolCall("give_reward", {"role": "first", "reward": 0.25})]),
        Answer(tool_calls=[ToolCall("send_message", {"role": "ghost", "text": "Boo."})]),
        Answer(tool_calls=[ToolCall("finish", {"rewards": {"first": 0.75, "second": 0.0}, "winner": "first"})]),
    ]
    with ModelServer(replies) as server:
        environ = {**os.environ, **server.environment}
        game = await play(package, script("cat; echo; env"), machine=environ)
        asked = json.dumps([request.messages for request in server.requests])
    assert (game.why, game.result.reward, game.result.arena.winner) == (None, 0.75, "first"), game.result.error
    assert "The higher number wins this little game of ours." in asked
    assert "unknown participant 'ghost'" in asked
    [said] = [one.parts[0].text for one in game.messages if one.sender == "first"]
    assert said.startswith("Your move.")
    assert server.api_key not in said
    assert game.result.arena.events == 1


SCRIPT = """#!/usr/bin/env python3
import json, sys, urllib.request
request = json.load(sys.stdin)
rewards = {}
for role, url in request["participants"].items():
    message = {"kind": "message", "role": "user", "messageId": role, "parts": [{"kind": "text", "text": "?"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    sent = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(sent))["result"]
    rewards[role] = float(answer["parts"][0]["text"]) / 10
print(json.dumps({"winner": max(rewards, key=rewards.get), "rewards": rewards}))
"""


async def test_a_script_of_the_verifier_assesses_with_what_it_prints(tmp_path, play, script):
    package = game_package(tmp_path / "game", agent="script:judge.py")
    (package / "verifier/judge.py").write_text(SCRIPT)
    game = await play(package, script("echo 3"), others={"second": script("echo 8")})
    assert (game.why, dict(game.result.rewards)) == (None, {"reward": 0.3, "first": 0.3, "second": 0.8})
    broken = game_package(tmp_path / "broken", agent="script:judge.py")
    (broken / "verifier/judge.py").write_text("#!/bin/sh\necho 'first wins with 1.0'\n")
    game = await play(broken)
    assert game.why == ("verifier", "assessor-failed")


async def test_an_acp_agent_has_a_session_per_conversation_and_what_it_does_are_updates(tmp_path, play):
    talks = """
def play(request, status, artifact):
    url = request["participants"]["first"]
    said = [ask(url, "Hello.", context) for context in ("one", "one", "two")]
    artifact({"winner": None, "rewards": {role: 0.5 for role in request["participants"]}, "details": said})
"""
    package = game_package(tmp_path / "game", play=talks)
    source = Path(__file__).with_name("plain_acp_agent.py").read_text()
    quoted = f"cat > agent.py <<'END'\n{source}\nEND\nexec python3 agent.py".replace("'", "'\\''")
    game = await play(package, f"acp:sh -c '{quoted}'")
    assert game.why is None, game.result.error
    details = json.loads((game.folder.verifier / "reward-details.json").read_text())["details"]
    assert details == ["s0 1 True", "s0 2 True", "s0 1 True"]  # the third is another process
    updates = [one for one in game.messages if one.kind == "status"]
    assert {(one.sender, one.state) for one in updates} == {("first", "working")}
    assert {"agent_thought", "tool_call", "a2a_message"} <= {
        event["type"] for event in game.events if event.get("role") == "first"
    }
