"""ACP agents as real processes in a real sandbox: turns, requests, limits, and every way to misbehave."""

import json
import logging

import anyio
import pytest

from benchflow.agents import AgentLimits, create_agent
from benchflow.agents.acp import transport
from benchflow.errors import AgentFailure, UsageError
from benchflow.files.redaction import MARK, Redactor

pytestmark = pytest.mark.anyio
CANCEL_GRACE = "benchflow.agents.acp.acp_session.CANCEL_GRACE_SEC"  # by name, because the SDK loads for a second


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog):
    """The SDK logs what it did not expect; an agent must not be able to make it."""
    yield
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.slow
async def test_the_example_agent_follows_its_instructions(opened, shell_agent, recorder, inside):
    prompt = (
        "think about it\n$ echo hello > made.txt && cat made.txt\nread /app/made.txt\nwrite /app/sub/new.txt some text"
    )
    first, second = await opened(shell_agent, prompt, "$ pwd; id -un; exit 4")
    assert (first.stop_reason, first.text) == ("end_turn", "exit code 0: hello\nhello\n\nI wrote /app/sub/new.txt.\n")
    assert first.usage["tool_calls"] == 1
    assert first.usage["output_tokens"] > 0
    assert second.text == "exit code 4: /app\nagent\n"
    assert (
        await inside("cat /app/sub/new.txt; stat -c %U /app/made.txt /app/sub/new.txt") == "some text" + "agent\n" * 2
    )
    kinds = [event["type"] for event in recorder.events]
    assert kinds == [
        *["agent_started", "agent_thought", "agent_message", "tool_call", "permission", "tool_result", "agent_message"],
        *["tool_call", "permission", "tool_result", "agent_message"],
    ]
    assert recorder.of("tool_call")[0]["input"] == {"command": "echo hello > made.txt && cat made.txt"}
    assert recorder.of("tool_result")[0]["output"] == "hello\n"
    assert [event["status"] for event in recorder.of("tool_result")] == ["completed", "failed"]


@pytest.mark.slow
async def test_the_example_agent_hears_a_refusal_and_a_cancellation(opened, shell_agent, recorder, inside):
    async def refuse(request):
        return "no"

    first, second = await opened(shell_agent, "$ touch made", "wait 1000", ask=refuse, timeout=8)
    assert first.text == "I was not permitted to.\n"
    assert "made" not in await inside("ls /app")
    assert (second.stop_reason, second.timed_out) == ("timeout", True)
    assert recorder.of("agent_timeout")[0]["acknowledged"] is True


async def test_a_turn_tells_its_use_of_tokens_and_its_cost(opened, raw):
    first, second = await opened(raw("costly"), "", "")
    assert first.usage == {
        "tool_calls": 0,
        "input_tokens": 7,
        "output_tokens": 3,
        "cached_tokens": 2,
        "cost_usd": 0.75,
    }
    assert second.usage["cost_usd"] == 0.0


async def test_text_before_the_protocol_is_kept_and_tolerated(opened, raw, tmp_path):
    [result] = await opened(raw("noise"), "")
    assert result.stop_reason == "end_turn"
    assert (tmp_path / "agent" / "stdout.txt").read_text() == "Welcome to the agent!\n[info] starting\n"


async def test_updates_from_the_future_and_without_sense_are_passed_over(opened, raw, recorder):
    [result] = await opened(raw("odd-updates"), "")
    assert result.usage["tool_calls"] == 1
    assert [event["type"] for event in recorder.events] == ["agent_started", "tool_call", "tool_result", "plan"]
    assert recorder.of("tool_result")[0]["output"] == "seen\n[diff of /app/a]"


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("exit", "agent-exited", "exited with code 3 before it replied to initialize: no key found"),
        ("version", "protocol-version", "speaks version 99 of the protocol, not 1"),
        ("not-an-object", "broken-protocol", "replied to initialize with something other than an object"),
        ("auth", "auth-required", "requires authentication: Authentication required"),
        ("flood", "flood", "wrote more than 1 MB outside the protocol"),
        ("long-line", "flood", "sent a line of more than 16 MB"),
    ],
)
async def test_an_agent_that_cannot_start_is_one_sentence(opened, raw, how, code, said, inside):
    with pytest.raises(AgentFailure) as caught:
        await opened(raw(how), "Do it.")
    assert said in str(caught.value)
    assert (caught.value.code, caught.value.category) == (code, "agent")
    assert "raw_agent" not in await inside("ps ax -o args")


