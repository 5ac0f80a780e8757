"""A peer is called in every version and binding; whatever a hostile one answers is one failure within its limits."""

import json
from contextlib import aclosing

import anyio
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from a2a_peers import Says, served, served_raw
from benchflow.arena.a2a_client import A2APeer, PeerLimits
from benchflow.arena.a2a_types import PeerFailure, Reply, StatusEvent, json_parts

pytestmark = pytest.mark.anyio


class Works:
    """Makes a task of every message."""

    async def answer(self, message, context_id, updates):
        await updates.status("working on it")
        await updates.artifact(json_parts({"turns": 2}), "Result")
        return Reply.text("done")

    async def cancel(self, context_id):
        pass


def only(binding, version, *, streaming):
    """A card that offers one way."""
    interface = {"url": "/", "protocolBinding": binding, "protocolVersion": version}
    if binding == "HTTP+JSON":
        interface["url"] = ""
    return {"supportedInterfaces": [interface], "capabilities": {"streaming": streaming}}


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(("binding", "version"), [("JSONRPC", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "1.0")])
async def test_every_way_to_call_a_peer_brings_the_same_answer(binding, version, streaming, monkeypatch):
    monkeypatch.setattr(
        "benchflow.arena.a2a_cards.Card.to_dict", lambda self: only(binding, version, streaming=streaming)
    )
    async with served(Works()) as url, A2APeer(url, timeout=20) as peer, served(Says("hello")) as other:
        answer = await peer.ask("go")
        assert [part.value for part in answer.parts] == [{"turns": 2}, '{"turns": 2}', "done"]
        assert type(answer.parts[0].value["turns"]) is int
        assert answer.state == "completed"
        async with A2APeer(other) as bare:
            first = await bare.ask("hi")
            assert (first.text, first.state) == ("hello", None)
            assert (await bare.ask("hi", context_id=first.context_id)).context_id == first.context_id


class Sleeps:
    """Begins a task and never ends it; it tells who was cancelled."""

    def __init__(self):
        self.begun, self.cancelled, self.told = anyio.Event(), [], anyio.Event()

    async def answer(self, message, context_id, updates):
        await updates.status("sleeping")
        self.begun.set()
        await anyio.sleep_forever()

    async def cancel(self, context_id):
        self.cancelled.append(context_id)
        self.told.set()


async def test_a_task_that_exceeds_its_limit_is_cancelled_at_the_peer():
    sleeper = Sleeps()
    async with served(sleeper) as url, A2APeer(url, timeout=20) as peer:
        with pytest.raises(PeerFailure) as caught:
            await peer.ask("go", context_id="mine", timeout=0.5)
    assert caught.value.problem == "silent"
    assert sleeper.cancelled == ["mine"]


async def test_an_answer_ends_when_its_client_is_cancelled():
    sleeper = Sleeps()
    async with served(sleeper, cancel_on_disconnect=True) as url, A2APeer(url, timeout=20) as peer:
        async with anyio.create_task_group() as group:
            group.start_soon(peer.ask, "go", None)
            await sleeper.begun.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(20):
            await sleeper.told.wait()


CARD = {"url": "http://x/", "protocolVersion": "0.3.0", "capabilities": {"streaming": True}}


def hostile(answer, card=CARD):
    async def show(_):
        return card if isinstance(card, Response) else JSONResponse(card)

    async def reply(request):
        await request.body()
        return answer()

    return Starlette(routes=[Route("/.well-known/agent-card.json", show), Route("/", reply, methods=["POST"])])


def sent(*chunks, forever=False):
    async def body():
        for chunk in chunks:
            yield chunk
        while forever:
            yield chunks[-1]
            await anyio.lowlevel.checkpoint()

    return StreamingResponse(body(), media_type="text/event-stream")


WORKING = {"kind": "status-update", "taskId": "t", "contextId": "c", "status": {"state": "working"}}
EVENT = b"data: " + json.dumps({"jsonrpc": "2.0", "id": 1, "result": WORKING}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda: sent(b"data: " + b"x" * 65536, forever=True), "flood"),
        (lambda: sent(EVENT, forever=True), "flood"),
        (lambda: sent(b": " + b"x" * 65536 + b"\n\n", forever=True), "flood"),
        (lambda: sent(b"data: {broken\n\n"), "protocol"),
        (lambda: sent(b"data: " + b"[" * 5000 + b"\n\n"), "protocol"),
        (
            lambda: sent(b'data: {"result": {"role": "agent", "parts": [{"text": 7}]}}\n\n'),
            "protocol",
        ),
        (sent, "protocol"),
        (lambda: Response(b"\x1f\x8b...", headers={"content-encoding": "gzip"}), "protocol"),
        (lambda: Response("NaN", media_type="application/json"), "protocol"),
        (lambda: JSONResponse({"result": {"kind": "message", "role": "ROLE_KING", "parts": []}}), "protocol"),
        (lambda: JSONResponse({"error": {"code": -32603, "message": "no"}}), "refused"),
        (lambda: Response("gone", 503), "refused"),
        (lambda: RedirectResponse("http://127.0.0.1:1/"), "protocol"),
    ],
)
async def test_a_hostile_answer_is_one_failure_within_the_limits(answer, problem):
    async with served_raw(hostile(answer)) as url:
        async with A2APeer(url, timeout=20, limits=PeerLimits(1 << 20, 500)) as peer:
            with pytest.raises(PeerFailure) as caught:
                await peer.ask("hi")
        assert caught.value.problem == problem
        assert url in str(caught.value)


async def test_a_peer_that_drips_forever_is_silent_past_its_limit():
    async def body():
        while True:
            yield b": \n\n"
            await anyio.sleep(0.05)

    app = hostile(lambda: StreamingResponse(body(), media_type="text/event-stream"))
    async with served_raw(app) as url, A2APeer(url, timeout=0.5) as peer:
        with pytest.raises(PeerFailure, match="did not answer within its limit") as caught:
            await peer.ask("hi")
    assert caught.value.problem == "silent"


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        (Response("x" * (2 << 20)), "flood"),
        (Response("{"), "protocol"),
        (JSONResponse([]), "protocol"),
        (JSONResponse({"name": "no way to call it"}), "protocol"),
        (RedirectResponse("http://127.0.0.1:1/card"), "protocol"),
        (Response(status_code=500), "refused"),
        (Response(status_code=404), "protocol"),
    ],
)
async def test_a_card_that_cannot_be_used_is_a_failure_before_anything_is_sent(card, problem):
    async with served_raw(hostile(sent, card)) as url:
        with pytest.raises(PeerFailure) as caught:
            async with A2APeer(url):
                pytest.fail("it was entered")
        assert caught.value.problem == problem


async def test_a_card_that_names_another_machine_leads_back_to_the_one_that_was_asked():
    elsewhere = Says("never")
    async with served(elsewhere) as trap:
        app = hostile(lambda: sent(EVENT), {**CARD, "url": trap})
        async with served_raw(app) as url, A2APeer(url, timeout=5) as peer, aclosing(peer.send("secret")) as events:
            assert isinstance(await anext(events), StatusEvent)
    assert elsewhere.asked == []


async def test_nobody_listens_at_the_address():
    with pytest.raises(PeerFailure) as caught:
        async with A2APeer("http://127.0.0.1:1"):
            pytest.fail("it was entered")
    assert caught.value.problem == "unreachable"
    assert caught.value.category == "agent"
