"""The model server, over real HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from benchflow.testing import (
    Answer,
    Disconnect,
    Fault,
    Malformed,
    ModelRequest,
    ModelServer,
    Reply,
    Silence,
    ToolCall,
    Usage,
)

ASK = {"model": "test-model", "messages": [{"role": "user", "content": "two words"}]}
CALL = Answer(tool_calls=[ToolCall("bash", {"command": "ls -la /somewhere"}), ToolCall("stop", "{broken", id="mine")])


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=10, verify=False) as client:  # for plain HTTP no certificates are loaded
        yield client


def ask(client: httpx.Client, server: ModelServer, **extra: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    return client.post(f"{server.url}/chat/completions", json={**ASK, **extra}, headers=headers)


def events(response: httpx.Response) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_list_answers_in_order_and_then_says_that_it_is_used_up(client: httpx.Client) -> None:
    with ModelServer(["one", "two"]) as server:
        said = [ask(client, server).json()["choices"][0]["message"]["content"] for _ in range(2)]
        assert said == ["one", "two"]
        assert server.remaining == 0
        response = ask(client, server)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "script_exhausted"


def test_a_single_reply_answers_every_request(client: httpx.Client) -> None:
    with ModelServer({"verdict": "pass"}) as server:
        for _ in range(3):
            content = ask(client, server).json()["choices"][0]["message"]["content"]
            assert json.loads(content) == {"verdict": "pass"}
        assert server.remaining is None


def test_a_function_sees_the_request(client: httpx.Client) -> None:
    def reply(request: ModelRequest) -> Reply:
        assert request.tools == ["bash"]
        return f"{request.index} {request.model} {request.prompt}"

    tool = {"type": "function", "function": {"name": "bash", "parameters": {}}}
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}]
    with ModelServer(reply) as server:
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]
        response = ask(client, server, messages=messages, tools=[tool])
        assert response.json()["choices"][0]["message"]["content"] == "0 test-model ab"


def test_a_function_that_fails_is_heard_by_the_client(client: httpx.Client) -> None:
    with ModelServer(lambda request: {}[request.model]) as server:
        response = ask(client, server)
        assert response.status_code == 500
        assert "KeyError('test-model')" in response.json()["error"]["message"]


def test_what_is_no_reply_is_heard_by_the_client(client: httpx.Client) -> None:
    with ModelServer(lambda _request: 7) as server:
        assert "not int" in ask(client, server).json()["error"]["message"]


def test_tool_calls_and_usage_are_in_the_answer(client: httpx.Client) -> None:
    with ModelServer([CALL, Answer("ok", usage=Usage(7, 5), finish_reason="length")]) as server:
        first, second = ask(client, server).json(), ask(client, server).json()
    choice = first["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    one, two = choice["message"]["tool_calls"]
    assert (one["id"], one["type"], one["function"]["name"]) == ("call_0_0", "function", "bash")
    assert json.loads(one["function"]["arguments"]) == {"command": "ls -la /somewhere"}
    assert (two["id"], two["function"]["arguments"]) == ("mine", "{broken")
    assert first["usage"]["prompt_tokens"] == 2
    assert second["usage"] == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    assert second["choices"][0]["finish_reason"] == "length"


def test_a_streamed_text_comes_in_pieces(client: httpx.Client) -> None:
    text = "a long answer — with more than one piece"
    with ModelServer(text) as server:
        found = events(ask(client, server, stream=True, stream_options={"include_usage": True}))
    deltas = [event["choices"][0]["delta"] for event in found if event["choices"]]
    assert deltas[0]["role"] == "assistant"
    pieces = [delta["content"] for delta in deltas if delta.get("content")]
    assert len(pieces) > 2
    assert "".join(pieces) == text
    assert found[-2]["choices"][0]["finish_reason"] == "stop"
    assert found[-1]["usage"]["completion_tokens"] == 9
    assert {event["id"] for event in found} == {"chatcmpl-0"}


def test_a_streamed_tool_call_comes_in_pieces(client: httpx.Client) -> None:
    with ModelServer(CALL) as server:
        found = events(ask(client, server, stream=True))
    assert not any("usage" in event for event in found)
    arguments: dict[int, str] = {}
    names: dict[int, str] = {}
    for event in found:
        for call in event["choices"][0]["delta"].get("tool_calls", ()):
            function = call["function"]
            arguments[call["index"]] = arguments.get(call["index"], "") + function["arguments"]
            names.setdefault(call["index"], function.get("name"))
    assert names == {0: "bash", 1: "stop"}
    assert json.loads(arguments[0]) == {"command": "ls -la /somewhere"}
    assert arguments[1] == "{broken"


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_are_answered_alike(client: httpx.Client, stream: bool) -> None:
    with ModelServer("hi") as server:
        response = ask(client, server, n=2, stream=stream)
        bodies = events(response) if stream else [response.json()]
    assert {choice["index"] for body in bodies for choice in body["choices"]} == {0, 1}


def test_a_wrong_key_is_refused_and_recorded_and_uses_up_nothing(client: httpx.Client) -> None:
    with ModelServer(["yes"], api_key="right") as server:
        url = f"{server.url}/chat/completions"
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            response = client.post(url, json=ASK, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert ask(client, server).status_code == 200
        assert [request.authorized for request in server.requests] == [False, False, True]
        assert set(server.environment.values()) == {server.url, server.root, "right"}


def test_the_requests_are_recorded_as_they_came(client: httpx.Client) -> None:
    with ModelServer("ok") as server:
        ask(client, server, temperature=0.5)
    (request,) = server.requests
    assert request.body == {**ASK, "temperature": 0.5}
    assert request.headers["authorization"] == "Bearer test-key"
    assert request.path == "/v1/chat/completions"
    assert not request.stream


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(401), "authentication_error"),
        (Fault(429, "slow down", "rate_limit_exceeded", retry_after_sec=1.5), "rate_limit_error"),
        (Fault(500), "server_error"),
        (Fault(503), "server_error"),
        (Fault(400), "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_faults_look_like_those_of_a_provider(client: httpx.Client, fault: Fault, kind: str, stream: bool) -> None:
    with ModelServer([fault, "recovered"]) as server:
        response = ask(client, server, stream=stream)
        assert response.status_code == fault.status
        error = response.json()["error"]
        assert (error["message"], error["type"], error["code"]) == (fault.message, kind, fault.code)
        assert response.headers.get("retry-after") == ("1.5" if fault.retry_after_sec else None)
        assert ask(client, server).status_code == 200


def test_silence_runs_into_the_clients_timeout(client: httpx.Client) -> None:
    with ModelServer([Silence(), "late"]) as server:
        with pytest.raises(httpx.ReadTimeout):
            client.post(f"{server.url}/chat/completions", json=ASK, timeout=0.1)
        assert ask(client, server).json()["choices"][0]["message"]["content"] == "late"


@pytest.mark.parametrize("reply", [Silence(0.01), Disconnect()])
def test_a_connection_that_ends_without_an_answer(client: httpx.Client, reply: Reply) -> None:
    with ModelServer(reply) as server, pytest.raises(httpx.RemoteProtocolError):
        ask(client, server)


def test_a_stream_can_break_in_the_middle(client: httpx.Client) -> None:
    seen: list[dict] = []

    def listen(url: str) -> None:
        with client.stream("POST", f"{url}/chat/completions", json={**ASK, "stream": True}) as response:
            for line in filter(None, response.iter_lines()):
                seen.append(json.loads(line.removeprefix("data: ")))  # noqa: PERF401 - kept when it breaks

    with ModelServer(Disconnect(after=3)) as server, pytest.raises(httpx.RemoteProtocolError):
        listen(server.url)
    assert len(seen) == 3
    assert not any(event["choices"][0]["finish_reason"] for event in seen)


def test_a_malformed_body_is_sent_as_it_is(client: httpx.Client) -> None:
    with ModelServer(Malformed()) as server:
        response = ask(client, server)
        assert response.status_code == 200
        with pytest.raises(json.JSONDecodeError):
            response.json()


def test_models_are_listed_and_others_are_unknown(client: httpx.Client) -> None:
    with ModelServer("x", models=["a", "b"]) as server:
        assert [entry["id"] for entry in client.get(f"{server.url}/models").json()["data"]] == ["a", "b"]
        assert client.get(f"{server.url}/models/b").json()["id"] == "b"
        assert client.get(f"{server.url}/models/c").status_code == 404
        response = ask(client, server)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
        assert ask(client, server, model="a").status_code == 200


def test_the_base_url_works_with_and_without_its_version(client: httpx.Client) -> None:
    with ModelServer("x") as server:
        response = client.post(f"{server.url.removesuffix('/v1')}/chat/completions?a=1", json=ASK)
        assert response.status_code == 200


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"model": "m"}', b'{"messages": []}', b'{"model": "m", "messages": [1]}', b"\xff"],
)
def test_what_is_no_chat_request_gets_400_and_is_not_recorded(client: httpx.Client, content: bytes) -> None:
    with ModelServer("x") as server:
        response = client.post(f"{server.url}/chat/completions", content=content)
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert server.requests == ()
        assert ask(client, server).status_code == 200


def test_an_unknown_path_is_not_found(client: httpx.Client) -> None:
    with ModelServer("x") as server:
        assert client.post(f"{server.url}/embeddings", json={}).status_code == 404
        assert client.get(server.url).status_code == 404


def test_parallel_requests_each_get_one_reply(client: httpx.Client) -> None:
    replies = [str(number) for number in range(24)]
    with ModelServer(replies) as server, ThreadPoolExecutor(8) as pool:
        bodies = list(pool.map(lambda _: ask(client, server).json(), replies))
    assert sorted(body["choices"][0]["message"]["content"] for body in bodies) == sorted(replies)


def test_stopping_leaves_no_thread_although_clients_hang_on(client: httpx.Client) -> None:
    before = set(threading.enumerate())
    server = ModelServer([Silence(), Answer("late", delay_sec=3600), "kept alive"]).start()
    with ThreadPoolExecutor(2) as pool:
        hanging = [pool.submit(ask, client, server) for _ in range(2)]
        while len(server.requests) < 2:
            time.sleep(0.005)
        with httpx.Client() as idle:
            assert ask(idle, server).status_code == 200
            server.stop()
        for request in hanging:
            with pytest.raises(httpx.HTTPError):
                request.result(timeout=10)
    server.stop()
    assert {thread for thread in threading.enumerate() if thread.name == "model-server"} <= before
    assert not [thread for thread in threading.enumerate() if "process_request" in thread.name]
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.url


def test_a_server_runs_once_at_a_time_and_can_start_again(client: httpx.Client) -> None:
    server = ModelServer("x")
    with server:
        with pytest.raises(RuntimeError, match="already"):
            server.start()
        assert ask(client, server).status_code == 200
    with server:
        assert ask(client, server).status_code == 200
    assert len(server.requests) == 2
