"""The model loop in a real sandbox, against a model server over real HTTP."""

import anyio
import pytest

from benchflow.agents import AgentLimits, create_agent
from benchflow.agents.model.model_agent import MALFORMED_IN_A_ROW
from benchflow.agents.model.tools import MalformedCall, parse_arguments
from benchflow.errors import AgentFailure, InfrastructureFailure, UsageError
from benchflow.models import ToolCall as Called
from benchflow.testing import Answer, Fault, ModelServer, Silence, ToolCall, Usage

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("models")]  # the client loads for seconds


def calls(*pairs, text=None, **fields):
    return Answer(text, tool_calls=[ToolCall(name, arguments) for name, arguments in pairs], **fields)


def bash(command, **fields):
    return calls(("bash", {"command": command}), **fields)


@pytest.fixture
def asked(opened, context):
    """Prompts a model that answers by script; gives the results and the server's requests."""

    async def run(script, *prompts, model="openai/m", timeout=60.0, **changes):
        with ModelServer(script) as server:
            agent = create_agent(f"model:{model}", environ=server.environment)
            results = await opened(agent, *(prompts or ("Do it.",)), timeout=timeout, **{"env": {}, **changes})
            return results, server.requests

    return run


def tool_answers(request):
    return [message["content"] for message in request.messages if message["role"] == "tool"]


async def test_the_tools_work_in_the_sandbox_as_the_agent(asked, inside, recorder):
    script = [
        bash("id -un; pwd; echo oops >&2; exit 3", text="Looking."),
        calls(
            ("write_file", {"path": "sub/a.txt", "content": "one\ntwo\nthree\n"}),
            ("edit_file", {"path": "/app/sub/a.txt", "old": "two", "new": "2"}),
            ("read_file", {"path": "sub/a.txt", "line": 2, "limit": 1}),
        ),
        "All done.",
    ]
    [result], requests = await asked(script)
    assert (result.stop_reason, result.text, result.timed_out) == ("end_turn", "All done.", False)
    assert result.usage["steps"] == 3
    assert result.usage["tool_calls"] == 4
    assert result.usage["input_tokens"] > 0
    assert tool_answers(requests[2]) == [
        "agent\n/app\noops\n[exit code 3]",
        "Wrote sub/a.txt.",
        "Edited /app/sub/a.txt.",
        "2\n",
    ]
    assert await inside("cat /app/sub/a.txt") == "one\n2\nthree\n"
    kinds = [event["type"] for event in recorder.events]
    assert kinds[:5] == ["agent_started", "agent_message", "usage", "tool_call", "tool_result"]
    assert recorder.of("tool_call")[0]["input"] == {"command": "id -un; pwd; echo oops >&2; exit 3"}
    assert [event["status"] for event in recorder.of("tool_result")] == ["failed", *["completed"] * 3]


async def test_a_conversation_goes_on_from_prompt_to_prompt(asked):
    results, requests = await asked(["First.", "Second."], "one", "two")
    assert [result.text for result in results] == ["First.", "Second."]
    said = [message["content"] for message in requests[1].messages if message["role"] != "system"]
    assert said == ["one", "First.", "two"]
    assert results[1].usage["steps"] == 1


async def test_malformed_calls_are_answered_to_the_model(asked):
    script = [
        calls(("bash", "{not json"), ("rm_rf", {}), ("bash", {}), ("bash", {"command": 5}), ("bash", "[1]")),
        calls(("bash", {"command": "true", "x": 1}), ("bash", {"command": "a\0b"})),
        calls(("read_file", {"path": "missing"}), ("edit_file", {"path": "missing", "old": "a", "new": "b"})),
        "I give up.",
    ]
    [result], requests = await asked(script)
    assert result.stop_reason == "end_turn"
    answers = tool_answers(requests[3])
    assert "not valid JSON" in answers[0]
    assert answers[1] == "error: Unknown tool 'rm_rf'. Available tools: bash, read_file, write_file, edit_file."
    assert answers[2] == "error: The argument 'command' of bash is missing."
    assert answers[3] == "error: The argument 'command' of bash must be of type string."
    assert answers[4] == "error: The arguments of bash must be a JSON object."
    assert answers[5] == "error: bash has no argument 'x'. Its arguments are: command, timeout_sec."
    assert "NUL" in answers[6]
    assert answers[7:] == ["error: '/app/missing' does not exist."] * 2


@pytest.mark.parametrize("text", ["[" * 100_000, "nul", '{"a": 1} x', "5", '"x"'])
def test_arguments_that_are_no_mapping_are_a_sentence(text):
    with pytest.raises(MalformedCall, match="arguments of bash"):
        parse_arguments(Called("1", "bash", text))


async def test_a_model_that_never_calls_as_it_should_is_given_up(asked, recorder):
    [result], requests = await asked(calls(("bash", "{")))
    assert result.stop_reason == "refusal"
    assert len(requests) == MALFORMED_IN_A_ROW
    assert recorder.of("error")[0]["code"] == "malformed-calls"


@pytest.mark.parametrize(
    ("limits", "stop", "steps"),
    [
        (AgentLimits(max_steps=3), "max_steps", 3),
        (AgentLimits(max_tokens=250), "max_tokens", 3),
        (AgentLimits(max_cost_usd=0.0008), "max_cost", 3),
    ],
)
async def test_limits_end_a_turn(asked, limits, stop, steps):
    [result], requests = await asked(bash("true", usage=Usage(90, 10)), model="gpt-4o", limits=limits)
    assert (result.stop_reason, result.usage["steps"], len(requests)) == (stop, steps, steps)


