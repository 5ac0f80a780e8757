"""What goes through the gateway, in every dialect: unchanged to the provider, unchanged back, with the key outside."""

import pytest

from raw_upstream import (
    CHAT_STREAM,
    GEMINI_STREAM,
    KEY,
    MESSAGES_STREAM,
    OPENAI,
    RESPONSES_STREAM,
    Stream,
    answer,
)

pytestmark = pytest.mark.anyio

DIALECTS = {
    "openai-chat": ("/openai/v1/chat/completions", "/v1/chat/completions", {"stream": True}, CHAT_STREAM),
    "openai-responses": ("/openai/v1/responses", "/v1/responses", {"stream": True}, RESPONSES_STREAM),
    "anthropic-messages": (
        "/anthropic/v1/messages?beta=true",
        "/v1/messages?beta=true",
        {"stream": True},
        MESSAGES_STREAM,
    ),
    "gemini-stream": (
        "/gemini/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
        "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
        {},
        GEMINI_STREAM,
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_stream_passes_unchanged_and_its_tokens_are_known(dialect, wired):
    path, target, extra, pieces = DIALECTS[dialect]
    body = {"model": "gpt-4o", "unknown": {"kept": [1, 2.5, None, "é"]}, **extra}
    async with wired(Stream(pieces)) as it:
        reply = await it.post(path, body, headers={"anthropic-beta": "caching", "x-stainless-lang": "js"})
        assert (reply.status_code, reply.content) == (200, b"".join(pieces))
        (asked,) = it.upstream.asked
        assert (asked.target, asked.json) == (target, body)
        assert asked.headers["anthropic-beta"] == "caching"
        shown = [asked.headers.get(name) for name in ("authorization", "x-api-key", "x-goog-api-key")]
        assert [value for value in shown if value] in ([f"Bearer {KEY}"], [KEY])
        assert it.access.token not in str(asked.headers)
        (call,) = it.calls
        assert (call.dialect, call.outcome, call.stream) == (dialect, "answered", True)
        assert (call.usage["input_tokens"], call.usage["output_tokens"]) == (10, 5)
        assert it.parts.answer(call) == b"".join(pieces)
        assert it.parts.request(call) == body
        assert 1 <= call.answer.pieces <= len(pieces)
        assert it.grant.usage["input_tokens"] == 10
        assert it.grant.failure is None


async def test_a_whole_answer_passes_byte_for_byte_with_its_cost(wired):
    raw = (
        b'{ "model": "gpt-4o", "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],\n "usage":'
        b' {"prompt_tokens": 1000, "completion_tokens": 100}}'
    )
    async with wired(answer(raw, x_ratelimit_remaining_requests="7", set_cookie="a=b")) as it:
        reply = await it.post()
        assert reply.content == raw
        assert reply.headers["x-ratelimit-remaining-requests"] == "7"
        assert "set-cookie" not in reply.headers
        (call,) = it.calls
        assert call.usage["cost_usd"] == pytest.approx(1000 * 2.5e-6 + 100 * 1e-5)
        assert call.finish_reason == "stop"
        assert {"first_byte", "total"} <= call.timing.keys()


async def test_counting_tokens_and_listing_models_cost_nothing(wired):
    async with wired(answer({"input_tokens": 12})) as it:
        reply = await it.post("/anthropic/v1/messages/count_tokens", {"model": "claude", "messages": []})
        assert reply.json() == {"input_tokens": 12}
        listed = await it.client.get("/openai/v1/models", headers={"authorization": f"Bearer {it.access.token}"})
        assert listed.status_code == 200
        assert [asked.method for asked in it.upstream.asked] == ["POST", "GET"]
        assert it.grant.usage == {}
        assert [call.outcome for call in it.calls] == ["answered", "answered"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/openai/v1/files"),
        ("POST", "/openai/v1/../v1/chat/completions"),
        ("POST", "/openai/v1/chat/completions/../../files"),
        ("POST", "/openai/v1/chat/%63ompletions"),
        ("DELETE", "/openai/v1/models/gpt-4o"),
        ("POST", "/other/v1/chat/completions"),
        ("GET", "/"),
        ("POST", "/gemini/v1beta/models/a/b:generateContent"),
        ("POST", "/anthropic/v1/chat/completions"),
    ],
)
async def test_nothing_but_the_known_endpoints_is_reached(method, path, wired):
    async with wired(answer(OPENAI)) as it:
        headers = {"authorization": f"Bearer {it.access.token}", "x-api-key": it.access.token}
        reply = await it.client.request(
            method, path.replace("..", "%2e%2e") if "/../" in path else path, headers=headers
        )
        assert reply.status_code == 404
        assert it.upstream.asked == []


async def test_another_host_and_another_account_cannot_be_chosen(wired):
    async with wired(answer(OPENAI)) as it:
        tricks = {
            "host": "evil.example", "openai-organization": "org-x", "openai-project": "p", "x-forwarded-host": "evil",
            "x-http-method-override": "DELETE", "cookie": "a=b", "x-goog-user-project": "other",
            "forwarded": "host=evil",
        }  # fmt: skip
        reply = await it.post(headers=tricks)
        assert reply.status_code == 200
        (asked,) = it.upstream.asked
        assert "evil" not in str(asked.headers)
        assert not {"openai-organization", "openai-project", "cookie", "x-goog-user-project"} & asked.headers.keys()


async def test_a_model_is_mapped_to_another_server(wired, tmp_path):
    async with wired(answer(OPENAI)) as it:
        file = tmp_path / "models.toml"
        file.write_text(
            f'[upstreams.lab]\ndialect = "openai"\nbase_url = "{it.upstream.url}/lab/v1"\nkey = "LAB"\n'
            '[models]\n"gpt-4o" = "lab:qwen"\n"claude" = "lab:qwen"\n'
        )
        environ = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "LAB": "lab-key-123", "BENCHCUBE_MODELS": str(file)}
        async with wired([], environ=environ) as mapped:
            assert (await mapped.post()).status_code == 200
            (asked,) = it.upstream.asked
            assert (asked.target, asked.json["model"]) == ("/lab/v1/chat/completions", "qwen")
            assert asked.headers["authorization"] == "Bearer lab-key-123"
            refused = await mapped.post("/anthropic/v1/messages", {"model": "claude", "messages": []})
            assert refused.status_code == 400
            assert "translat" not in refused.text
            assert "speaks openai" in refused.json()["error"]["message"]


async def test_a_provider_that_repeats_its_key_is_cut_off(wired):
    halves = [b'data: {"x":"', KEY[:9].encode(), KEY[9:].encode(), b'"}\n\n']
    async with wired([Stream(halves), *[answer({"error": {"message": f"bad key {KEY}"}}, 401)] * 9]) as it:
        try:
            passed = (await it.post(body={"model": "m", "stream": True})).content
        except Exception as error:  # noqa: BLE001 - a cut stream
            passed = str(error).encode()
        assert KEY.encode() not in passed
        reply = await it.post()
        assert KEY not in reply.text
        for path in it.folder.path.rglob("*"):
            assert path.is_dir() or KEY.encode() not in path.read_bytes()
