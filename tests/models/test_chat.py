"""Models asked over real HTTP: answers, retries, and a sentence for every way a provider fails."""

import asyncio
import os
import subprocess
import sys

import pytest

from benchflow.models import ChatModel, ModelFailure
from benchflow.testing import Answer, Disconnect, Fault, Malformed, ModelServer, Silence, ToolCall, Usage

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,  # the client loads for seconds
    pytest.mark.xdist_group("models"),
    pytest.mark.usefixtures("dropped_clients"),
]
QUESTION = [{"role": "user", "content": "hello there"}]


def chat(server, **settings):
    return ChatModel(
        "openai/m", server.environment, **{"first_pause_sec": 0.01, "request_timeout_sec": 5.0, **settings}
    )


async def test_an_answer_has_text_tool_calls_and_usage():
    answer = Answer("Let me see.", tool_calls=[ToolCall("bash", {"command": "ls"})], usage=Usage(11, 5))
    with ModelServer([answer]) as server:
        reply = await chat(server).complete(QUESTION, tools=[TOOL], max_output_tokens=50, temperature=0.5)
        [request] = server.requests
    assert reply.text == "Let me see."
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("bash", '{"command": "ls"}')]
    assert (reply.usage["input_tokens"], reply.usage["output_tokens"]) == (11, 5)
    assert "cost_usd" not in reply.usage
    assert reply.message()["tool_calls"][0]["function"]["name"] == "bash"
    assert request.body["tools"] == [TOOL]
    assert (request.body["max_tokens"], request.body["temperature"]) == (50, 0.5)


TOOL = {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object"}}}


async def test_a_known_model_has_a_price():
    with ModelServer(Answer("x", usage=Usage(1000, 1000))) as server:
        reply = await ChatModel("gpt-4o", server.environment).complete(QUESTION)
    assert reply.usage["cost_usd"] > 0


async def test_a_name_without_a_provider_goes_to_the_local_server():
    with ModelServer(["yes"], models=["tiny"]) as server:
        assert (await ChatModel("tiny", server.environment).complete(QUESTION)).text == "yes"


@pytest.mark.parametrize(
    "trouble",
    [
        Fault(429, "slow down", retry_after_sec=0),
        Fault(500, "oh"),
        Fault(503, "busy"),
        Disconnect(),
        Malformed(b"nonsense"),
        Malformed(b'{"choices": []}'),
    ],
)
async def test_transient_trouble_is_tried_again(trouble):
    with ModelServer([trouble, trouble, "at last"]) as server:
        assert (await chat(server).complete(QUESTION)).text == "at last"
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("trouble", "code", "setup"),
    [
        (Fault(401, "bad key"), "key-refused", True),
        (Fault(404, "no such model", code="model_not_found"), "model-unknown", True),
        (Fault(400, "odd parameter"), "request-refused", True),
        (Fault(400, "maximum context length is 10 tokens", code="context_length_exceeded"), "context-overflow", False),
    ],
)
async def test_what_will_not_change_is_said_at_once(trouble, code, setup):
    with ModelServer([trouble, "never"]) as server:
        with pytest.raises(ModelFailure) as caught:
            await chat(server).complete(QUESTION)
        assert server.remaining == 1
    assert (caught.value.code, caught.value.setup, caught.value.transient) == (code, setup, False)
    assert str(caught.value).startswith("The model 'openai/m' ")
    assert ("OPENAI_API_KEY" if code == "key-refused" else trouble.message) in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_trouble_that_stays_is_given_up():
    with ModelServer(Fault(503, "busy")) as server:
        with pytest.raises(ModelFailure, match="could not be reached") as caught:
            await chat(server, retries=2).complete(QUESTION)
        assert len(server.requests) == 3
    assert caught.value.transient


async def test_a_model_that_never_answers_is_given_up():
    with ModelServer(Silence(30)) as server, pytest.raises(ModelFailure, match="did not answer in time") as caught:
        await chat(server, retries=0, request_timeout_sec=0.5).complete(QUESTION)
    assert caught.value.code == "model-timeout"


async def test_a_server_that_is_not_there_cannot_be_reached():
    environ = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "k"}
    with pytest.raises(ModelFailure) as caught:
        await ChatModel("openai/m", environ, retries=1, first_pause_sec=0.01).complete(QUESTION)
    assert caught.value.code == "model-unreachable"


KEYS = [name for name in os.environ if name.endswith(("_API_KEY", "_AUTH_TOKEN"))]


@pytest.mark.parametrize(
    ("model", "code", "said"),
    [
        ("gpt-4o", "key-missing", "needs the variable OPENAI_API_KEY, which is not set"),
        ("anthropic/claude-sonnet-4-5", "key-missing", "needs the variable ANTHROPIC_API_KEY"),
        ("claude-of-the-future", "key-missing", "needs the variable ANTHROPIC_API_KEY"),
        ("google/gemini-of-the-future", "key-missing", "needs the variable GEMINI_API_KEY"),
        ("groq/some-model", "key-missing", "needs the variable GROQ_API_KEY"),
        ("openai", "model-unknown", "write it as PROVIDER/MODEL"),
        ("no-such-model", "model-unknown", "write it as PROVIDER/MODEL, for example openai/no-such-model"),
        ("nobody/model", "model-unknown", "Unknown model"),
    ],
)
async def test_a_missing_key_and_an_unknown_model_are_said_before_anything_is_sent(model, code, said, monkeypatch):
    for variable in KEYS:
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ModelFailure, match=said) as caught:
        await ChatModel(model, {}).check()
    assert (caught.value.code, caught.value.setup) == (code, True)


@pytest.mark.parametrize("model", ["gpt-4o", "claude-of-the-future", "google/gemini-of-the-future"])
def test_a_missing_key_of_a_usual_provider_is_said_before_the_client_is_loaded(model):
    code = (
        "import sys\nfrom benchflow.models import ChatModel, ModelFailure\n"
        "try: ChatModel(sys.argv[1], {}).check_now()\n"
        "except ModelFailure as failure: print(failure.code, 'litellm' in sys.modules)"
    )
    environ = {name: value for name, value in os.environ.items() if name not in KEYS}
    done = subprocess.run([sys.executable, "-c", code, model], env=environ, capture_output=True, text=True)
    assert done.stdout == "key-missing False\n", done.stderr


async def test_a_model_is_called_through_a_socks_proxy(monkeypatch):
    seen = []

    async def refusing(reader, writer):
        seen.append(await reader.readexactly(3))
        writer.close()

    proxy = await asyncio.start_server(refusing, "127.0.0.1", 0)
    monkeypatch.setenv("all_proxy", f"socks5://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    machine = {"OPENAI_BASE_URL": "http://models.test/v1", "OPENAI_API_KEY": "k"}
    with pytest.raises(ModelFailure, match="could not be reached"):
        await ChatModel("openai/m", machine, retries=0).complete(QUESTION)
    proxy.close()
    assert seen == [b"\x05\x01\x00"]


async def test_a_proxy_of_another_kind_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("all_proxy", "socks4://127.0.0.1:1080")
    with (
        ModelServer("x") as server,
        pytest.raises(ModelFailure, match="ALL_PROXY: proxies of the kind socks4") as caught,
    ):
        await chat(server).complete(QUESTION)
    assert (caught.value.code, server.requests) == ("proxy-unsupported", ())
