from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import InfrastructureFailure, Issue
from benchflow.rewards import (
    Factor,
    RewardError,
    RewardEvent,
    RewardItem,
    Scored,
    Unscored,
    verdict_from_dict,
)
from benchflow.rewards.verdict import CATEGORIES, GRANULARITIES, PHASES, SPACES

words = st.text(min_size=1, max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
payloads = st.dictionaries(words, st.none() | st.booleans() | numbers | words, max_size=3)

items = st.builds(
    RewardItem,
    words,
    st.floats(0, 1),
    st.sampled_from(SPACES),
    st.none() | words,
    st.none() | numbers,
    st.booleans(),
)
events = st.builds(
    RewardEvent,
    words,
    st.none() | numbers,
    words,
    step=st.none() | st.integers(0, 99),
    space=st.sampled_from(SPACES),
    granularity=st.sampled_from(GRANULARITIES),
    finished=st.booleans(),
)
factors = st.builds(Factor, words, words, numbers, st.none() | numbers)
issues = st.builds(Issue, words, st.sampled_from(["error", "warning"]), words, words)
scored = st.builds(
    Scored,
    numbers,
    metrics=st.dictionaries(words, numbers, max_size=3),
    items=st.lists(items, max_size=2).map(tuple),
    events=st.lists(events, max_size=2).map(tuple),
    factors=st.lists(factors, max_size=2).map(tuple),
    document=payloads,
    details=st.none() | payloads,
    diagnostics=st.lists(issues, max_size=2).map(tuple),
)
unscored = st.builds(Unscored, st.sampled_from(CATEGORIES), st.sampled_from(PHASES), words, words)


@given(scored | unscored)
def test_a_verdict_survives_its_record_and_a_pickle(verdict: Scored | Unscored) -> None:
    record = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert verdict_from_dict(record) == verdict
    assert verdict_from_dict(record).to_dict() == record
    assert pickle.loads(pickle.dumps(verdict)) == verdict
    assert copy.deepcopy(verdict) == verdict


@given(scored | unscored)
def test_a_verdict_is_scored_with_a_number_or_unscored_with_an_error(verdict: Scored | Unscored) -> None:
    record = verdict.record()
    assert set(record) == {"status", "reward", "rewards", "error"}
    assert (record["status"] == "scored") == (record["reward"] is not None) == (record["error"] is None)
    if record["error"] is None:
        assert record["rewards"].keys() >= {"reward", *verdict.metrics}
    else:
        assert set(record["error"]) == {"category", "code", "phase", "message"}
        assert record["rewards"] == {}


@pytest.mark.parametrize("reward", [None, True, "1", float("nan"), float("inf"), 10**400])
def test_nothing_but_a_finite_number_is_a_reward(reward: object) -> None:
    with pytest.raises(RewardError, match="finite number") as caught:
        Scored(reward)
    assert caught.value.path == "reward"


def test_a_verdict_cannot_be_changed() -> None:
    metrics = {"a": 1.0}
    verdict = Scored(1.0, metrics=metrics)
    metrics["a"] = 0.0
    assert verdict.metrics == {"a": 1.0}
    with pytest.raises(TypeError):
        verdict.metrics["a"] = 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.reward = 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        Unscored("agent", "agent", "timeout", "late").category = "judge"


def test_without_a_document_one_is_made_of_what_is_known() -> None:
    verdict = Scored(0.5, metrics={"a": 0.5}, items=(RewardItem("style", 0.5, reason="terse"),))
    assert verdict.document == {
        "reward": 0.5,
        "metrics": {"a": 0.5},
        "rubric": [{"name": "style", "score": 0.5, "space": "output", "reason": "terse"}],
    }


def test_an_item_without_a_reason_states_none() -> None:
    verdict = Scored(0.5, items=(RewardItem("style", 0.5),))
    assert verdict.document["rubric"] == [{"name": "style", "score": 0.5, "space": "output"}]


def test_the_document_states_the_settled_reward_first() -> None:
    verdict = Scored(1, document={"evidence": [], "reward": 0.3})
    assert list(verdict.document.items()) == [("reward", 1.0), ("evidence", [])]


@pytest.mark.parametrize(
    ("category", "phase", "code", "reason"),
    [
        ("user", "agent", "timeout", "late"),
        ("agent", "cleanup", "timeout", "late"),
        ("agent", "agent", "", "late"),
        ("agent", "agent", "timeout", ""),
    ],
)
def test_an_unscored_verdict_names_one_boundary_a_code_and_a_reason(
    category: str, phase: str, code: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=r"not a boundary|needs a code"):
        Unscored(category, phase, code, reason)


@given(
    st.dictionaries(st.sampled_from(["status", "reward", "error", "metrics"]), st.none() | words | st.integers())
    | unscored.map(lambda verdict: {**verdict.to_dict(), "error": None})
    | scored.map(lambda verdict: {**verdict.to_dict(), "reward": None})
)
def test_what_is_no_verdict_is_refused_when_read(record: dict) -> None:
    with pytest.raises(InfrastructureFailure) as caught:
        verdict_from_dict(record)
    assert caught.value.code == "record-invalid"
