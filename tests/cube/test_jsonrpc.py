"""JSON-RPC 2.0, as its specification has it."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cube.jsonrpc import RpcError, answer, require

CALLS = []


async def add(params):
    CALLS.append(params)
    return require(params, "a", int) + require(params, "b", int)


async def boom(params):
    raise RuntimeError("it broke")


async def refuse(params):
    raise RpcError(-32602, "not so")


async def give(params):
    return GIVEN[params["what"]]


GIVEN = {"nan": float("nan"), "keys": {(1, 2): 3}, "path": Path("/x"), "surrogate": "\ud800"}
METHODS = {"add": add, "boom": boom, "refuse": refuse, "give": give}


def ask(request):
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    response = asyncio.run(answer(body, METHODS))
    return None if response is None else json.loads(response)


def call(method="add", identity=1, **params):
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


def test_a_call_is_answered_with_its_id():
    assert ask(call(a=1, b=2, identity="x")) == {"jsonrpc": "2.0", "result": 3, "id": "x"}


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"{", -32700),
        (b"\xff", -32700),
        (b"[" * 100_000, -32700),
        (b'{"jsonrpc": "2.0", "id": NaN, "method": "add"}', -32700),
        ({}, -32600),
        ({"jsonrpc": "1.0", "method": "add", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "id": {}, "method": "add"}, -32600),
        (3, -32600),
        ([], -32600),
        (call("nothing"), -32601),
        (call(a=1), -32602),
        (call(a=1, b="2"), -32602),
        (call("refuse"), -32602),
        ({**call(), "params": [1]}, -32602),
        (call("boom"), -32603),
    ],
)
def test_every_failure_has_its_code(request_, code):
    assert ask(request_)["error"]["code"] == code


def test_a_notification_is_carried_out_and_not_answered():
    CALLS.clear()
    assert ask({"jsonrpc": "2.0", "method": "add", "params": {"a": 1, "b": 2}}) is None
    assert CALLS == [{"a": 1, "b": 2}]
    assert ask({"jsonrpc": "2.0", "method": "boom"}) is None


def test_a_null_id_is_a_call_and_no_notification():
    assert ask({**call(a=1, b=2), "id": None})["result"] == 3


def test_a_batch_is_answered_in_order_without_its_notifications():
    notification = {"jsonrpc": "2.0", "method": "add", "params": {"a": 1, "b": 1}}
    answers = ask([call(a=1, b=2, identity=1), notification, 7, call("boom", identity=2)])
    assert [(a["id"], "result" in a) for a in answers] == [(1, True), (None, False), (2, False)]
    assert ask([notification, notification]) is None


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda s: (
            st.lists(s, max_size=3)
            | st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "x"]), s, max_size=4)
        ),
        max_leaves=8,
    )
)
def test_no_request_breaks_the_server(request_):
    response = ask(request_)
    assert response is None or response


@pytest.mark.parametrize("what", ["nan", "keys"])
def test_a_result_that_json_cannot_hold_is_an_error_of_that_call_alone(what):
    failed, done = ask([call("give", what=what), call(a=1, b=2)])
    assert failed["error"]["code"] == -32603
    assert done["result"] == 3


def test_results_that_are_no_plain_json_travel_as_text():
    assert ask(call("give", what="path"))["result"] == "/x"
    assert ask(call("give", what="surrogate"))["result"] == "\ud800"
    assert "\ud800" in ask(call("\ud800", identity="\ud800"))["error"]["message"]
