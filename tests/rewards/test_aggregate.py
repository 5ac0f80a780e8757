from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import PackageError
from benchflow.rewards import AggregatePolicy, RewardError, RewardRange, aggregate, parse_policy
from benchflow.rewards.aggregate import METHODS

scores = st.floats(0, 1)
names = st.text(min_size=1, max_size=5)
metric_maps = st.dictionaries(names, scores, min_size=1, max_size=8)
weights = st.floats(0, 1e308)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("mean", 0.5),
        ("weighted_mean", 0.6),
        ("weighted_sum", 0.6),
        ("all_pass", 0.0),
        ("any_pass", 1.0),
        ("required_pass", 0.0),
        ("threshold", 0.0),
        ("min", 0.0),
        ("max", 1.0),
        ("product", 0.0),
    ],
)
def test_each_method_on_one_example(method: str, expected: float) -> None:
    metrics = {"a": 1.0, "b": 0.5, "c": 0.0}
    policy = AggregatePolicy(method, weights={"a": 0.4, "b": 0.4, "c": 0.2})
    assert policy.apply(metrics) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("method", "metrics", "options", "expected"),
    [
        ("all_pass", {"a": 0.5, "b": 1.0}, {}, 1.0),
        ("all_pass", {"a": 0.499, "b": 1.0}, {}, 0.0),
        ("any_pass", {"a": 0.499, "b": 0.0}, {}, 0.0),
        ("any_pass", {"a": 0.5, "b": 0.0}, {}, 1.0),
        ("required_pass", {"a": 1.0, "b": 0.99}, {}, 0.0),
        ("required_pass", {"a": 1.0, "b": 0.0}, {"weights": {"a": 1, "b": 0}}, 1.0),
        ("required_pass", {"a": 0.0, "b": 1.0}, {"weights": {"a": 1, "b": 0}}, 0.0),
        ("threshold", {"a": 0.7}, {}, 1.0),
        ("threshold", {"a": 0.69}, {}, 0.0),
        ("threshold", {"a": 0.1, "b": 0.7}, {"threshold": 0.4}, 1.0),
        ("threshold", {"a": 1.0, "b": 0.0}, {"threshold": 0.5}, 1.0),
        ("threshold", {"a": 1.0, "b": 0.0}, {"threshold": 0.5, "weights": {"a": 1, "b": 3}}, 0.0),
        ("threshold", {"a": 0.0}, {"threshold": 0.0}, 1.0),
        ("weighted_mean", {"a": 1.0, "b": 0.0}, {}, 0.5),
        ("weighted_mean", {"a": 1.0, "b": 0.0}, {"weights": {"a": 0, "b": 5}}, 0.0),
        ("weighted_mean", {"a": 1.0, "b": 0.0}, {"weights": {"a": 1e308, "b": 1e308}}, 0.5),
        ("product", {"a": 0.5, "b": 0.5}, {}, 0.25),
    ],
)
def test_edges_of_the_methods(method: str, metrics: dict, options: dict, expected: float) -> None:
    assert aggregate(method, metrics, **options) == expected


@given(metric_maps, st.data())
def test_a_reward_of_unit_metrics_is_inside_their_bounds(metrics: dict[str, float], data: st.DataObject) -> None:
    given_weights = {name: data.draw(weights) for name in metrics}
    low, high = min(metrics.values()), max(metrics.values())
    for method in ("mean", "min", "max"):
        assert low <= aggregate(method, metrics) <= high
    if any(given_weights.values()):
        assert low <= aggregate("weighted_mean", metrics, weights=given_weights) <= high
    assert 0 <= aggregate("product", metrics) <= low
    for method in ("all_pass", "any_pass", "threshold"):
        assert aggregate(method, metrics) in (0.0, 1.0)


@given(metric_maps)
def test_the_methods_agree_where_they_must(metrics: dict[str, float]) -> None:
    even = dict.fromkeys(metrics, 1.0)
    assert aggregate("weighted_mean", metrics, weights=even) == pytest.approx(aggregate("mean", metrics))
    assert aggregate("weighted_mean", metrics) == pytest.approx(aggregate("mean", metrics))
    assert aggregate("weighted_sum", metrics, weights=even) == pytest.approx(math.fsum(metrics.values()))
    assert aggregate("all_pass", metrics) == float(aggregate("min", metrics) >= 0.5)
    assert aggregate("any_pass", metrics) == float(aggregate("max", metrics) >= 0.5)


