"""Limits on calls from this process, of model agents, simulated users and judges: the same as for agents in boxes."""

from contextlib import contextmanager

import anyio
import pytest

from benchflow.files.redaction import NO_SECRETS
from benchflow.models import ChatModel, ModelFailure
from benchflow.models.gateway import CallLimits, Gateway, GrantRequest
from benchflow.record import CallPlace, ModelCalls, RolloutFolder, read_model_calls
from benchflow.testing import Answer, ModelServer, Silence, Usage

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,  # the client loads for seconds
    pytest.mark.xdist_group("models"),
    pytest.mark.usefixtures("dropped_clients"),
]
QUESTION = [{"role": "user", "content": "hello there"}]


class Seat:
    """A client whose calls are counted and recorded."""

    def __init__(self, server, folder, limits, whole, model, source):
        self.server, self._folder = server, RolloutFolder(folder)
        self.records = ModelCalls(self._folder, NO_SECRETS)
        gateway = Gateway(server.environment, limits=whole, scope="server")
        self.grant = gateway.open(GrantRequest(self.records, limits))
        access = self.grant.seat(CallPlace(source, source))
        self.chat = ChatModel(model, server.environment, access=access, retries=0)

    async def ask(self):
        """How a call ended: `answered`, or the code of its failure."""
        try:
            await self.chat.complete(QUESTION)
        except ModelFailure as failure:
            return failure.code
        return "answered"

    @property
    def calls(self):
        return [(call.outcome, call.code) for call in read_model_calls(self._folder.model_calls)]


@pytest.fixture
def seat(tmp_path):
    @contextmanager
    def take(replies, *, limits=None, whole=None, model="gpt-4o", source="user"):
        with ModelServer(replies) as server:
            made = Seat(server, tmp_path, limits or CallLimits(), whole or CallLimits(), model, source)
            try:
                yield made
            finally:
                made.records.close()

    return take


async def together(seat, number):
    """How so many calls at once ended."""
    found = []

    async def ask():
        found.append(await seat.ask())

    async with anyio.create_task_group() as group:
        for _ in range(number):
            group.start_soon(ask)
    return found


async def test_of_calls_that_race_for_the_last_one_exactly_one_is_made(seat):
    with seat(Answer("x", delay_sec=0.3), whole=CallLimits(max_calls=1)) as it:
        assert sorted(await together(it, 6)) == ["answered"] + ["max_calls"] * 5
        assert len(it.server.requests) == 1
        assert it.grant.limit.scope == "server"
        assert "The server reached its limit of 1 model calls." in str(it.grant.limit)


async def test_calls_that_wait_for_their_place_are_held_to_what_those_before_them_used(seat):
    reply = Answer("x", usage=Usage(10, 1), delay_sec=0.2)
    with seat(reply, whole=CallLimits(max_tokens=11, concurrent=1)) as it:
        assert sorted(await together(it, 5)) == ["answered"] + ["max_tokens"] * 4
        assert len(it.server.requests) == 1


async def test_judges_wait_for_their_place_too_and_waiting_is_not_time_of_the_model(seat):
    with seat(Answer("x", delay_sec=0.3), whole=CallLimits(concurrent=1, max_seconds=60), source="judge") as it:
        assert await together(it, 3) == ["answered"] * 3
        times = [call.timing for call in read_model_calls(it._folder.model_calls)]
        assert sorted(time["queued"] > 0.25 for time in times) == [False, True, True]
        spent = it.grant.meter.above.seconds
        assert spent == pytest.approx(sum(time["total"] - time["queued"] for time in times), abs=0.1)


async def test_time_ends_a_call_in_the_middle_and_it_is_recorded_once(seat):
    with seat(Silence(30), limits=CallLimits(max_seconds=0.5)) as it:
        with anyio.fail_after(20):
            assert await it.ask() == "max_model_time"
        assert await it.ask() == "max_model_time"
        assert it.calls == [("limited", "max_model_time")] * 2
        assert len(it.server.requests) == 1


async def test_a_limit_of_nothing_lets_no_call_through(seat):
    with seat("x", limits=CallLimits(max_calls=0)) as it:
        assert await it.ask() == "max_calls"
        assert (it.calls, it.server.requests) == ([("limited", "max_calls")], ())


@pytest.mark.parametrize("wrong", [{"max_calls": -1}, {"max_cost_usd": float("nan")}, {"concurrent": 0}])
def test_what_is_not_a_limit_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CallLimits(**wrong)


async def test_a_cost_limit_needs_a_known_price_before_anything_is_sent(seat):
    with seat("x", whole=CallLimits(max_cost_usd=1.0), model="openai/home-made", source="judge") as it:
        assert await it.ask() == "price-unknown"
        assert (it.calls, it.server.requests) == ([("refused", "price-unknown")], ())


async def test_cost_is_counted_by_the_price_of_the_model(seat):
    with seat(Answer("x", usage=Usage(1000, 0)), limits=CallLimits(max_cost_usd=0.002)) as it:
        assert [await it.ask(), await it.ask()] == ["answered", "max_cost"]


async def test_a_call_that_nobody_waits_for_is_recorded_as_aborted(seat):
    with seat(Silence(30)) as it:
        with anyio.move_on_after(0.5):
            await it.ask()
        assert it.calls == [("aborted", None)]


@pytest.mark.parametrize(
    ("limits", "name"), [({"max_tokens": 5}, "max_tokens"), ({"max_cost_usd": 0.00001}, "max_cost")]
)
async def test_calls_that_nobody_waits_for_count_by_what_was_sent(seat, limits, name):
    with seat(Silence(30), whole=CallLimits(**limits)) as it:
        await it.chat.check()
        with anyio.move_on_after(2):
            await it.ask()
        assert await it.ask() == name
        assert (it.calls, len(it.server.requests)) == ([("aborted", None), ("limited", name)], 1)
