"""A rollout's calls answered from its record, byte for byte: strictly by request, or loosely by position."""

import json

import pytest

from benchflow.errors import UsageError
from benchflow.models.gateway.replay_book import ReplayBook
from raw_upstream import CHAT_STREAM, OPENAI, Stream, answer

pytestmark = pytest.mark.anyio


def body(text, **more):
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **more}


async def test_a_strict_replay_answers_the_same_requests_and_no_others(wired, tmp_path):
    output = "Chunk ID: {}\nWall time: {} seconds\nOutput: 1"
    item = {"id": "msg_01a1ec21-62e9-7740-905e-4e5235cebd78"}
    asked = [
        body(output.format("3f2a1b", "0.0512"), stream=True, input=[item]),
        body("two" * 2000),
        body("two" * 2000, prompt_cache_key="a"),
    ]
    answers = [Stream(CHAT_STREAM), answer(OPENAI), answer({**OPENAI, "id": "d"})]
    async with wired(answers) as it:
        first = [(await it.post(body=one)).content for one in asked]
    book = ReplayBook.open(tmp_path)
    async with wired([], replay=book.fresh(), environ={"OPENAI_API_KEY": "none"}) as it:
        item = {"id": "msg_50c4f384-c2de-5549-8006-33783e71ee12"}
        asked[0] = body(output.format("00c4de", "1.2"), stream=True, input=[item])
        asked[2]["prompt_cache_key"] = "b"
        replies = [await it.post(body=one) for one in asked]
        assert [reply.content for reply in replies] == first
        assert replies[0].headers["content-type"] == "text/event-stream"
        unknown = await it.post(body=body("three"))
        assert unknown.status_code == 400
        assert it.grant.failure.code == "replay-unknown"
        assert it.upstream.asked == []
        assert [call.replayed for call in it.calls[3:]] == [True, True, True, False]


async def test_a_loose_replay_answers_by_position(wired, tmp_path):
    async with wired([answer(OPENAI), answer({**OPENAI, "id": "second"})]) as it:
        await it.post(body=body("one"))
        await it.post(body=body("two"))
    async with wired([], replay=ReplayBook.open(tmp_path, "loose")) as it:
        assert (await it.post(body=body("other"))).json()["id"] == "c"
        assert (await it.post(body=body("words"))).json()["id"] == "second"
        assert (await it.post(body=body("again"))).status_code == 400


async def test_a_damaged_or_empty_record_is_refused(wired, tmp_path):
    with pytest.raises(UsageError, match="no answered model calls"):
        ReplayBook.open(tmp_path)
    async with wired(answer(OPENAI)) as it:
        await it.post(body=body("x" * 5000))
    (part,) = (tmp_path / "model_calls").iterdir()
    part.write_text(json.dumps("changed"))
    with pytest.raises(UsageError, match="damaged"):
        ReplayBook.open(tmp_path)