async def test_a_cost_limit_for_a_model_without_a_price_is_refused(asked):
    with pytest.raises(AgentFailure, match="price of the model 'openai/m' is unknown"):
        await asked("hello", limits=AgentLimits(max_cost_usd=1.0))


async def test_time_that_is_over_ends_the_tool_that_runs(asked, recorder, inside):
    [result], _ = await asked(bash("sleep 1000"), timeout=4.0)
    assert (result.stop_reason, result.timed_out) == ("timeout", True)
    assert recorder.of("agent_timeout")
    assert "sleep 1000" not in await inside("ps ax -o args")


async def test_time_that_is_over_ends_the_wait_for_the_model(asked):
    results, _ = await asked([Silence(30), "Back again."], "one", timeout=1.0)
    assert results[0].timed_out


async def test_a_conversation_that_is_too_long_is_shortened(asked):
    overflow = Fault(400, "maximum context length is 100 tokens", code="context_length_exceeded")
    long = "head -c 5000 /dev/zero | tr '\\0' x"
    [result], requests = await asked([bash(long), bash(long), overflow, overflow, overflow, "Done."])
    assert result.text == "Done."
    assert [len(answer) > 1000 for answer in tool_answers(requests[2])] == [True, True]
    assert [len(answer) > 1000 for answer in tool_answers(requests[3])] == [False, True]
    assert tool_answers(requests[4]) == ["[removed to save space]"] * 2
    assert len(tool_answers(requests[5])) == 1


async def test_a_task_that_is_too_long_for_the_model_ends_the_turn(asked, recorder):
    [result], _ = await asked(Fault(400, "maximum context length is 1 token", code="context_length_exceeded"))
    assert result.stop_reason == "max_tokens"
    assert recorder.of("error")[0]["code"] == "context-overflow"


async def test_an_answer_that_was_cut_off_goes_on(asked):
    [result], requests = await asked([Answer("I was ab", finish_reason="length"), "Done."])
    assert result.text == "Done."
    assert "cut off" in requests[1].messages[-1]["content"]


async def test_a_filtered_answer_is_a_refusal(asked):
    [result], _ = await asked([Answer("", finish_reason="content_filter")])
    assert result.stop_reason == "refusal"


async def test_forbidden_tools_are_not_on_offer(asked):
    _, requests = await asked(["Done."], forbidden_tools=frozenset({"Bash", "web_search"}))
    assert list(requests[0].tools) == ["read_file", "write_file", "edit_file"]


async def test_permission_is_asked_for_and_doubt_is_a_refusal(asked, recorder, inside):
    async def ask(request):
        assert [option.kind for option in request.options] == ["allow_once", "reject_once"]
        if "fine" in request.title:
            return "allow"
        raise RuntimeError("nobody here")

    _, requests = await asked([bash("touch fine"), bash("touch bad"), "Done."], ask=ask)
    assert await inside("ls /app") == "fine\n"
    assert tool_answers(requests[2]) == ["[exit code 0]", "error: this was not permitted."]
    assert [event["granted"] for event in recorder.of("permission")] == [True, False]


async def test_output_for_the_model_is_shortened(asked):
    _, requests = await asked([bash("head -c 200000 /dev/zero | tr '\\0' x"), "Done."])
    [answer] = tool_answers(requests[1])
    assert len(answer) < 31_000
    assert "omitted" in answer


async def test_skills_are_pointed_out_and_effort_is_passed_on(asked):
    _, requests = await asked(["Done."], skills_dir="/skills", model="o3-mini", reasoning_effort="high")
    assert "/skills" in requests[0].messages[0]["content"]
    assert requests[0].body["reasoning_effort"] == "high"


@pytest.mark.parametrize(
    ("trouble", "kind", "code"),
    [
        (Fault(401, "bad key"), AgentFailure, "key-refused"),
        (Fault(404, "gone", code="model_not_found"), AgentFailure, "model-unknown"),
    ],
)
async def test_a_model_that_is_wrongly_set_up_is_the_agent_s_failure(asked, trouble, kind, code):
    with pytest.raises(kind) as caught:
        await asked(trouble)
    assert caught.value.code == code


async def test_a_model_that_cannot_be_reached_is_the_machine_s_failure(opened, monkeypatch):
    monkeypatch.setattr(anyio, "sleep", lambda delay: anyio.lowlevel.checkpoint())
    agent = create_agent("model:openai/m", environ={"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "k"})
    with pytest.raises(InfrastructureFailure) as caught:
        await opened(agent, "Do it.", env={})
    assert (caught.value.code, caught.value.category) == ("model-unreachable", "infrastructure")


async def test_a_missing_key_is_one_sentence(opened, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(AgentFailure) as caught:
        await opened(create_agent("model:gpt-4o", environ={}), "Do it.", env={})
    assert str(caught.value) == "The model 'gpt-4o' needs the variable OPENAI_API_KEY, which is not set."
    assert (caught.value.code, caught.value.category) == ("key-missing", "agent")


async def test_tool_servers_are_refused(opened):
    with pytest.raises(AgentFailure, match="cannot use tool servers"):
        await opened(create_agent("model:gpt-4o"), "", mcp_servers=({"name": "x"},))


def test_a_model_must_be_named_once():
    with pytest.raises(UsageError, match="needs a model"):
        create_agent("model")
    with pytest.raises(UsageError, match="remove --model b"):
        create_agent("model:a", "b")
    assert create_agent("model", "a").model == create_agent("model:a", "a").model == "a"


def test_keys_are_named_so_that_they_can_be_hidden():
    agent = create_agent("model:gpt-4o", environ={"OPENAI_API_KEY": "k", "HOME": "/", "AWS_SECRET_ACCESS_KEY": "s"})
    assert agent.variables() == ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY")