async def test_a_command_that_is_not_there_is_one_sentence(opened):
    with pytest.raises(AgentFailure, match="exited with code 127 before it replied to initialize: .*not found"):
        await opened(create_agent("acp:no-such-agent --stdio"), "")


@pytest.mark.parametrize(("how", "code"), [("silent", "start-timeout"), ("only-noise", "broken-protocol")])
async def test_an_agent_that_never_answers_is_given_up(opened, raw, how, code, inside):
    with pytest.raises(AgentFailure, match="did not reply to initialize in time") as caught:
        await opened(raw(how), "", limits=AgentLimits(start_timeout_sec=1.0))
    assert caught.value.code == code
    assert "raw_agent" not in await inside("ps ax -o args")


async def test_an_agent_that_ends_in_its_turn_is_a_result(opened, raw, recorder, tmp_path):
    [result] = await opened(raw("exit-in-turn"), "")
    assert (result.stop_reason, result.exit_code, result.text) == ("exited", 9, "so long")
    assert recorder.of("agent_ended") == [{"type": "agent_ended", "exit_code": 9}]
    assert (tmp_path / "agent" / "stderr.txt").read_text() == "out of memory\n"


async def test_an_agent_that_has_ended_cannot_be_prompted_again(opened, raw):
    with pytest.raises(AgentFailure, match="exited with code 9"):
        await opened(raw("exit-in-turn"), "", "again")


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("broken-in-turn", "broken-protocol", "sent a line that is not JSON"),
        ("no-message", "broken-protocol", "sent JSON that is not a JSON-RPC message"),
        ("close-stdout", "connection-lost", "closed its standard output"),
        ("error", "agent-error", "replied to session/prompt with an error: model overloaded: 529 (-32603)"),
        ("odd-stop", "broken-protocol", "sent an unknown stop reason: 'bored'"),
    ],
)
async def test_a_connection_that_breaks_is_a_failure_of_the_agent(opened, raw, how, code, said, inside):
    with pytest.raises(AgentFailure) as caught:
        await opened(raw(how), "")
    assert said in str(caught.value)
    assert caught.value.code == code
    assert "raw_agent" not in await inside("ps ax -o args")


async def test_a_flood_of_updates_ends_the_agent(opened, raw, monkeypatch):
    monkeypatch.setattr(transport, "MAX_TOTAL", 5 << 20)
    with pytest.raises(AgentFailure, match="sent more than 5 MB of messages"):
        await opened(raw("flood-updates"), "", events=lambda event, **fields: None)


async def test_an_agent_that_asks_without_listening_is_not_heard_any_more(opened, raw, monkeypatch):
    monkeypatch.setattr(CANCEL_GRACE, 0.3)
    [result] = await opened(raw("flood-requests"), "", timeout=1.5)
    assert (result.stop_reason, result.timed_out) == ("timeout", True)


async def test_silence_ends_a_turn_and_cancel_may_be_ignored(opened, raw, recorder, inside, monkeypatch):
    monkeypatch.setattr(CANCEL_GRACE, 0.3)
    [result] = await opened(raw("hang"), "", limits=AgentLimits(idle_timeout_sec=0.5))
    assert (result.stop_reason, result.timed_out, result.text) == ("timeout", True, "I will think about it")
    [event] = recorder.of("agent_timeout")
    assert event["reason"] == "it sent nothing for 0.5 s"
    assert event["acknowledged"] is False
    assert "raw_agent" not in await inside("ps ax -o args")


