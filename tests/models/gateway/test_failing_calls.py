"""What a provider does wrong: tried again as it asks, never after something was passed on, and told apart."""

import asyncio
import time

import httpx
import pytest

from benchflow.models.gateway import Patience
from raw_upstream import CHAT_STREAM, GEMINI_STREAM, MESSAGES_STREAM, OPENAI, RESPONSES_STREAM, Stream, answer

pytestmark = pytest.mark.anyio

OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
STREAMED = {"model": "gpt-4o", "stream": True, "messages": []}


async def test_a_rate_limit_is_waited_for_as_the_provider_asks(wired):
    slow = answer({"error": {"message": "slow down"}}, 429, retry_after="0.3")
    async with wired([slow, answer(OPENAI)]) as it:
        began = time.monotonic()
        assert (await it.post()).json() == OPENAI
        assert time.monotonic() - began >= 0.3
        (call,) = it.calls
        assert [(retry.code, retry.status, retry.waited_sec) for retry in call.retries] == [("rate-limited", 429, 0.3)]
        assert (call.outcome, it.grant.failure_of("agent")) == ("answered", None)
        assert it.grant.usage["model_calls"] == 1


@pytest.mark.parametrize(
    "first",
    [
        answer({"error": {"message": "busy"}}, 503),
        answer(OVERLOADED, 529),
        answer(b"{not json"),
        answer(b""),
        None,
        Stream([b'event: error\ndata: {"type":"error","error":{"message":"Overloaded"}}\n\n']),
        Stream([]),
    ],
    ids=["503", "529", "invalid-json", "empty", "no-answer", "error-event", "empty-stream"],
)
async def test_what_fails_before_the_first_byte_is_tried_again(first, wired):
    streams = isinstance(first, Stream)
    async with wired([first, Stream(CHAT_STREAM) if streams else answer(OPENAI)]) as it:
        reply = await it.post(body=STREAMED if streams else None)
        assert reply.status_code == 200
        assert len(it.upstream.asked) == 2
        (call,) = it.calls
        assert len(call.retries) == 1
        assert (call.outcome, it.grant.failure_of("agent")) == ("answered", None)


@pytest.mark.parametrize(
    ("reply", "category", "code"),
    [
        (answer({"error": {"message": "slow down"}}, 429), "infrastructure", "rate-limited"),
        (answer({"error": {"message": "down"}}, 500), "infrastructure", "model-unreachable"),
        (None, "infrastructure", "model-unreachable"),
        (answer(b"{half"), "infrastructure", "bad-answer"),
        (answer({"error": {"message": "wrong key"}}, 401), "agent", "key-refused"),
        (answer({"error": {"message": "no such model"}}, 404), "agent", "model-unknown"),
        (answer({"error": {"message": "unknown parameter"}}, 400), "agent", "request-refused"),
        (answer({"error": {"message": "x", "code": "insufficient_quota"}}, 429), "infrastructure", "rate-limited"),
        (answer({"error": {"message": "later"}}, 429, retry_after="3600"), "infrastructure", "rate-limited"),
    ],
)
async def test_what_fails_at_last_is_passed_on_and_told_apart(reply, category, code, wired):
    async with wired(reply) as it:
        got = await it.post()
        assert got.status_code >= 400 or code == "bad-answer"
        if reply is not None:
            assert got.content == reply.partition(b"\r\n\r\n")[2]
        assert (it.grant.failure_of("agent").category, it.grant.failure_of("agent").code) == (category, code)
        (call,) = it.calls
        assert (call.outcome, call.code) == ("failed", code)
        tried_again = code in ("model-unreachable", "bad-answer") or b"slow down" in (reply or b"")
        assert len(it.upstream.asked) == (3 if tried_again else 1)


async def test_a_later_success_of_the_agent_takes_a_failure_back(wired):
    async with wired([answer({"error": {"message": "no"}}, 404), answer(OPENAI)]) as it:
        await it.post()
        assert it.grant.failure_of("agent") is not None
        await it.post()
        assert it.grant.failure_of("agent") is None


@pytest.mark.parametrize(
    "refusal",
    [
        answer({"error": {"message": "blocked", "code": "content_policy_violation"}}, 400),
        answer({"error": {"message": "This model's maximum context length is 8192 tokens"}}, 400),
        answer({"model": "m", "choices": [{"message": {"refusal": "no"}, "finish_reason": "content_filter"}]}),
    ],
)
async def test_a_refusal_by_the_model_is_no_failure(refusal, wired):
    async with wired(refusal) as it:
        await it.post()
        assert it.grant.failure_of("agent") is None
        assert it.calls[0].outcome == "answered"


