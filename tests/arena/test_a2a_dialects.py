"""The JSON of both versions says the same: what is written is read back, and what is malformed is a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.arena.a2a_cards import Card, choose_route, plain_url
from benchflow.arena.a2a_dialects import STATES, Malformed, read_events, render_event
from benchflow.arena.a2a_types import ArtifactEvent, Message, MessageEvent, Part, StatusEvent

texts = st.text(max_size=20)
ids = st.text("abc-123", min_size=1, max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
parts = st.lists(st.builds(Part.of_text, texts) | st.builds(Part.of_data, values), max_size=3).map(tuple)
messages = st.builds(
    Message,
    parts,
    st.sampled_from(["user", "agent"]),
    ids,
    st.none() | ids,
    st.none() | ids,
    st.dictionaries(texts, values, max_size=2),
)
events = st.one_of(
    st.builds(MessageEvent, messages),
    st.builds(StatusEvent, ids, ids, st.sampled_from(STATES), st.none() | messages, st.none() | ids),
    st.builds(ArtifactEvent, ids, ids, ids, parts, st.none() | ids, st.booleans(), st.booleans()),
)


@given(events, st.sampled_from(["1.0", "0.3"]))
def test_an_event_survives_both_versions(event, version):
    assert read_events(render_event(event, version)) == (event,)


@given(values)
def test_whatever_comes_is_events_or_malformed(value):
    try:
        assert read_events(value)
    except Malformed:
        return


def test_a_whole_task_is_its_artifacts_and_its_state():
    task = {
        "id": "t",
        "contextId": "c",
        "status": {"state": "TASK_STATE_COMPLETED"},
        "artifacts": [{"artifactId": "a", "parts": [{"text": "made"}]}],
    }
    for shown in (task, {"task": task}, {**task, "kind": "task"}):
        made, state = read_events(shown)
        assert (made.text, state.state, state.task_id) == ("made", "completed", "t")


@pytest.mark.parametrize(
    ("card", "url", "binding", "version"),
    [
        (Card("a", "b", "http://elsewhere:1/x").to_dict(), "http://here:2/x/", "JSONRPC", "1.0"),
        ({"url": "http://elsewhere/rpc"}, "http://here:2/rpc", "JSONRPC", "0.3"),
        ({"url": "http://0.0.0.0:9/", "protocolVersion": "0.2.6"}, "http://here:2/", "JSONRPC", "0.3"),
        (
            {
                "supportedInterfaces": [
                    {"url": "https://evil", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.1"}
                ]
            },
            "http://here:2/",
            "HTTP+JSON",
            "1.0",
        ),
    ],
)
def test_a_card_says_how_to_call_its_owner_but_never_where(card, url, binding, version):
    route = choose_route(card, "http://here:2")
    assert (route.url, route.binding, route.version) == (url, binding, version)


@pytest.mark.parametrize("card", [{}, {"url": 3}, {"supportedInterfaces": [{"protocolBinding": "GRPC"}]}])
def test_a_card_that_offers_nothing_known_is_refused_with_what_it_offers(card):
    assert "and not JSON-RPC" in choose_route(card, "http://here")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "file:///etc/passwd",
        "http://",
        "ftp://x",
        "http://u:p@h",
        "http://h?q",
        "http://[::",
        "http://loc\nalhost",
        "http://ⓛocalhost",
        "http://a b",
        "http://127.0.0.1\\.evil",
    ],
)
def test_only_plain_web_addresses_are_addresses_of_peers(url):
    assert plain_url(url)
