"""Means that state their denominator, and intervals that respect repeated attempts."""

import json
import math
import random
from dataclasses import astuple

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
from benchflow.record import Bounds, Estimate, TaskId
from benchflow.record.codec import plain


def scored(task, reward, who="", **metrics):
    return Sample(TaskId(task, None), reward, metrics, who=who)


def lost(task, category="infrastructure"):
    return Sample(TaskId(task, None), None, category=category)


T_TABLE = [
    (1, 0.975, 12.70620473617, 1e-11),
    (1, 0.9, 3.07768353718, 1e-11),
    (2, 0.975, 4.30265272975, 1e-11),
    (2, 0.9, 1.88561808316, 1e-11),
    (3, 0.975, 3.18244630528, 1e-6),
    (3, 0.995, 5.84090930973, 2e-8),
    (3, 0.9, 1.63774435370, 7e-7),
    (3, 0.6, 0.27667066233, 2e-7),
    (4, 0.975, 2.77644510520, 3e-8),
    (4, 0.995, 4.60409487135, 5e-7),
    (4, 0.9, 1.53320627406, 2e-7),
    (4, 0.6, 0.27072229471, 5e-8),
    (5, 0.975, 2.57058183564, 6e-8),
    (5, 0.995, 4.03214298356, 4e-6),
    (5, 0.9, 1.47588404882, 1e-8),
    (6, 0.975, 2.44691185114, 4e-8),
    (6, 0.9, 1.43975574727, 1e-8),
    (9, 0.975, 2.26215716280, 1e-8),
    (9, 0.9, 1.38302873840, 1e-9),
    (30, 0.975, 2.04227245630, 1e-10),
    (30, 0.995, 2.74999565357, 1e-10),
    (1000, 0.975, 1.96233908083, 1e-11),
]
"""Degrees of freedom, probability, quantile, and how exact the expansion is there."""


@pytest.mark.parametrize(("freedom", "probability", "expected", "exact"), T_TABLE)
def test_t_quantiles_agree_with_the_tables(freedom, probability, expected, exact):
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=exact)


@pytest.mark.parametrize(
    ("share", "size", "low", "high"),
    [(0.5, 10, 0.236593, 0.763407), (1.0, 10, 0.722467, 1.0), (0.0, 10, 0.0, 0.277533), (0.4, 20, 0.218807, 0.613419)],
)
def test_wilson_intervals_agree_with_the_tables(share, size, low, high):
    assert wilson(share, size) == pytest.approx((low, high), abs=1e-6)


def test_rounding_leads_no_interval_out_of_its_range():
    assert max(wilson(1.0, size)[1] for size in range(1, 400)) == 1.0
    assert min(wilson(0.0, size)[0] for size in range(1, 400)) == 0.0


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_rate_of_nothing_or_everything_counts_tasks_and_not_attempts(rate):
    estimate = proportion({str(task): [rate] * 50 for task in range(10)})
    assert (estimate.low, estimate.high) == wilson(rate, 10)
    assert (estimate.tasks, estimate.results) == (10, 500)


def test_a_rate_of_one_task_counts_as_one():
    estimate = proportion({"a": [1.0, 0.0, 1.0, 0.0]})
    assert (estimate.value, estimate.low, estimate.high) == (0.5, *wilson(0.5, 1))


def test_tasks_of_one_rate_do_not_show_that_attempts_say_more():
    estimate = proportion({"a": [1.0, 0.0], "b": [0.0, 1.0]})
    assert (estimate.low, estimate.high) == wilson(0.5, 2)


@pytest.mark.parametrize(
    ("by_task", "size"),
    [
        ({"a": [1.0] * 4, "b": [0.0] * 4, "c": [1.0] * 4}, 3),
        ({"a": [1.0, 1.0, 1.0, 0.0], "b": [0.0, 0.0, 0.0, 1.0]}, 4),
        ({"a": [1.0, 1.0, 0.0], "b": [1.0, 0.0, 0.0]}, 6),
        ({"a": [1.0] * 9 + [0.0], "b": [1.0] * 6 + [0.0] * 4}, 8.333333333),
    ],
)
def test_the_size_of_a_sample_is_what_the_spread_of_tasks_leaves_of_it(by_task, size):
    estimate = proportion(by_task)
    assert (estimate.low, estimate.high) == pytest.approx(wilson(estimate.value, size))


def test_the_interval_of_a_mean_is_students():
    estimate = mean({"a": [0.0, 0.0], "b": [1.0], "c": [1.0]})
    half = 4.30265273 * math.sqrt((4 + 1 + 1) / 9 / 2 / 3)
    assert (estimate.low, estimate.high) == pytest.approx((2 / 3 - half, 2 / 3 + half))
    assert (estimate.tasks, estimate.results) == (3, 4)