async def test_a_tool_call_is_written_with_the_input_that_comes_after_its_announcement(opened, raw, recorder):
    [result] = await opened(raw("announced_tools"), "")
    assert result.usage["tool_calls"] == 3
    told = [(event["type"], event.get("tool_call_id")) for event in recorder.events[1:]]
    assert told == [
        *[("tool_call", "a"), ("tool_result", "a"), ("tool_call", "c"), ("permission", "c"), ("tool_result", "c")],
        ("tool_call", "b"),
    ]
    first, third, second = recorder.of("tool_call")
    assert (first["title"], first["status"], first["input"]) == ("bash", "in_progress", {"command": "ls"})
    assert (third["title"], third["input"]) == ("bash", {"command": "rm x"})
    assert (second["status"], second["input"]) == ("pending", {})


async def test_silence_during_a_tool_call_is_not_held_against_the_agent(opened, raw):
    [result] = await opened(raw("hang-in-tool"), "1.5", limits=AgentLimits(idle_timeout_sec=0.4))
    assert result.stop_reason == "end_turn"


async def test_time_that_is_over_ends_everything_the_turn_started(opened, raw, recorder, inside, monkeypatch):
    monkeypatch.setattr(CANCEL_GRACE, 0.3)
    [result] = await opened(raw("children", "hang"), "1000", timeout=1.0)
    assert (result.stop_reason, result.timed_out) == ("timeout", True)
    assert recorder.of("agent_timeout")[0]["timeout_sec"] == 1.0
    assert "sleep 1000" not in await inside("ps ax -o args")


async def test_what_an_agent_started_ends_with_it_unless_it_is_to_live_on(opened, raw, inside):
    await opened(raw("children"), "0")
    assert "sleep 1000" not in await inside("ps ax -o args")
    await opened(raw("children"), "0", keep_processes=True)
    assert "sleep 1000" in await inside("ps ax -o args")


async def test_a_cancelled_turn_leaves_no_process(raw, context, inside):
    agent = raw("children", "hang")
    await agent.start(context)
    with anyio.move_on_after(0.5) as scope:
        await agent.prompt("1000")
    assert scope.cancelled_caught
    await agent.close()
    await agent.close()
    assert "1000" not in await inside("ps ax -o args")


@pytest.mark.parametrize(
    ("how", "limits", "stop"),
    [
        ("many-tools", AgentLimits(max_steps=5), "max_steps"),
        ("costly", AgentLimits(max_cost_usd=0.5), "max_cost"),
        ("costly", AgentLimits(max_tokens=400), "max_tokens"),
    ],
)
async def test_limits_cut_a_turn_off(opened, raw, how, limits, stop, monkeypatch):
    monkeypatch.setattr(CANCEL_GRACE, 0.3)
    [result] = await opened(raw(how), "30", limits=limits)
    assert (result.stop_reason, result.timed_out) == (stop, False)


async def requested(opened, raw, *requests, **changes):
    asked = [{"method": method, "params": params} for method, params in requests]
    [result] = await opened(raw("requests"), json.dumps(asked), **changes)
    return json.loads(result.text)


async def test_files_are_read_and_written_with_the_rights_of_the_agent(opened, raw, inside):
    await inside(
        "echo secret > /etc/hidden; chmod 600 /etc/hidden; printf '1\\n2\\n3\\n' > /app/lines; mkfifo /app/pipe"
    )
    answers = await requested(
        opened,
        raw,
        ("fs/read_text_file", {"path": "/app/lines", "line": 2, "limit": 1}),
        ("fs/read_text_file", {"path": "/etc/hidden"}),
        ("fs/read_text_file", {"path": "/app/missing"}),
        ("fs/read_text_file", {"path": "/app/../etc/passwd"}),
        ("fs/read_text_file", {"path": "lines"}),
        ("fs/read_text_file", {"path": "/app/pipe"}),
        ("fs/read_text_file", {"path": "/dev/zero"}),
        ("fs/read_text_file", {"path": 5}),
        ("fs/write_text_file", {"path": "/etc/mine", "content": "x"}),
        ("fs/write_text_file", {"path": "/app/pipe", "content": "x"}),
        ("fs/write_text_file", {"path": "/app/new/deep", "content": "ö\n"}),
    )
    assert answers[0] == {"content": "2\n"}
    said = [answer["data"]["details"] for answer in answers[1:10]]
    assert said[0] == "'/etc/hidden' is not readable by this user."
    assert said[1] == "'/app/missing' does not exist."
    assert "is refused" in said[2]
    assert "is refused" in said[3]
    assert said[4] == "'/app/pipe' is not a regular file."
    assert said[5] == "'/dev/zero' is not a regular file."
    assert "path" in said[6]
    assert "ermission denied" in said[7]
    assert said[8] == "'/app/pipe' is not a regular file."
    assert answers[10] == {}
    assert await inside("cat /app/new/deep") == "ö\n"