@given(metric_maps, st.sampled_from(METHODS), st.randoms(use_true_random=False))
def test_the_order_of_metrics_does_not_matter(metrics: dict[str, float], method: str, random: object) -> None:
    shuffled = list(metrics.items())
    random.shuffle(shuffled)
    even = dict.fromkeys(metrics, 0.5)
    assert aggregate(method, dict(shuffled), weights=even) == pytest.approx(aggregate(method, metrics, weights=even))


@given(metric_maps, st.sets(names, min_size=1, max_size=8))
def test_metrics_must_be_exactly_the_declared_criteria(metrics: dict[str, float], declared: set[str]) -> None:
    policy = AggregatePolicy("mean", criteria=tuple(declared))
    if declared == set(metrics):
        assert 0 <= policy.apply(metrics) <= 1
    else:
        with pytest.raises(RewardError, match="do not match the declared criteria"):
            policy.apply(metrics)


@given(metric_maps, st.sets(names, min_size=1, max_size=8))
def test_weights_must_be_exactly_those_of_the_metrics(metrics: dict[str, float], weighted: set[str]) -> None:
    policy = AggregatePolicy("weighted_mean", weights=dict.fromkeys(weighted, 1.0))
    if weighted == set(metrics):
        assert 0 <= policy.apply(metrics) <= 1
    else:
        with pytest.raises(RewardError, match="do not match the weights"):
            policy.apply(metrics)


def test_no_metrics_have_no_reward() -> None:
    for method in METHODS:
        with pytest.raises(RewardError, match="no metrics"):
            aggregate(method, {}, weights={})


def test_a_sum_that_overflows_is_refused() -> None:
    with pytest.raises(RewardError, match="weighted_sum .*overflows") as caught:
        AggregatePolicy("weighted_sum", weights={"a": 1e308, "b": 1e308}).apply({"a": 1.0, "b": 1.0})
    assert caught.value.path == "metrics"


def test_the_package_wins_and_the_map_fills_what_it_leaves_open() -> None:
    declared = parse_policy({"method": "threshold", "threshold": 0.9})
    own = parse_policy({"method": "mean", "threshold": 0.1, "weights": {"a": 1, "b": 3}})
    merged = declared.over(own)
    assert merged.to_dict() == {"method": "threshold", "threshold": 0.9, "weights": {"a": 1.0, "b": 3.0}}
    assert merged.apply({"a": 0.0, "b": 1.0}) == 0.0


def test_a_policy_keeps_what_it_says_and_takes_everything_else() -> None:
    full = AggregatePolicy("mean", {"a": 1.0}, 0.25, ("a",), "min")
    other = AggregatePolicy("max", {"b": 2.0}, 0.75, ("b",), "product")
    assert full.over(other) == full
    assert AggregatePolicy().over(other) == other
    assert full.over(None) is full