def test_an_interval_leaves_out_what_no_reward_can_be():
    within = summarise([scored("a", 0.0), scored("b", 1.0), scored("c", 1.0)]).mean_reward
    assert (within.low, within.high) == (0.0, 1.0)
    few = summarise([scored("a", 0.4), scored("b", 0.6)]).mean_reward
    assert (few.low, few.high) == (0.0, 1.0)
    wider = summarise([scored("a", -1.0), scored("b", 2.0), scored("c", 2.0)]).mean_reward
    assert (wider.low, wider.high) == (-1.0, 2.0)
    narrow = summarise([scored(str(task), 0.5 + 0.01 * (task % 2)) for task in range(20)]).mean_reward
    assert 0.5 < narrow.low < narrow.value < narrow.high < 0.51
    assert (within.tasks, within.results) == (3, 3)


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
    assert mean({"a": [0.5]}) == Estimate(0.5, None, None, 1, 1)


def test_nothing_is_not_zero():
    summary = summarise([])
    assert summary.mean_reward.value is None
    assert summary.pass_rate.value is None
    assert summary.mean_reward_bounds == Bounds(None, None)
    assert (summary.pass_at_k, summary.pass_hat_k) == ({}, {})
    assert proportion({}) == mean({}) == Estimate(None, None, None, 0, 0)


def test_results_without_a_score_are_counted_and_bound_the_mean():
    outcomes = [scored("a", 1.0), lost("a"), scored("b", 0.0), lost("c", "judge")]
    summary = summarise(outcomes)
    assert (summary.total, summary.scored, summary.unscored, summary.tasks) == (4, 2, 2, 3)
    assert summary.unscored_by == {"infrastructure": 1, "judge": 1}
    assert summary.mean_reward.value == 0.5
    assert astuple(summary.mean_reward_bounds) == pytest.approx((0.5 / 3, 2 / 3))


def test_pass_at_k_and_pass_hat_k():
    counts = [((4, 1),), ((4, 4),), ((2, 0),)]
    assert pass_at_k(counts, 1).value == pytest.approx((0.25 + 1 + 0) / 3)
    assert pass_at_k(counts, 2).value == pytest.approx((0.5 + 1 + 0) / 3)
    assert pass_hat_k(counts, 2).value == pytest.approx((0 + 1 + 0) / 3)
    assert pass_at_k(counts, 4).tasks == 2
    assert pass_at_k(counts, 5).value is None


def test_attempts_by_others_are_no_repetitions_and_count_within_their_task():
    """Two that never pass, one that always does: a chance of a third, however many attempts each has."""
    by = [scored("a", reward, who=who) for who, reward in (("x", 0.0), ("y", 0.0), ("z", 1.0)) for _ in range(2)]
    summary = summarise(by)
    assert (summary.tasks, list(summary.pass_at_k)) == (1, ["1", "2"])
    assert summary.pass_at_k["2"] == Estimate(pytest.approx(1 / 3), None, None, 1, 6)


def test_chances_have_intervals_that_are_chances():
    counts = [((4, 1),), ((4, 4),), ((4, 0),)]
    at = pass_at_k(counts, 2)
    assert (at.low, at.high, at.tasks, at.results) == (0.0, 1.0, 3, 12)
    near = pass_hat_k([((10, 5),), ((10, 6),)] * 10, 1)
    assert 0.5 < near.low < near.value < near.high < 0.6
    assert pass_at_k([((4, 1),)], 1) == Estimate(0.25, None, None, 1, 4)


@pytest.mark.parametrize(
    ("attempts", "ks"),
    [(1, ["1"]), (2, ["1", "2"]), (3, ["1", "2", "3"]), (4, ["1", "2", "4"]), (6, ["1", "2", "4", "6"])],
)
def test_the_ks_go_up_to_the_attempts_made(attempts, ks):
    summary = summarise([scored("a", 1.0) for _ in range(attempts)] + [scored("b", 0.0)])
    assert list(summary.pass_at_k) == list(summary.pass_hat_k) == ks


def test_a_reward_from_the_threshold_on_is_a_pass():
    outcomes = [scored("a", 0.5), scored("b", 0.49), scored("c", -1.0), lost("d")]
    summary = summarise(outcomes, pass_threshold=0.5)
    assert (summary.pass_threshold, summary.pass_rate.value) == (0.5, pytest.approx(1 / 3))
    assert summary.pass_at_k["1"].value == summary.pass_hat_k["1"].value == pytest.approx(1 / 3)
    assert summarise(outcomes).pass_rate.value == 0.0
    assert summarise([scored("a", 0.0)]).pass_rate.value == 0.0
    assert summarise([lost("d", None)]).unscored_by == {"infrastructure": 1}


