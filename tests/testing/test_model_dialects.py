"""The dialects of the model server, over real HTTP: the same replies, each in the form of its provider."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from benchflow.testing import (
    Answer,
    Disconnect,
    Fault,
    Malformed,
    ModelServer,
    Silence,
    Token,
    ToolCall,
    Usage,
)

SAID = {"role": "user", "content": "two words"}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [SAID]},
    "responses": {"model": "m", "input": "two words"},
    "messages": {"model": "m", "max_tokens": 100, "messages": [SAID]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "two words"}]}]},
}
KEYS = {
    "chat": {"Authorization": "Bearer right"},
    "responses": {"Authorization": "Bearer right"},
    "messages": {"x-api-key": "right", "anthropic-version": "2023-06-01"},
    "gemini": {"x-goog-api-key": "right"},
}
TEXT = "a long answer — with more than one piece"
CALL = Answer("I look.", [ToolCall("bash", {"command": "ls -la /somewhere"})], usage=Usage(9, 5, cached_tokens=4))
THOUGHT = Answer("yes", reasoning="let me think about it")
DIALECTS = pytest.mark.parametrize("dialect", list(BODIES))


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30, verify=False) as client:  # for plain HTTP no certificates are loaded
        yield client


def path(dialect: str, *, stream: bool = False, sse: bool = True) -> str:
    if dialect == "gemini":
        method = "streamGenerateContent" + ("?alt=sse" if sse else "") if stream else "generateContent"
        return f"/v1beta/models/m:{method}"
    return {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}[dialect]


def body(dialect: str, *, stream: bool = False, **extra: Any) -> dict[str, Any]:
    asked = {**BODIES[dialect], **extra}
    return asked if dialect == "gemini" or not stream else {**asked, "stream": True}


def ask(client: httpx.Client, server: ModelServer, dialect: str, *, stream: bool = False, **extra: Any) -> Any:
    url = f"{server.root}{path(dialect, stream=stream)}"
    return client.post(url, json=body(dialect, stream=stream, **extra), headers=KEYS[dialect])


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in response.text.replace("\r\n", "\n").split("\n\n") if block]
    found = []
    for block in blocks:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        if fields["data"] != "[DONE]":
            found.append(json.loads(fields["data"]))
            assert fields.get("event") in (None, found[-1].get("type"))
    return found


def whole(dialect: str, said: dict[str, Any]) -> tuple[str | None, list[tuple[str, Any]], str]:
    """The text, the tool calls and the reason of an answer that is not streamed."""
    if dialect == "chat":
        choice = said["choices"][0]
        calls = [call["function"] for call in choice["message"].get("tool_calls", ())]
        found = [(call["name"], json.loads(call["arguments"])) for call in calls]
        return choice["message"]["content"], found, choice["finish_reason"]
    if dialect == "responses":
        texts = [item["content"][0]["text"] for item in said["output"] if item["type"] == "message"]
        calls = [item for item in said["output"] if item["type"] == "function_call"]
        return "".join(texts), [(call["name"], json.loads(call["arguments"])) for call in calls], said["status"]
    if dialect == "messages":
        calls = [block for block in said["content"] if block["type"] == "tool_use"]
        texts = [block["text"] for block in said["content"] if block["type"] == "text"]
        return "".join(texts), [(call["name"], call["input"]) for call in calls], said["stop_reason"]
    (candidate,) = said["candidates"]
    parts = candidate["content"]["parts"]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    texts = [part["text"] for part in parts if "text" in part and not part.get("thought")]
    return "".join(texts), [(call["name"], call["args"]) for call in calls], candidate["finishReason"]


def streamed(dialect: str, found: list[dict[str, Any]]) -> tuple[str, dict[int, str], int]:
    """The text, the arguments of tool calls, and the number of pieces of text."""
    texts: list[str] = []
    arguments: dict[int, str] = {}
    for event in found:
        if dialect == "chat":
            delta = event["choices"][0]["delta"] if event["choices"] else {}
            texts += [delta["content"]] if delta.get("content") else []
            for call in delta.get("tool_calls", ()):
                arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
        elif dialect == "gemini":
            for part in event["candidates"][0]["content"]["parts"]:
                texts += [part["text"]] if part.get("text") and not part.get("thought") else []
                if "functionCall" in part:
                    arguments[len(arguments)] = json.dumps(part["functionCall"]["args"])
        elif event["type"] == "response.output_text.delta":
            texts.append(event["delta"])
        elif event["type"] == "response.function_call_arguments.delta":
            arguments[event["output_index"]] = arguments.get(event["output_index"], "") + event["delta"]
        elif event["type"] == "content_block_delta":
            delta, index = event["delta"], event["index"]
            texts += [delta["text"]] if delta["type"] == "text_delta" else []
            if delta["type"] == "input_json_delta":
                arguments[index] = arguments.get(index, "") + delta["partial_json"]
    return "".join(texts), arguments, len(texts)


@DIALECTS
def test_one_script_is_answered_in_each_dialect_whole_and_in_pieces(client: httpx.Client, dialect: str) -> None:
    with ModelServer([CALL, TEXT, CALL, TEXT], api_key="right") as server:
        called = whole(dialect, ask(client, server, dialect).json())
        said = whole(dialect, ask(client, server, dialect).json())
        call_events = events(ask(client, server, dialect, stream=True))
        text_events = events(ask(client, server, dialect, stream=True))
        requests = server.requests
    reasons = {
        "chat": ("tool_calls", "stop"),
        "responses": ("completed", "completed"),
        "messages": ("tool_use", "end_turn"),
        "gemini": ("STOP", "STOP"),
    }
    assert called == ("I look.", [("bash", {"command": "ls -la /somewhere"})], reasons[dialect][0])
    assert said == (TEXT, [], reasons[dialect][1])
    text, arguments, _ = streamed(dialect, call_events)
    assert text == "I look."
    assert [json.loads(value) for value in arguments.values()] == [{"command": "ls -la /somewhere"}]
    text, arguments, pieces = streamed(dialect, text_events)
    assert (text, arguments) == (TEXT, {})
    assert pieces > 2
    assert [request.stream for request in requests] == [False, False, True, True]
    assert {(request.dialect, request.model, request.prompt) for request in requests} == {(dialect, "m", "two words")}


@DIALECTS
def test_usage_is_counted_as_the_provider_counts(client: httpx.Client, dialect: str) -> None:
    counted = Answer("x", usage=Usage(9, 5, cached_tokens=4, reasoning_tokens=2))
    extra = {"stream_options": {"include_usage": True}} if dialect == "chat" else {}
    with ModelServer(counted) as server:
        body = ask(client, server, dialect).json()
        last = events(ask(client, server, dialect, stream=True, **extra))
    if dialect == "chat":
        assert body["usage"] == last[-1]["usage"]
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
        assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    elif dialect == "responses":
        assert body["usage"] == last[-1]["response"]["usage"]
        assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (9, 5)
    elif dialect == "messages":
        assert body["usage"] == last[-2]["usage"]
        assert (body["usage"]["input_tokens"], body["usage"]["cache_read_input_tokens"]) == (5, 4)
        assert last[0]["message"]["usage"]["input_tokens"] == 5
    else:
        assert body["usageMetadata"] == last[-1]["usageMetadata"]
        counts = {"promptTokenCount": 9, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 14}
        assert body["usageMetadata"] == {**counts, "cachedContentTokenCount": 4}


@DIALECTS
def test_a_conversation_with_tools_is_read(client: httpx.Client, dialect: str) -> None:
    result = "file.txt"
    later: dict[str, dict[str, Any]] = {
        "chat": {
            "tools": [
                {"type": "function", "function": {"name": "bash"}},
                {"type": "custom", "custom": {"name": "web"}},
            ],
            "messages": [SAID, {"role": "tool", "tool_call_id": "c", "content": result}],
        },
        "responses": {
            "tools": [{"type": "function", "name": "bash"}, {"type": "web"}],
            "input": [SAID, {"type": "function_call_output", "call_id": "c", "output": result}],
        },
        "messages": {
            "tools": [{"name": "bash", "input_schema": {}}, {"type": "web_20250305", "name": "web"}],
            "messages": [
                SAID,
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": result}]},
            ],
        },
        "gemini": {
            "tools": [{"functionDeclarations": [{"name": "bash"}]}, {"web": {}}],
            "contents": [
                *BODIES["gemini"]["contents"],
                {"role": "user", "parts": [{"functionResponse": {"name": "bash", "response": {"output": result}}}]},
            ],
        },
    }
    with ModelServer("ok") as server:
        assert ask(client, server, dialect, **later[dialect]).status_code == 200
        (request,) = server.requests
    assert request.tools == ["bash", "web"]
    assert request.prompt == "two words"
    assert result in request.tool_results[0]
    assert len(request.messages) == 2


@DIALECTS
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_the_form_of_the_provider(client: httpx.Client, dialect: str, stream: bool) -> None:
    with ModelServer([Fault(429, "slow down", retry_after_sec=1.5), Fault(503), "recovered"]) as server:
        limited, down, fine = (ask(client, server, dialect, stream=stream) for _ in range(3))
    assert (limited.status_code, down.status_code, fine.status_code) == (429, 503, 200)
    error = limited.json()["error"]
    assert error["message"] == "slow down"
    if dialect == "gemini":
        assert (error["code"], error["status"]) == (429, "RESOURCE_EXHAUSTED")
        assert error["details"][0]["retryDelay"] == "1.5s"
        assert "retry-after" not in limited.headers
    else:
        assert error["type"] == "rate_limit_error"
        assert limited.headers["retry-after"] == "1.5"
    if dialect == "messages":
        assert limited.json()["type"] == "error"
        assert down.json()["error"]["type"] == "api_error"


@DIALECTS
def test_keys_and_models_are_refused_in_the_form_of_the_provider(client: httpx.Client, dialect: str) -> None:
    with ModelServer(["yes"], api_key="right", models=["m"]) as server:
        url = f"{server.root}{path(dialect)}"
        wrong = client.post(url, json=body(dialect))
        unknown = {"model": "other"} if dialect != "gemini" else {}
        refused = client.post(
            url.replace("models/m:", "models/other:"), json=body(dialect, **unknown), headers=KEYS[dialect]
        )
        assert (wrong.status_code, refused.status_code) == (401, 404)
        assert ("status" if dialect == "gemini" else "type") in wrong.json()["error"]
        assert ask(client, server, dialect).status_code == 200
        if dialect == "gemini":
            assert client.post(f"{url}?key=right", json=body(dialect)).json()["error"]["code"] == 400  # used up
        assert [request.authorized for request in server.requests][:3] == [False, True, True]


@DIALECTS
@pytest.mark.parametrize("reply", [Disconnect(after=2), Silence(0.01)])
def test_connections_break_in_each_dialect(client: httpx.Client, dialect: str, reply: Disconnect | Silence) -> None:
    with ModelServer(reply) as server, pytest.raises(httpx.RemoteProtocolError):
        ask(client, server, dialect, stream=True)


@DIALECTS
def test_an_error_comes_in_the_middle_of_a_stream(client: httpx.Client, dialect: str) -> None:
    with ModelServer(Fault(529, "overloaded", after=3)) as server:
        response = ask(client, server, dialect, stream=True)
    found = events(response)
    assert (response.status_code, len(found)) == (200, 4)
    if dialect == "responses":
        assert found[-1]["type"] == "response.failed"
        assert found[-1]["response"]["error"] == {"code": "server_error", "message": "overloaded"}
        assert found[-1]["sequence_number"] == 3
    else:
        assert found[-1]["error"]["message"] == "overloaded"
    if dialect == "messages":
        assert found[-1]["error"]["type"] == "overloaded_error"


@DIALECTS
def test_reasoning_comes_before_the_answer(client: httpx.Client, dialect: str) -> None:
    with ModelServer(THOUGHT) as server:
        said = whole(dialect, ask(client, server, dialect).json())[0]
        plain = ask(client, server, dialect).text
        text, _, _ = streamed(dialect, events(ask(client, server, dialect, stream=True)))
    assert said == text == "yes"
    assert plain.index("let me think") < plain.index("yes") or dialect == "chat"


@DIALECTS
def test_a_refusal_is_an_answer(client: httpx.Client, dialect: str) -> None:
    with ModelServer(Answer("I will not.", refused=True)) as server:
        said = ask(client, server, dialect).json()
        found = events(ask(client, server, dialect, stream=True))
    assert "I will not." in json.dumps(said)
    if dialect == "chat":
        assert said["choices"][0]["message"] == {"role": "assistant", "content": None, "refusal": "I will not."}
    elif dialect == "responses":
        assert said["output"][0]["content"] == [{"type": "refusal", "refusal": "I will not."}]
        assert "response.refusal.done" in [event["type"] for event in found]
    elif dialect == "messages":
        assert said["stop_reason"] == found[-2]["delta"]["stop_reason"] == "refusal"
    else:
        assert said["candidates"][0]["finishReason"] == found[-1]["candidates"][0]["finishReason"] == "SAFETY"


@pytest.mark.parametrize("stream", [False, True])
def test_chat_has_token_ids_and_log_probabilities(client: httpx.Client, stream: bool) -> None:
    known = [Token("yes", 11, -0.25), Token(" sir", 12, -1.5)]
    with ModelServer(Answer("yes sir", tokens=known)) as server:
        response = ask(client, server, "chat", stream=stream, logprobs=True, return_token_ids=True)
    bodies = events(response) if stream else [response.json()]
    choices = [choice for body in bodies for choice in body["choices"]]
    logprobs = [entry for choice in choices for entry in (choice.get("logprobs") or {"content": ()})["content"]]
    assert [(entry["token"], entry["logprob"]) for entry in logprobs] == [("yes", -0.25), (" sir", -1.5)]
    assert logprobs[0]["bytes"] == [121, 101, 115]
    assert [number for choice in choices for number in choice.get("token_ids", ())] == [11, 12]
    assert len(bodies[0]["prompt_token_ids"]) == 2
    assert not any("prompt_token_ids" in body for body in bodies[1:])


@pytest.mark.parametrize("stream", [False, True])
def test_responses_and_gemini_have_log_probabilities(client: httpx.Client, stream: bool) -> None:
    with ModelServer("two tokens") as server:
        response = ask(client, server, "responses", stream=stream, include=["message.output_text.logprobs"])
        spoken = ask(client, server, "gemini", stream=stream, generationConfig={"responseLogprobs": True})
    if stream:
        found = [entry for event in events(response) for entry in event.get("logprobs", ()) if "delta" in event]
        candidates = [event["candidates"][0] for event in events(spoken)]
    else:
        found = response.json()["output"][0]["content"][0]["logprobs"]
        candidates = spoken.json()["candidates"]
    assert [entry["token"] for entry in found] == ["two", " tokens"]
    chosen = [entry for one in candidates for entry in one.get("logprobsResult", {}).get("chosenCandidates", ())]
    assert [entry["token"] for entry in chosen] == ["two", " tokens"]
    assert all(entry["logProbability"] < 0 and entry["tokenId"] >= 0 for entry in chosen)


def test_the_array_form_of_gemini_is_one_document(client: httpx.Client) -> None:
    with ModelServer([TEXT, Fault(429, "slow"), Fault(500, "broken", after=2)]) as server:
        url = f"{server.root}{path('gemini', stream=True, sse=False)}"
        said, limited, broken = (client.post(url, json=BODIES["gemini"]) for _ in range(3))
    assert said.headers["content-type"].startswith("application/json")
    assert streamed("gemini", said.json())[0] == TEXT
    assert limited.status_code == 429
    assert limited.json()[0]["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert (broken.status_code, len(broken.json()), broken.json()[-1]["error"]["message"]) == (200, 3, "broken")


def test_tokens_are_counted_without_using_up_a_reply(client: httpx.Client) -> None:
    with ModelServer(["one"], api_key="right") as server:
        for dialect, where, key in (
            ("messages", "/v1/messages/count_tokens", "input_tokens"),
            ("responses", "/v1/responses/input_tokens", "input_tokens"),
            ("gemini", "/v1beta/models/m:countTokens", "totalTokens"),
        ):
            response = client.post(f"{server.root}{where}", json=BODIES[dialect], headers=KEYS[dialect])
            assert response.json()[key] == 2
        nested = {"generateContentRequest": BODIES["gemini"]}
        url = f"{server.root}/v1beta/models/m:countTokens"
        assert client.post(url, json=nested, headers=KEYS["gemini"]).json()["totalTokens"] == 2
        assert client.post(url, json=nested).status_code == 401
        assert [request.dialect for request in server.counts] == ["messages", "responses", *["gemini"] * 3]
        assert (server.requests, server.remaining) == ((), 1)


def test_models_are_listed_in_each_form(client: httpx.Client) -> None:
    with ModelServer("x", models=["a", "b"]) as server:
        anthropic = {"anthropic-version": "2023-06-01"}
        assert client.get(f"{server.root}/v1/models", headers=anthropic).json()["last_id"] == "b"
        assert client.get(f"{server.root}/v1/models/a", headers=anthropic).json()["type"] == "model"
        listed = client.get(f"{server.root}/v1beta/models").json()["models"]
        assert [entry["name"] for entry in listed] == ["models/a", "models/b"]
        assert client.get(f"{server.root}/v1beta/models/b").json()["name"] == "models/b"
        missing = client.get(f"{server.root}/v1beta/models/c")
        assert (missing.status_code, missing.json()["error"]["status"]) == (404, "NOT_FOUND")


@DIALECTS
@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"model": 1, "contents": 1, "messages": 1, "input": 1}'])
def test_a_body_of_another_form_gets_the_error_of_its_dialect(
    client: httpx.Client, dialect: str, content: bytes
) -> None:
    with ModelServer("x") as server:
        response = client.post(f"{server.root}{path(dialect)}", content=content)
        assert response.status_code == 400
        assert response.json()["error"]["message"]
        assert server.requests == ()


def test_bodies_may_come_in_chunks_or_compressed(client: httpx.Client) -> None:
    import gzip

    data = json.dumps(BODIES["messages"]).encode()
    with ModelServer("x") as server:
        url = f"{server.root}/v1/messages?beta=true"
        assert client.post(url, content=iter([data[:10], data[10:]])).status_code == 200
        packed = client.post(url, content=gzip.compress(data), headers={"Content-Encoding": "gzip"})
        assert packed.status_code == 200
        broken = client.post(url, content=data, headers={"Content-Encoding": "gzip"})
        assert broken.status_code == 400
        assert {json.dumps(request.body) for request in server.requests} == {data.decode()}


def test_pieces_and_pauses_can_be_chosen(client: httpx.Client) -> None:
    with ModelServer([Answer("x" * 100_000, piece=100_000, pause_sec=0.001), Malformed(b"data: {\n\n")]) as server:
        assert streamed("messages", events(ask(client, server, "messages", stream=True)))[2] == 1
        assert ask(client, server, "messages", stream=True).text == "data: {\n\n"


def test_a_tool_that_takes_any_text_gets_the_arguments_as_they_are(client: httpx.Client) -> None:
    with ModelServer(Answer(tool_calls=[ToolCall("apply_patch", "*** Begin Patch")])) as server:
        tools = [{"type": "custom", "name": "apply_patch"}]
        (item,) = ask(client, server, "responses", tools=tools).json()["output"]
        found = events(ask(client, server, "responses", tools=tools, stream=True))
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin Patch")
    assert "response.custom_tool_call_input.done" in [event["type"] for event in found]


@DIALECTS
def test_the_same_script_gives_the_same_bytes(client: httpx.Client, dialect: str) -> None:
    def said() -> list[bytes]:
        with ModelServer([CALL, THOUGHT, CALL]) as server:
            return [ask(client, server, dialect, stream=stream).content for stream in (False, True, True)]

    assert said() == said()