WRONG = {
    "a list": ([], "", "must be a mapping, not []"),
    "an unknown key": ({"treshold": 1}, ".treshold", "criteria, fallback,"),
    "another field": ({"field": "score"}, ".field", "must be 'reward', not 'score'"),
    "another primary": ({"primary": "score"}, ".primary", "must be 'reward', not 'score'"),
    "no such method": ({"method": "median"}, "", "mean, weighted_mean,"),
    "a method that is a number": ({"method": 1}, "", "not 1"),
    "no such fallback": ({"fallback": "median"}, "", "not 'median'"),
    "weights of nothing": ({"weights": {}}, "", "weights must map"),
    "weights as a list": ({"weights": [1]}, "", "weights must map"),
    "a weight below 0": ({"weights": {"a": -0.1}}, "", "the weight of 'a'"),
    "a weight that is true": ({"weights": {"a": True}}, "", "the weight of 'a'"),
    "a weight of a number": ({"weights": {1: 1}}, "", "the weight of 1"),
    "a threshold above 1": ({"threshold": 1.1}, "", "the threshold"),
    "a threshold below 0": ({"threshold": -0.1}, "", "the threshold"),
    "a threshold as a text": ({"threshold": "1"}, "", "the threshold"),
    "criteria as a text": ({"criteria": "ab"}, "", "criteria must be a list"),
    "no criteria": ({"criteria": []}, "", "criteria must be a list"),
    "a criterion without a name": ({"criteria": ["a", ""]}, "", "criteria must be a list"),
    "a criterion that is a number": ({"criteria": ["a", 1]}, "", "criteria must be a list"),
    "a criterion twice": ({"criteria": ["a", "a"]}, "", "criteria must be unique"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_policy_is_refused_at_its_key(case: str) -> None:
    value, key, words = WRONG[case]
    with pytest.raises(PackageError) as caught:
        parse_policy(value, path="outputs.aggregate_policy", file="verifier.md")
    assert (caught.value.path, caught.value.file) == (f"outputs.aggregate_policy{key}", "verifier.md")
    assert caught.value.code == "invalid-aggregate"
    assert str(caught.value).startswith(f"outputs.aggregate_policy{key if 'unknown' not in case else ''}")
    assert words in str(caught.value)


def test_a_policy_may_name_the_reward_as_its_field_and_the_ends_of_a_threshold() -> None:
    policy = parse_policy({"field": "reward", "primary": "reward", "threshold": 0, "weights": {"a": 0}})
    assert (policy.threshold, policy.weights) == (0.0, {"a": 0.0})
    assert parse_policy({"threshold": 1, "criteria": ("a",)}).criteria == ("a",)
    assert parse_policy({}) == AggregatePolicy()


NO_REWARD = {
    "no method": (AggregatePolicy(), {"a": 1.0}, "aggregate.method", "no aggregate method"),
    "no metrics": (AggregatePolicy("mean"), {}, "metrics", "mean"),
    "a sum without weights": (AggregatePolicy("weighted_sum"), {"a": 1.0}, "aggregate.weights", "weighted_sum"),
    "weights of nothing": (AggregatePolicy("weighted_mean", {"a": 0.0}), {"a": 1.0}, "aggregate.weights", "up to 0"),
    "other weights": (AggregatePolicy("mean", {"b": 1.0}), {"a": 1.0}, "metrics", "missing ['b']; not declared ['a']"),
    "a criterion missing": (AggregatePolicy("mean", criteria=("a", "b")), {"a": 1.0}, "metrics", ": missing ['b']"),
    "a metric too many": (
        AggregatePolicy("mean", criteria=("a",)),
        {"a": 1.0, "b": 1.0},
        "metrics",
        ": not declared ['b']",
    ),
    "a sum above the range": (
        AggregatePolicy("weighted_sum", {"a": 2.0}),
        {"a": 1.0},
        "the weighted_sum of the metrics",
        "outside",
    ),
}


@pytest.mark.parametrize("case", NO_REWARD)
def test_metrics_without_a_reward_are_refused_at_their_key(case: str) -> None:
    policy, metrics, path, words = NO_REWARD[case]
    with pytest.raises(RewardError) as caught:
        policy.apply(metrics)
    assert caught.value.path == path
    assert words in str(caught.value)


def test_a_wider_range_takes_a_larger_sum() -> None:
    assert AggregatePolicy("weighted_sum", {"a": 2.0}).apply({"a": 1.0}, RewardRange(0, 2)) == 2.0


def test_the_fallback_yields_to_a_method_of_the_map() -> None:
    assert parse_policy({"fallback": "min"}).over(parse_policy({"method": "max"})).effective_method == "max"
    assert parse_policy({"fallback": "min"}).effective_method == "min"


@given(
    st.fixed_dictionaries(
        {"method": st.sampled_from(METHODS)},
        optional={
            "weights": st.dictionaries(names, weights, min_size=1, max_size=4),
            "threshold": scores,
            "criteria": st.lists(names, min_size=1, max_size=4, unique=True),
        },
    )
)
def test_a_policy_survives_its_record(record: dict) -> None:
    policy = parse_policy(record)
    assert policy.to_dict() == record
    assert parse_policy(policy.to_dict()) == policy


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
policy_like = st.dictionaries(
    st.sampled_from(["method", "weights", "threshold", "criteria", "field", "x"]), json_values
)


@given(policy_like | json_values)
def test_any_value_is_a_policy_or_one_clear_error(value: object) -> None:
    try:
        policy = parse_policy(value, path="outputs.aggregate_policy", file="verifier.md")
    except PackageError as error:
        found = error.issue()
    else:
        assert policy.method is None or policy.method in METHODS
        return
    assert (found.code, found.file) == ("invalid-aggregate", "verifier.md")
    assert found.path.startswith("outputs.aggregate_policy")