CUT = {
    "/openai/v1/chat/completions": CHAT_STREAM[:1],
    "/openai/v1/responses": RESPONSES_STREAM[:2],
    "/anthropic/v1/messages": MESSAGES_STREAM[:2],
    "/gemini/v1beta/models/g:streamGenerateContent?alt=sse": GEMINI_STREAM[:1],
}


@pytest.mark.parametrize("whole", [True, False], ids=["ended-early", "broken-off"])
@pytest.mark.parametrize("path", CUT)
async def test_half_a_stream_is_passed_on_once_and_is_a_failure(path, whole, wired):
    async with wired(Stream(CUT[path], whole=whole)) as it:
        passed = b""
        try:
            async with it.client.stream(
                "POST", path, json=STREAMED, headers={"authorization": f"Bearer {it.access.token}"}
            ) as reply:
                async for piece in reply.aiter_raw():
                    passed += piece
            assert whole
        except httpx.RemoteProtocolError:
            assert not whole
        assert passed == b"".join(CUT[path])
        assert len(it.upstream.asked) == 1
        (call,) = it.calls
        assert (call.outcome, call.code) == ("failed", "stream-cut")
        assert it.parts.answer(call) == passed
        assert (it.grant.failure_of("agent").category, it.grant.failure_of("agent").code) == (
            "infrastructure",
            "stream-cut",
        )


async def test_a_provider_that_hangs_is_given_up(wired):
    patience = Patience(retries=0, connect_sec=5.0, answer_sec=0.3)
    async with wired([Stream([], hang=True), Stream(CHAT_STREAM[:1], hang=True)], patience=patience) as it:
        assert (await it.post(body=STREAMED)).status_code == 504
        assert it.grant.failure_of("agent").code == "model-timeout"
        with pytest.raises(httpx.RemoteProtocolError):
            await it.post(body=STREAMED)
        assert [call.code for call in it.calls] == ["model-timeout", "stream-cut"]


async def test_an_agent_that_is_killed_in_a_stream_ends_the_call_of_the_provider(wired):
    async with wired(Stream(CHAT_STREAM[:1], hang=True)) as it:
        headers = {"authorization": f"Bearer {it.access.token}"}
        async with it.client.stream("POST", "/openai/v1/chat/completions", json=STREAMED, headers=headers) as reply:
            assert await anext(reply.aiter_raw()) == CHAT_STREAM[0]
        await asyncio.wait_for(it.upstream.left.wait(), 20)
        await it.recorded()
        (call,) = it.calls
        assert (call.outcome, it.parts.answer(call)) == ("aborted", CHAT_STREAM[0])
        assert it.grant.failure_of("agent") is None


async def test_an_agent_that_does_not_wait_for_a_failing_provider_leaves_a_failure(wired):
    patience = Patience(retries=5, first_pause_sec=30.0)
    async with wired(answer({"error": {"message": "down"}}, 503), patience=patience) as it:
        with pytest.raises(httpx.ReadTimeout):
            await it.post(timeout=1.0)
        await it.recorded()
        assert it.calls[0].outcome == "aborted"
        assert it.grant.failure_of("agent").code == "model-unreachable"


async def test_closing_a_grant_ends_its_token_and_records_what_was_under_way(wired):
    async with wired(Stream(CHAT_STREAM[:1], hang=True)) as it:
        headers = {"authorization": f"Bearer {it.access.token}"}
        async with it.client.stream("POST", "/openai/v1/chat/completions", json=STREAMED, headers=headers) as reply:
            pieces = reply.aiter_raw()
            await anext(pieces)
            await it.grant.close()
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(pieces)
        assert [call.outcome for call in it.calls] == ["aborted"]
        with pytest.raises(httpx.ConnectError):
            await it.post()


@pytest.mark.parametrize(
    "events",
    [
        [b'data: {"choices":[{"delta":{"con\n\n'],
        [b'data: {"choices":[]\n\n', b'data: "x":1}\n\n'],
        [b"data: <html>busy</html>\n\n"],
        [b"data: " + b"[" * 100_000 + b"\n\n"],
    ],
    ids=["half", "json-only-together", "html", "too-deep"],
)
@pytest.mark.parametrize("large", [False, True])
async def test_an_event_in_the_middle_of_a_stream_that_is_not_json_is_passed_on_and_is_a_failure(large, events, wired):
    word = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"x" * (1 << 20 if large else 1))
    pieces = [*[word] * 8, *events, *[word] * 8, *CHAT_STREAM]
    async with wired(Stream(pieces)) as it:
        assert (await it.post(body=STREAMED)).content == b"".join(pieces)
        (call,) = it.calls
        assert (call.outcome, call.code, call.usage["input_tokens"]) == ("failed", "bad-answer", 10)
        assert "an event is not valid JSON" in call.message
        assert (it.grant.failure.category, it.grant.failure.code) == ("infrastructure", "bad-answer")
