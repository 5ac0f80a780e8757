"""Agents as people use them: an ACP process inside the sandbox, a model behind a real server, a model as the user."""

import textwrap

import pytest

from benchflow.testing import Answer, Fault, ModelServer, ToolCall

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("models"), pytest.mark.sandbox]

OFFLINE = "environment: {network_mode: no-network}\n"
ACP_AGENT = textwrap.dedent(
    """
    # The smallest agent that asks: one permission per prompt, then it writes what it was told.
    import json, sys

    def send(**message):
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
        sys.stdout.flush()

    asked = 0
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            send(id=number, result={"protocolVersion": 1, "agentCapabilities": {}})
        elif method == "session/new":
            send(id=number, result={"sessionId": "s"})
        elif method == "session/prompt":
            prompt = number
            asked += 1
            options = [{"optionId": "go", "name": "Go", "kind": "allow_once"},
                       {"optionId": "stop", "name": "Stop", "kind": "reject_once"}]
            call = {"toolCallId": f"call-{asked}", "title": "write the answer", "kind": "edit", "status": "pending"}
            send(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": "tool_call", **call}})
            send(id=f"ask-{asked}", method="session/request_permission",
                 params={"sessionId": "s", "toolCall": call, "options": options})
        elif number is not None and str(number).startswith("ask-"):
            chosen = message["result"]["outcome"].get("optionId")
            open("answer.txt", "w").write("done" if chosen == "go" else "refused")
            said = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"chose {chosen}"}}
            send(method="session/update", params={"sessionId": "s", "update": said})
            send(id=prompt, result={"stopReason": "end_turn"})
    """
)
ASSET = "  assets: [{path: agent, visibility: agent, mount_phase: agent, target: /agent}]\n"
COMMAND = "acp:python3 /agent/agent.py"


def files():
    return {"agent/agent.py": ACP_AGENT}


async def test_an_acp_agent_works_in_the_sandbox(run, make_package, events):
    result = await run(make_package(OFFLINE + "benchflow:\n" + ASSET, files()), COMMAND, make_agent=None)
    assert (result.reward, result.agent.stop_reason, result.error) == (1.0, "end_turn", None)
    kinds = [event["type"] for event in events()]
    assert kinds.count("user_message") == kinds.count("permission") == kinds.count("agent_message") == 1


async def test_its_choices_are_tried_the_other_way_on_forks(run, make_package, events):
    frontmatter = (
        OFFLINE
        + "user: {model: scripted, private_facts: {some_word: x}}\n"
        + "benchflow:\n"
        + ASSET
        + "  nudges: {branchable: true, branch_execution: forked-snapshot, confirmation_policy: human}\n"
    )
    result = await run(make_package(frontmatter, files()), COMMAND, make_agent=None)
    assert result.reward == 0.0
    tree = {node["option"]["id"]: node for node in result.to_dict()["branches"]}
    assert (tree["stop"]["status"], tree["stop"]["option"]["kind"]) == ("taken", "reject_once")
    assert (tree["go"]["status"], tree["go"]["reward"], tree["go"]["option"]["kind"]) == ("scored", 1.0, "allow_once")
    asked = [event for event in events() if event["type"] == "permission"]
    assert [option["kind"] for option in asked[0]["options"]] == ["allow_once", "reject_once"]
    assert (asked[0].get("branch"), asked[1]["branch"]) == (None, tree["go"]["id"])


async def test_an_agent_that_is_not_there_could_not_start(run, make_package):
    result = await run(make_package(OFFLINE), "acp:no-such-agent", make_agent=None)
    assert (result.status, result.error.category, result.error.phase) == ("unscored", "agent", "agent")


async def test_a_model_works_with_tools(run, make_package, events):
    script = [Answer(tool_calls=[ToolCall("bash", {"command": "echo done > answer.txt"})]), "I wrote it."]
    with ModelServer(script) as server:
        machine = {**server.environment}
        result = await run(make_package(OFFLINE), "model:openai/tiny", make_agent=None, machine=machine)
    assert (result.reward, result.error) == (1.0, None)
    assert result.usage["input_tokens"] > 0
    assert "tool_call" in [event["type"] for event in events()]


async def test_a_model_that_cannot_be_reached_is_never_a_reward(run, make_package):
    with ModelServer(Fault(401, "wrong key")) as server:
        result = await run(make_package(OFFLINE), "model:openai/tiny", make_agent=None, machine={**server.environment})
    assert (result.status, result.reward) == ("unscored", None)
    assert result.error.category in ("agent", "infrastructure")


async def test_a_model_plays_the_user_over_a_real_connection(run, make_package, new_script):
    package = make_package(OFFLINE + "user: {model: openai/tiny, persona: A terse manager.}\n")
    script = new_script("echo 'What now?'", "echo done > answer.txt")
    with ModelServer(["Write done.", "DONE"]) as server:
        result = await run(package, script=script, machine={**server.environment})
        assert "A terse manager." in server.requests[0].prompt
    assert (result.reward, [text for _, text in script.prompts][1]) == (1.0, "Write done.")
