"""Limits on calls hold for any client: at a limit it gets its own dialect's error, and the grant says which one."""

import asyncio

import httpx
import pytest

from benchflow.models.gateway import CallLimits
from raw_upstream import CHAT_STREAM, MESSAGES_STREAM, OPENAI, RESPONSES_STREAM, Stream, answer

pytestmark = pytest.mark.anyio

PATHS = {
    "/openai/v1/chat/completions": lambda body: body["error"]["code"],
    "/openai/v1/responses": lambda body: body["error"]["code"],
    "/anthropic/v1/messages": lambda body: (body["type"], body["error"]["type"]),
    "/gemini/v1beta/models/g:generateContent": lambda body: body["error"]["status"],
}
ERRORS = ["max_calls", "max_calls", ("error", "permission_error"), "PERMISSION_DENIED"]


@pytest.mark.parametrize(("path", "error"), list(zip(PATHS, ERRORS, strict=True)))
async def test_at_the_limit_a_client_gets_the_error_of_its_dialect(path, error, wired):
    async with wired(answer(OPENAI), limits=CallLimits(max_calls=1)) as it:
        assert (await it.post(path)).status_code == 200
        assert not it.grant.reached.is_set()
        refused = await it.post(path)
        assert refused.status_code == 403
        assert refused.headers["x-should-retry"] == "false"
        assert PATHS[path](refused.json()) == error
        assert "limit of 1 model calls" in refused.text
        assert len(it.upstream.asked) == 1
        assert (it.grant.limit.name, it.grant.limit.scope) == ("max_calls", "rollout")
        assert it.grant.reached.is_set()
        assert it.grant.failure_of("agent") is None
        assert [(call.outcome, call.code) for call in it.calls] == [("answered", None), ("limited", "max_calls")]


@pytest.mark.parametrize(
    ("limits", "name"),
    [(CallLimits(max_tokens=15), "max_tokens"), (CallLimits(max_cost_usd=0.00005), "max_cost")],
)
async def test_tokens_and_cost_are_limited(limits, name, wired):
    async with wired(answer(OPENAI), limits=limits) as it:
        assert (await it.post()).status_code == 200
        assert (await it.post()).status_code == 403
        assert it.grant.limit.name == name


@pytest.mark.parametrize(
    ("limits", "name"),
    [(CallLimits(max_tokens=100), "max_tokens"), (CallLimits(max_cost_usd=0.0001), "max_cost")],
)
async def test_calls_that_nobody_waits_for_count_by_what_was_sent(limits, name, wired):
    asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": "word " * 100}]}
    async with wired(Stream([], hang=True), limits=limits) as it:
        with pytest.raises(httpx.ReadTimeout):
            await it.post(body=asked, timeout=1.0)
        await it.recorded()
        assert (await it.post(body=asked)).status_code == 403
        assert (it.grant.limit.name, len(it.upstream.asked)) == (name, 1)
        assert (it.calls[0].outcome, it.calls[0].estimated, it.calls[0].usage["input_tokens"] > 100) == (
            "aborted", True, True,
        )  # fmt: skip


async def test_a_cost_limit_needs_a_known_price(wired):
    async with wired(answer(OPENAI), limits=CallLimits(max_cost_usd=1.0)) as it:
        refused = await it.post(body={"model": "home-made", "messages": []})
        assert refused.status_code == 403
        assert (it.grant.failure_of("agent").category, it.grant.failure_of("agent").code) == ("agent", "price-unknown")
        assert it.upstream.asked == []


SILENT = {
    "chat": ("/openai/v1/chat/completions", Stream([*CHAT_STREAM[:2], b"data: [DONE]\n\n"])),
    "responses": (
        "/openai/v1/responses",
        Stream([*RESPONSES_STREAM[:2], RESPONSES_STREAM[2].replace(b"_tokens", b"")]),
    ),
    "messages": ("/anthropic/v1/messages", Stream([line.replace(b"_tokens", b"") for line in MESSAGES_STREAM])),
    "whole": ("/openai/v1/chat/completions", answer({**OPENAI, "usage": None})),
}


@pytest.mark.parametrize("kind", SILENT)
async def test_tokens_that_a_server_does_not_count_are_estimated_and_limited(kind, wired):
    path, reply = SILENT[kind]
    async with wired(reply, limits=CallLimits(max_tokens=50)) as it:
        body = {"model": "gpt-4o", "stream": kind != "whole", "messages": [{"role": "user", "content": "x" * 300}]}
        assert (await it.post(path, body)).status_code == 200
        (call,) = it.calls
        assert (call.estimated, it.grant.usage["estimated_calls"]) == (True, 1)
        assert 100 <= call.usage["input_tokens"] <= 150
        assert 1 <= call.usage["output_tokens"] <= 12  # of "hello", and not of what is around it
        assert (await it.post(path, body)).status_code == 403


async def test_time_is_limited_in_the_middle_of_a_call(wired):
    async with wired(Stream(CHAT_STREAM[:1], hang=True), limits=CallLimits(max_seconds=0.5)) as it:
        with pytest.raises(httpx.RemoteProtocolError):
            await it.post(body={"model": "gpt-4o", "stream": True, "messages": []})
        assert it.grant.limit.name == "max_model_time"
        assert [(call.outcome, call.code) for call in it.calls] == [("limited", "max_model_time")]
        assert (await it.post()).status_code == 403


async def test_the_limit_of_the_job_holds_for_all_its_rollouts(wired):
    async with wired(answer(OPENAI), job=CallLimits(max_calls=1)) as it:
        assert (await it.post()).status_code == 200
        assert (await it.post()).status_code == 403
        assert it.grant.limit.scope == "job"
        assert "The job reached its limit" in str(it.grant.limit)


async def test_so_many_calls_run_at_once_and_the_others_wait(wired):
    running, most = 0, 0

    async with wired(Stream(CHAT_STREAM), limits=CallLimits(concurrent=2)) as it:
        reply = it.upstream.reply

        async def counted(*args):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.05)
            try:
                return await reply(*args)
            finally:
                running -= 1

        it.upstream.reply = counted
        body = {"model": "gpt-4o", "stream": True, "messages": []}
        replies = await asyncio.gather(*(it.post(body=body) for _ in range(8)))
        assert all(found.content == b"".join(CHAT_STREAM) for found in replies)
        assert most == 2
        assert max(call.timing["queued"] for call in it.calls) > 0.05