def test_metrics_and_usage_are_summed_up():
    outcomes = [
        Sample(TaskId("a", None), 1.0, {"speed": 2.0}, usage={"tokens": 10, "cost_usd": 0.5}),
        Sample(TaskId("b", None), 1.0, {"speed": 4.0, "only": 1.0}, usage={"tokens": 5}),
        Sample(TaskId("b", None), None, category="agent", usage={"tokens": 1}),
    ]
    summary = summarise(outcomes)
    assert summary.metrics["speed"].value == 3.0
    assert summary.metrics["only"].tasks == 1
    assert summary.usage == {"cost_usd": 0.5, "tokens": 16}


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
    assert summary.scored + summary.unscored == summary.total
    low, high = astuple(bounds(outcomes))
    if low is not None:
        assert 0 <= low <= high <= 1
    for name in ("mean_reward", "pass_rate"):
        estimate = getattr(summary, name)
        if estimate.low is not None:
            assert estimate.low <= estimate.value + 1e-12
            assert estimate.value <= estimate.high + 1e-12


@given(st.integers(0, 60), st.integers(1, 60), st.integers(1, 8))
def test_chances_are_chances_and_ordered(passes, attempts, k):
    counts = [((max(attempts, passes), passes),)]
    at, hat = pass_at_k(counts, k), pass_hat_k(counts, k)
    if at.value is not None:
        assert 0 <= hat.value <= at.value <= 1


@given(st.floats(0, 1), st.floats(1, 1000))
def test_a_wilson_interval_holds_its_share(share, size):
    low, high = wilson(share, size)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1
    assert not math.isnan(low + high)


@pytest.mark.parametrize("values", [[1.0], [0.0, 1.0], [0.5] * 20])
def test_what_one_task_says_of_others_is_not_known(values):
    estimate = mean({"a": values})
    assert (estimate.low, estimate.high, estimate.tasks, estimate.results) == (None, None, 1, len(values))
    summary = summarise([scored("a", value) for value in values])
    assert (summary.mean_reward.low, summary.mean_reward.high) == (None, None)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("tasks", [1, 3])
def test_a_rate_of_none_or_all_counts_tasks_and_not_attempts(value, tasks):
    once = proportion({str(task): [value] for task in range(tasks)})
    often = proportion({str(task): [value] * 50 for task in range(tasks)})
    assert (often.low, often.high) == (once.low, once.high) == pytest.approx(wilson(value, tasks))
    assert often.high - often.low > 0.4


def test_a_total_of_usage_too_large_for_json_is_left_out():
    samples = [Sample(TaskId(task, None), 1.0, usage={"tokens": 1.7e308, "calls": 1}) for task in "ab"]
    assert summarise(samples).usage == {"calls": 2}


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_tasks_that_all_agree_do_not_make_a_mean_certain(value):
    estimate = summarise([scored(str(task), value) for task in range(10)]).mean_reward
    assert (estimate.low, estimate.high) == pytest.approx(wilson(value, 10))
    wide = mean({str(task): [4 * value - 2] for task in range(10)}, (-2, 2))
    assert (wide.low, wide.high) == pytest.approx(tuple(4 * end - 2 for end in wilson(value, 10)))


def test_means_that_differ_by_rounding_only_are_equal():
    sums = {"a": [0.1, 0.2, 0.3], "b": [0.3, 0.1, 0.2], "c": [0.2 + 1e-16] * 3}
    assert (mean(sums, (0, 1)).low, mean(sums, (0, 1)).high) == pytest.approx(wilson(0.2, 3))


def test_equal_values_without_a_range_have_no_interval():
    estimate = summarise([scored(str(task), 1.0, speed=7.0) for task in range(10)]).metrics["speed"]
    assert estimate == Estimate(7.0, None, None, 10, 10)


HUGE = [1.7e308, 1.7e308, -1.7e308, 1e308]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_huge_rewards_have_finite_statistics(count):
    outcomes = [scored(str(task % 3), HUGE[task], speed=HUGE[task]) for task in range(count)]
    json.dumps(plain(summarise(outcomes)), allow_nan=False)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(allow_nan=False, allow_infinity=False)), max_size=6))
def test_statistics_of_any_rewards_are_finite(values):
    json.dumps(plain(summarise([scored(task, value, m=value) for task, value in values])), allow_nan=False)
