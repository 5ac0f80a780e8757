"""Means that state their denominator, and intervals that respect repeated attempts."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.evaluation.statistics import (
    Sample,
    bounds,
    mean,
    pass_at_k,
    pass_hat_k,
    proportion,
    summarise,
    t_quantile,
    wilson,
)
from benchflow.record import TaskId


def scored(task, reward, **metrics):
    return Sample(TaskId(task, None), reward, metrics)


def lost(task, category="infrastructure"):
    return Sample(TaskId(task, None), None, category=category)


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (9, 2.2622), (30, 2.0423), (1000, 1.9623)],
)
def test_t_quantiles_agree_with_the_tables(freedom, expected):
    assert t_quantile(0.975, freedom) == pytest.approx(expected, rel=2e-3)


def test_the_unit_of_a_mean_is_the_task():
    estimate = mean({"a": [1.0, 1.0, 1.0], "b": [0.0]})
    assert (estimate.value, estimate.tasks, estimate.results) == (0.5, 2, 4)


def test_more_attempts_at_the_same_tasks_do_not_make_an_interval_narrower():
    few = {"a": [1.0], "b": [0.0], "c": [1.0]}
    many = {task: values * 50 for task, values in few.items()}
    assert (mean(few).low, mean(few).high) == (mean(many).low, mean(many).high)
    assert (proportion(few).low, proportion(few).high) == pytest.approx((proportion(many).low, proportion(many).high))


def test_attempts_that_vary_freely_do():
    draw = random.Random(1)
    few = {str(task): [float(draw.random() < 0.5)] for task in range(40)}
    many = {str(task): [float(draw.random() < 0.5) for _ in range(25)] for task in range(40)}
    width = lambda e: e.high - e.low  # noqa: E731
    assert width(proportion(many)) < width(proportion(few)) / 2


def test_a_perfect_score_still_has_an_interval():
    estimate = proportion({str(task): [1.0] for task in range(10)})
    assert estimate.value == 1.0
    assert 0.6 < estimate.low < 0.8


def test_one_result_has_a_value_and_no_interval():
    assert mean({"a": [0.5]}).to_dict() == {"value": 0.5, "low": None, "high": None, "tasks": 1, "results": 1}


def test_nothing_is_not_zero():
    summary = summarise([])
    assert summary["mean_reward"]["value"] is None
    assert summary["pass_rate"]["value"] is None
    assert summary["mean_reward_bounds"] == {"low": None, "high": None}


def test_results_without_a_score_are_counted_and_bound_the_mean():
    outcomes = [scored("a", 1.0), lost("a"), scored("b", 0.0), lost("c", "judge")]
    summary = summarise(outcomes)
    assert (summary["total"], summary["scored"], summary["unscored"], summary["tasks"]) == (4, 2, 2, 3)
    assert summary["unscored_by"] == {"infrastructure": 1, "judge": 1}
    assert summary["mean_reward"]["value"] == 0.5
    assert summary["mean_reward_bounds"] == {"low": pytest.approx(0.5 / 3), "high": pytest.approx(2 / 3)}


def test_pass_at_k_and_pass_hat_k():
    counts = [(4, 1), (4, 4), (2, 0)]
    assert pass_at_k(counts, 1).value == pytest.approx((0.25 + 1 + 0) / 3)
    assert pass_at_k(counts, 2).value == pytest.approx((0.5 + 1 + 0) / 3)
    assert pass_hat_k(counts, 2).value == pytest.approx((0 + 1 + 0) / 3)
    assert pass_at_k(counts, 4).to_dict()["tasks"] == 2
    assert pass_at_k(counts, 5).value is None


def test_the_ks_go_up_to_the_attempts_made():
    summary = summarise([scored("a", reward) for reward in (1, 0, 1, 0, 0, 1)])
    assert list(summary["pass_at_k"]) == ["1", "2", "4", "6"]


def test_metrics_and_usage_are_summed_up():
    outcomes = [
        Sample(TaskId("a", None), 1.0, {"speed": 2.0}, usage={"tokens": 10, "cost_usd": 0.5}),
        Sample(TaskId("b", None), 1.0, {"speed": 4.0, "only": 1.0}, usage={"tokens": 5}),
        Sample(TaskId("b", None), None, category="agent", usage={"tokens": 1}),
    ]
    summary = summarise(outcomes)
    assert summary["metrics"]["speed"]["value"] == 3.0
    assert summary["metrics"]["only"]["tasks"] == 1
    assert summary["usage"] == {"cost_usd": 0.5, "tokens": 16}


RESULTS = st.lists(
    st.builds(
        lambda task, reward: lost(task) if reward is None else scored(task, reward),
        st.sampled_from("abcde"),
        st.none() | st.floats(0, 1),
    ),
    max_size=30,
)


@given(RESULTS)
def test_values_lie_between_their_bounds(outcomes):
    summary = summarise(outcomes)
    assert summary["scored"] + summary["unscored"] == summary["total"]
    low, high = bounds(outcomes)["low"], bounds(outcomes)["high"]
    if low is not None:
        assert 0 <= low <= high <= 1
    for name in ("mean_reward", "pass_rate"):
        estimate = summary[name]
        if estimate["low"] is not None:
            assert estimate["low"] <= estimate["value"] + 1e-12
            assert estimate["value"] <= estimate["high"] + 1e-12


@given(st.integers(0, 60), st.integers(1, 60), st.integers(1, 8))
def test_chances_are_chances_and_ordered(passes, attempts, k):
    counts = [(max(attempts, passes), passes)]
    at, hat = pass_at_k(counts, k), pass_hat_k(counts, k)
    if at.value is not None:
        assert 0 <= hat.value <= at.value <= 1


@given(st.floats(0, 1), st.floats(1, 1000))
def test_a_wilson_interval_holds_its_share(share, size):
    low, high = wilson(share, size)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1
    assert not math.isnan(low + high)