async def test_terminals_run_inside_and_are_counted_and_cleaned_up(opened, raw, inside):
    answers = await requested(
        opened,
        raw,
        (
            "terminal/create",
            {"command": "sh", "args": ["-c", "echo $X; pwd"], "env": [{"name": "X", "value": "y"}], "cwd": "/tmp"},
        ),
        ("terminal/wait_for_exit", {"terminalId": "terminal-1"}),
        ("terminal/output", {"terminalId": "terminal-1"}),
        ("terminal/release", {"terminalId": "terminal-1"}),
        ("terminal/output", {"terminalId": "terminal-1"}),
        ("terminal/create", {"command": "printf äbc; kill -9 $$", "outputByteLimit": 3}),
        ("terminal/create", {"command": "true", "cwd": "relative"}),
        ("terminal/wait_for_exit", {"terminalId": "terminal-2"}),
        ("terminal/output", {"terminalId": "terminal-2"}),
        ("terminal/create", {"command": "sleep 1000"}),
        ("terminal/kill", {"terminalId": "terminal-3"}),
        ("terminal/output", {"terminalId": "terminal-3"}),
        ("terminal/create", {"command": "sleep 1000"}),
        ("elicitation/create", {}),
    )
    assert answers[0] == {"terminalId": "terminal-1"}
    assert answers[1] == {"exitCode": 0}
    assert answers[2] == {"output": "y\n/tmp\n", "truncated": False, "exitStatus": {"exitCode": 0}}
    assert answers[3] == {}
    assert answers[4]["data"]["details"] == "Unknown terminal 'terminal-1'."
    assert "must be an absolute path" in answers[6]["data"]["details"]
    assert answers[8] == {"output": "bc", "truncated": True, "exitStatus": {"exitCode": 137}}
    assert answers[11] == {"output": "", "truncated": False, "exitStatus": {"exitCode": 137}}
    assert answers[13]["code"] == -32601
    assert "sleep 1000" not in await inside("ps ax -o args")


async def test_forbidden_tools_are_refused(opened, raw):
    answers = await requested(
        opened,
        raw,
        ("terminal/create", {"command": "true"}),
        ("fs/write_text_file", {"path": "/app/x", "content": ""}),
        forbidden_tools=frozenset({"Bash", "edit"}),
    )
    assert [answer["data"]["details"] for answer in answers] == [
        "terminal/create is forbidden here.",
        "fs/write_text_file is forbidden here.",
    ]


ASKED = {
    "toolCall": {"toolCallId": "t", "title": "rm -rf build", "kind": "execute"},
    "options": [
        {"optionId": "always", "name": "Always", "kind": "allow_always"},
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ],
}
SELECTED = {"outcome": {"outcome": "selected", "optionId": "no"}}


async def answered(opened, raw, asked=ASKED, **changes):
    [result] = await opened(raw("permission"), json.dumps(asked), **changes)
    return json.loads(result.text)


async def test_without_anyone_to_ask_the_least_that_is_needed_is_allowed(opened, raw, recorder):
    assert await answered(opened, raw) == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    [event] = recorder.of("permission")
    assert event["options"][0] == {"id": "always", "kind": "allow_always", "name": "Always"}
    assert (event["title"], event["chosen"], event["granted"]) == ("rm -rf build", "yes", True)


async def test_a_handler_chooses_by_id(opened, raw):
    seen = []

    async def ask(request):
        seen.append(request)
        return "always"

    assert await answered(opened, raw, ask=ask) == {"outcome": {"outcome": "selected", "optionId": "always"}}
    assert [(option.id, option.kind) for option in seen[0].options][2] == ("no", "reject_once")
    assert seen[0].tool_call["kind"] == "execute"


