from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import Issue
from benchflow.rewards import (
    EpisodePolicy,
    RewardError,
    RewardEvent,
    RewardRange,
    Scored,
    Unscored,
    ors_response,
    parse_records,
    read_episode,
    read_reward,
    render_events,
    settle_episode,
    tool_output_events,
    write_reward,
)
from benchflow.rewards.ors import AGGREGATIONS, DEFAULT_POLICY

LATCH = EpisodePolicy("last_non_null", "finished_true")


def settled(records: list, policy: EpisodePolicy = DEFAULT_POLICY, **options: object) -> Scored:
    return settle_episode(read_episode(records), policy, **options)


def test_tool_outputs_become_steps_and_one_end() -> None:
    outputs = [
        {"ok": True, "output": {"blocks": [], "metadata": None, "reward": None, "finished": False}},
        {"tool_name": "guess", "tool_output": {"reward": 0.25}, "toolCallId": "c1", "ts": 12.5},
        {"ok": False, "error": "no such tool"},
        {"tool": "submit", "result": {"reward": {"reward": 1}, "finished": True}, "step": 9},
    ]
    events = tool_output_events(outputs)
    assert [(e.type, e.granularity, e.space) for e in events] == [("dense", "step", "action")] * 3 + [
        ("terminal", "terminal", "output")
    ]
    assert [e.reward for e in events] == [None, 0.25, None, 1.0]
    assert [e.source for e in events] == ["ors-tool-output", "guess", "ors-tool-output", "submit"]
    assert [e.step for e in events] == [1, 2, 3, 9]
    assert (events[1].tool_call_id, events[1].timestamp, events[3].finished) == ("c1", 12.5, True)


def test_events_survive_their_file() -> None:
    outputs = [{"reward": None}, {"reward": 0}, {"reward": 0.5, "done": True, "space": "memory"}]
    events = tool_output_events(outputs, source="env")
    assert {event.source for event in events} == {"env"}
    records = parse_records(render_events(events).encode(), name="ors-rewards.jsonl")
    assert read_episode(records).events == events


def test_a_line_of_events_says_no_more_than_it_must() -> None:
    event = RewardEvent("dense", None, "für", step=1, space="action", granularity="step")
    assert render_events([event, event]) == 2 * (
        '{"reward": null, "type": "dense", "source": "für", "step": 1, "space": "action", "granularity": "step"}\n'
    )
    with pytest.raises(ValueError, match="JSON"):
        render_events([RewardEvent("dense", math.nan, "x")])