async def raises(request):
    raise RuntimeError("no person here")


async def refuses(request):
    return None


async def invents(request):
    return "maybe"


@pytest.mark.parametrize("ask", [raises, refuses, invents])
async def test_whatever_a_handler_does_not_clearly_allow_is_refused(opened, raw, ask, recorder):
    assert await answered(opened, raw, ask=ask) == SELECTED
    assert recorder.of("permission")[0]["granted"] is False


async def test_a_refusal_without_an_option_for_it_cancels(opened, raw):
    asked = {**ASKED, "options": ASKED["options"][:2]}
    assert await answered(opened, raw, asked, ask=refuses) == {"outcome": {"outcome": "cancelled"}}


async def test_a_forbidden_tool_gets_no_permission(opened, raw):
    assert await answered(opened, raw, forbidden_tools=frozenset({"execute"})) == SELECTED


async def test_a_permission_request_that_is_none_is_an_error(opened, raw):
    assert (await answered(opened, raw, {"options": "all"}))["code"] == -32602


@pytest.mark.parametrize(
    ("how", "model", "sent"),
    [
        ("config", "large", {"sessionId": "s", "configId": "m", "value": "acme/large"}),
        ("config", "Small", None),
        ("models", "b", {"sessionId": "s", "modelId": "b"}),
        ("models", "a", None),
    ],
)
async def test_a_model_is_chosen_by_the_protocol(opened, raw, how, model, sent, tmp_path):
    await opened(raw(how), "", model=model)
    said = (tmp_path / "agent" / "stderr.txt").read_text()
    assert (json.loads(said) if said else None) == sent


async def test_an_effort_is_chosen_by_the_protocol(opened, raw, tmp_path):
    await opened(raw("config"), "", reasoning_effort="high")
    assert json.loads((tmp_path / "agent" / "stderr.txt").read_text())["configId"] == "e"


@pytest.mark.parametrize(
    ("how", "wish", "code"),
    [
        ("config", {"model": "huge"}, "model-unknown"),
        ("plain", {"model": "huge"}, "model-unsupported"),
        ("plain", {"reasoning_effort": "high"}, "effort-unsupported"),
        (
            "plain",
            {"mcp_servers": ({"name": "x", "transport": "streamable-http", "url": "http://x"},)},
            "mcp-unsupported",
        ),
    ],
)
async def test_a_wish_that_the_agent_cannot_fulfil_stops_the_launch(opened, raw, how, wish, code):
    with pytest.raises(AgentFailure) as caught:
        await opened(raw(how), "", **wish)
    assert caught.value.code == code


async def test_tool_servers_are_handed_to_the_session(opened, raw, tmp_path):
    servers = (
        {"name": "a", "transport": "stdio", "command": "serve", "args": ("--x",), "env": {"K": "v"}},
        {"name": "b", "transport": "streamable-http", "url": "http://b", "headers": {"H": "v"}},
    )
    await opened(raw("mcp"), "", mcp_servers=servers)
    assert json.loads((tmp_path / "agent" / "stderr.txt").read_text()) == [
        {"name": "a", "command": "serve", "args": ["--x"], "env": [{"name": "K", "value": "v"}]},
        {"type": "http", "name": "b", "url": "http://b", "headers": [{"name": "H", "value": "v"}]},
    ]


async def test_secrets_do_not_reach_the_kept_output(opened, raw, tmp_path):
    await opened(raw("config"), "", model="large", redactor=Redactor(["acme/large"]))
    assert json.loads((tmp_path / "agent" / "stderr.txt").read_text())["value"] == MARK


async def test_an_agent_that_is_not_running_cannot_be_prompted(raw):
    with pytest.raises(AgentFailure, match="is not running"):
        await raw().prompt("")


@pytest.mark.parametrize("name", ["acp", "acp:", "acp: "])
def test_a_command_must_be_named(name):
    with pytest.raises(UsageError, match="needs a command"):
        create_agent(name)