@given(
    st.lists(
        st.fixed_dictionaries(
            {"reward": st.none() | st.floats(0, 1)},
            optional={
                "finished": st.booleans(),
                "step": st.integers(0, 50),
                "source": st.text(min_size=1, max_size=4),
                "timestamp": st.floats(0, 1e9),
            },
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_outputs_survive_their_file(outputs: list) -> None:
    events = tool_output_events(outputs)
    assert read_episode(parse_records(render_events(events).encode(), name="x.jsonl")).events == events


SETTLED = {
    "one bare event": ([{"reward": 0.5}], EpisodePolicy(), 0.5),
    "steps and an end": (
        [{"reward": 0.1, "type": "dense"}, {"reward": 1, "finished": True}],
        EpisodePolicy(),
        1.0,
    ),
    "ends that agree": ([{"reward": 1}, {"reward": 1.0}], EpisodePolicy(), 1.0),
    "a response": ([{"reward": 0.7, "is_valid": True}], EpisodePolicy(), 0.7),
    "the last of two responses": (
        [{"reward": 0.7, "is_valid": True}, {"reward": 0.2, "is_valid": True}],
        EpisodePolicy(),
        0.2,
    ),
    "a response before a bundle of steps": (
        [{"reward": 0.7, "is_valid": True}, {"events": [{"reward": 0.1, "type": "dense"}]}],
        EpisodePolicy(),
        0.7,
    ),
    "a response known by its metadata": (
        [{"reward": 0.7, "metadata": {"space": "output"}}],
        EpisodePolicy(),
        0.7,
    ),
    "a bundle of events": ([{"events": [{"reward": 0.4}]}], EpisodePolicy(), 0.4),
    "a bundle with its reward": (
        [{"events": [{"reward": 0.4, "type": "dense"}], "reward": 0.9}],
        EpisodePolicy(),
        0.9,
    ),
    "a response beside another terminal reward": (
        [{"reward": 0.9, "is_valid": True, "metadata": {"events": [{"reward": 0.4}]}}],
        EpisodePolicy(),
        0.9,
    ),
    "the last reward that is not null": (
        [
            {"reward": 0.3, "finished": False},
            {"reward": 0.6, "finished": False},
            {"reward": None, "finished": True},
        ],
        LATCH,
        0.6,
    ),
    "a response under a latch": ([{"reward": 0.7, "is_valid": True}], LATCH, 0.7),
    "sum": ([{"reward": 0.3, "type": "dense"}] * 3, EpisodePolicy("sum"), pytest.approx(0.9)),
    "mean": ([{"reward": 0.2}, {"reward": 0.4}], EpisodePolicy("mean"), pytest.approx(0.3)),
    "min": ([{"reward": 0.2}, {"reward": 0.4}], EpisodePolicy("min"), 0.2),
    "max": ([{"reward": 0.2}, {"reward": None}, {"reward": 0.4}], EpisodePolicy("max"), 0.4),
    "a sum that the response confirms": (
        [{"reward": 0.5, "is_valid": True, "metadata": {"events": [{"reward": 0.25, "type": "dense"}] * 2}}],
        EpisodePolicy("sum"),
        0.5,
    ),
}


@pytest.mark.parametrize("case", SETTLED)
def test_an_episode_settles(case: str) -> None:
    records, policy, reward = SETTLED[case]
    assert settled(records, policy).reward == reward


REFUSED = {
    "ends that disagree": ([{"reward": 1}, {"reward": 0}], EpisodePolicy(), "reward-mismatch", "disagree"),
    "steps only": (
        [{"reward": 1, "granularity": "step"}],
        EpisodePolicy(),
        "reward-missing",
        "the episode has no reward",
    ),
    "no reward at all": ([{"reward": None}], EpisodePolicy("last_non_null"), "reward-missing", "no reward"),
    "no end": ([{"reward": 1}], LATCH, "episode-unfinished", "no event finishes"),
    "a response without an end": (
        [{"reward": 0.7, "is_valid": True, "metadata": {"events": [{"reward": 0.7}]}}],
        LATCH,
        "episode-unfinished",
        "no event finishes",
    ),
    "an invalid response": (
        [{"reward": 0, "is_valid": False}],
        EpisodePolicy(),
        "reward-invalid",
        "is_valid",
    ),
    "a response neither valid nor not": (
        [{"reward": 0, "is_valid": "yes"}],
        EpisodePolicy(),
        "reward-invalid",
        "is_valid",
    ),
    "a response against its events": (
        [{"reward": 1, "is_valid": True, "metadata": {"events": [{"reward": 0.2}]}}],
        EpisodePolicy("sum"),
        "reward-mismatch",
        "events give 0.2",
    ),
    "a sum above the range": ([{"reward": 1}] * 2, EpisodePolicy("sum"), "reward-invalid", "outside"),
    "a reward above the range": ([{"reward": 2}], EpisodePolicy(), "reward-invalid", "event 1: reward"),
    "a reward that is true": ([{"reward": True}], EpisodePolicy(), "reward-invalid", "event 1: reward"),
    "an event without a reward": (
        [{"reward": 1}, {"step": 1}],
        EpisodePolicy(),
        "reward-invalid",
        "event 2 has no reward",
    ),
    "an end that says it is a step": (
        [{"reward": 1, "done": True, "type": "dense"}],
        EpisodePolicy(),
        "reward-invalid",
        "terminal",
    ),
    "an end that is not true": (
        [{"reward": 1, "finished": 1}],
        EpisodePolicy(),
        "reward-invalid",
        "finished",
    ),
    "a step that is a text": ([{"reward": 1, "step": "1"}], EpisodePolicy(), "reward-invalid", "step"),
    "no such space": ([{"reward": 1, "space": "x"}], EpisodePolicy(), "reward-invalid", "space"),
    "events that are a map": ([{"events": {}}], EpisodePolicy(), "reward-invalid", "events must be a list"),
    "an event that is a number": ([{"events": [1]}], EpisodePolicy(), "reward-invalid", "event 1"),
    "an item without a score": (
        [{"events": [], "reward": 1, "items": [{}]}],
        EpisodePolicy(),
        "reward-invalid",
        "items[0]",
    ),
    "an item above one": (
        [{"events": [], "reward": 1, "items": {"a": 2}}],
        EpisodePolicy(),
        "reward-invalid",
        "items.a",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_episode_is_refused(case: str) -> None:
    records, policy, code, words = REFUSED[case]
    with pytest.raises(RewardError) as caught:
        settled(records, policy)
    assert caught.value.code == code
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "headline"),
    [
        ({"items": {"a": 0.5}}, 0.7),
        ({"events": []}, 0.7),
        ({"space": "output"}, 0.7),
        ({"items": {}, "events": [], "space": "output"}, 0.7),
        ({"other": 1}, None),
        ({}, None),
        ("items", None),
    ],
)
def test_a_response_is_told_from_an_event_by_its_metadata(metadata: object, headline: float | None) -> None:
    assert read_episode([{"reward": 0.7, "metadata": metadata}]).headline == headline


def test_nothing_after_the_end_counts() -> None:
    records = [{"reward": 0, "finished": True}, {"reward": 1, "finished": True}, {"reward": 1}]
    scored = settled(records, LATCH)
    assert scored.reward == 0.0
    assert len(scored.events) == 3
    (note,) = scored.diagnostics
    assert note == Issue("after-finish", "warning", "", note.message)
    assert note.message.startswith("2 events ")
    assert settled(records[:1], LATCH).diagnostics == ()


def test_an_episode_is_recorded_as_ors_reports_it() -> None:
    records = [{"reward": 0.25, "type": "dense", "step": 4}, {"reward": 0.5, "finished": True, "source": "env"}]
    scored = settled(records, EpisodePolicy("last_non_null"))
    response = {
        "reward": 0.5,
        "is_valid": True,
        "metadata": {
            "items": [],
            "events": [asdict(event) for event in scored.events],
            "error": None,
            "space": "output",
            "granularity": "terminal",
        },
    }
    assert ors_response(Scored(0.5, events=scored.events)) == response
    source = {"source": "ors-episode", "strategy": "ors-episode"}
    assert scored.document == {"reward": 0.5, "metadata": {**source, "ors": response}}
    assert scored.details == {
        **source,
        "ors_response": response,
        "aggregate": {"reward": 0.5, "method": "ors-last-non-null"},
    }
    assert [(event.type, event.step, event.source) for event in scored.events] == [
        ("dense", 4, "ors-tool-output"),
        ("terminal", None, "env"),
    ]


@pytest.mark.parametrize(
    ("record", "path"),
    [
        ({"reward": 0, "is_valid": False}, "is_valid"),
        ({"events": {}}, "events"),
        ({"events": [], "items": "a"}, "items"),
        ({"events": [], "items": {"a": 2}}, "items.a"),
    ],
)
def test_what_is_wrong_with_a_response_is_named_by_its_key(record: dict, path: str) -> None:
    with pytest.raises(RewardError) as caught:
        read_episode([record])
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("record", "path"),
    [
        ({"reward": 1, "step": True}, "step"),
        ({"reward": 1, "finished": 1}, "finished"),
        ({"reward": 1, "finished": True, "granularity": "step"}, "type"),
        ({"reward": 1, "type": 7}, "type"),
        ({"step": 1}, "reward"),
        ({"reward": 7}, "event 2: reward"),
        ({"reward": 1, "space": "x"}, "event 2: space"),
        ({"reward": 1, "granularity": "x"}, "event 2: granularity"),
        ({"reward": 1, "source": ""}, "source"),
        ({"reward": 1, "tool_call_id": 7}, "tool_call_id"),
        ({"reward": 1, "timestamp": True}, "timestamp"),
    ],
)
def test_what_is_wrong_with_an_event_is_named_by_its_place_and_key(record: dict, path: str) -> None:
    with pytest.raises(RewardError, match="^event 2") as caught:
        read_episode([{"reward": 1}, record])
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("record", "kind", "grain"),
    [
        ({}, "terminal", "terminal"),
        ({"finished": False}, "dense", "step"),
        ({"done": True}, "terminal", "terminal"),
        ({"granularity": "step"}, "dense", "step"),
        ({"granularity": "terminal", "finished": False}, "terminal", "terminal"),
        ({"type": "dense"}, "dense", "step"),
        ({"type": "terminal"}, "terminal", "terminal"),
        ({"type": "shaped", "granularity": "terminal"}, "shaped", "terminal"),
        ({"type": "terminal", "granularity": "step"}, "terminal", "step"),
    ],
)
def test_an_event_is_what_it_says_and_terminal_by_itself(record: dict, kind: str, grain: str) -> None:
    (event,) = read_episode([{"reward": 1, **record}]).events
    assert (event.type, event.granularity) == (kind, grain)


def test_a_wider_range_takes_penalties() -> None:
    wide = RewardRange(-1, 1)
    episode = read_episode([{"reward": -0.1, "type": "dense"}, {"reward": 1, "finished": True}], wide)
    assert settle_episode(episode, EpisodePolicy("sum"), reward_range=wide).reward == pytest.approx(0.9)
    bundle = read_episode([{"events": [{"reward": -0.5}], "reward": -0.25}], wide)
    assert settle_episode(bundle, reward_range=wide).reward == -0.25
    assert [event.reward for event in tool_output_events([{"reward": -0.5}], reward_range=wide)] == [-0.5]


def test_an_episode_leaves_canonical_files_with_its_response(tmp_path: Path) -> None:
    records = [{"reward": 1, "is_valid": True, "metadata": {"items": {"a": 0.5}, "events": [{"reward": 1}]}}]
    scored = settled(records, strategy="episode")
    write_reward(tmp_path, scored)
    document = json.loads((tmp_path / "reward.json").read_text())
    assert document["metadata"]["strategy"] == "episode"
    assert document["metadata"]["ors"]["metadata"]["items"][0] == {
        **document["metadata"]["ors"]["metadata"]["items"][0],
        "name": "a",
        "score": 0.5,
    }
    details = json.loads((tmp_path / "reward-details.json").read_text())
    assert details["aggregate"] == {"reward": 1.0, "method": "ors-terminal"}
    assert read_reward(tmp_path).reward == 1.0


def test_a_verdict_without_a_reward_is_no_zero_to_ors() -> None:
    response = ors_response(Unscored("judge", "verify", "timeout", "late"))
    assert response == {
        "reward": None,
        "is_valid": False,
        "metadata": {"items": [], "events": [], "error": "late"},
    }
    with pytest.raises(RewardError):
        read_episode([response])


@pytest.mark.parametrize(
    ("data", "name", "form", "count"),
    [
        (b'{"reward": 1}\n\n{"reward": 0}\n', "a.jsonl", "auto", 2),
        (b'{"reward": 1}', "a.json", "auto", 1),
        (b'[{"reward": 1}, {"reward": 1}]', "a.json", "auto", 2),
        (b'{"reward": 1}\n{"reward": 1}', "a.log", "jsonl", 2),
        (b'[{"reward": 1}]', "a.jsonl", "json", 1),
    ],
)
def test_records_are_lines_or_one_document(data: bytes, name: str, form: str, count: int) -> None:
    assert len(parse_records(data, name=name, form=form)) == count


@pytest.mark.parametrize(
    ("data", "name", "words"),
    [
        (b"", "a.jsonl", "no reward records"),
        (b"[]", "a.json", "no reward records"),
        (b"", "a.json", "is empty"),
        (b'{"reward": 1}\n{"rew', "a.jsonl", "line 2"),
        (b"1\n", "a.jsonl", "line 1"),
        (b"[1]", "a.json", "record 0"),
        (b'{"reward": 1}\n{"reward": 1}', "a.json", "not JSON"),
    ],
)
def test_a_broken_evidence_file_is_refused(data: bytes, name: str, words: str) -> None:
    with pytest.raises(RewardError, match=words) as caught:
        parse_records(data, name=name)
    assert caught.value.file == name
    assert (caught.value.code == "reward-missing") == ("no reward records" in words)
    assert caught.value.line == (2 if words == "line 2" else None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-1, 2) | st.sampled_from(["terminal", "step", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["reward", "events", "items", "metadata", "is_valid", "finished", "type", "output", "score"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(st.lists(json_values, min_size=1, max_size=4), st.sampled_from(AGGREGATIONS))
def test_any_records_settle_inside_the_unit_or_are_refused(records: list, method: str) -> None:
    try:
        parsed = parse_records(json.dumps(records).encode(), name="records.json")
        reward = settled(list(parsed), EpisodePolicy(method)).reward
    except RewardError:
        return
    assert 0 <= reward <= 1
