"""Which numbers are rewards, how far two of them may be apart, and what a range does at its edges."""

from __future__ import annotations

import math

import pytest

from benchflow.errors import PackageError
from benchflow.rewards import RewardError, RewardRange
from benchflow.rewards.numbers import TOLERANCE, agree, finite, shown

UNIT = RewardRange(0.0, 1.0)


@pytest.mark.parametrize("value", [True, False, None, "1", [1], math.nan, math.inf, -math.inf, 10**400, 1j])
def test_what_is_not_a_finite_number_has_no_value(value):
    assert finite(value) is None


def test_a_negative_zero_becomes_zero():
    assert math.copysign(1, finite(-0.0)) == 1.0


def test_two_rewards_agree_up_to_the_tolerance():
    assert agree(TOLERANCE, 0.0)
    assert agree(0.0, TOLERANCE)
    assert not agree(0.5, 0.5 + 2 * TOLERANCE)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.0, 2.0), (-1, 1)])
def test_a_range_may_be_the_unit_or_wider(low, high):
    wide = RewardRange(low, high)
    assert (wide.take(low, "reward"), wide.take(high, "reward")) == (low, high)


@pytest.mark.parametrize(("low", "high"), [(0.1, 1), (0, 0.9), (math.nan, 1), (0, math.inf), ("0", 1), (0, None)])
def test_a_narrower_or_broken_range_is_refused_at_its_key(low, high):
    with pytest.raises(PackageError, match=r"reward_range") as caught:
        RewardRange(low, high)
    assert str(caught.value).endswith(repr([low, high]))
    assert (caught.value.code, caught.value.path) == ("invalid-value", "verifier.reward_range")


@pytest.mark.parametrize("value", ["1", math.nan, -0.001, 1.001, 1 + TOLERANCE, -TOLERANCE])
def test_a_reported_number_outside_the_range_is_refused_by_name(value):
    with pytest.raises(RewardError, match=r"^metrics\.speed ") as caught:
        UNIT.take(value, "metrics.speed")
    assert caught.value.path == "metrics.speed"


@pytest.mark.parametrize(
    ("computed", "reward"),
    [
        (-TOLERANCE, 0.0),
        (-TOLERANCE / 2, 0.0),
        (1 + TOLERANCE / 2, 1.0),
        (1.0 + TOLERANCE, 1.0),
        (TOLERANCE / 2, TOLERANCE / 2),
        (1 - TOLERANCE / 2, 1 - TOLERANCE / 2),
        (0.5, 0.5),
    ],
)
def test_a_computed_number_loses_its_rounding_error_at_the_edges_only(computed, reward):
    assert UNIT.settle(computed, "the mean") == reward


@pytest.mark.parametrize("computed", [1 + 3 * TOLERANCE, -3 * TOLERANCE, 7.0, -7.0, math.nan, math.inf])
def test_a_computed_number_further_outside_is_refused_by_name(computed):
    with pytest.raises(RewardError, match="^the mean is ") as caught:
        UNIT.settle(computed, "the mean")
    assert caught.value.path == "the mean"


def test_a_value_is_shown_whole_up_to_sixty_characters():
    fits, too_long = "x" * 58, "x" * 59
    assert shown(fits) == repr(fits)
    assert shown(too_long) == repr(too_long)[:57] + "..."
    assert len(shown(too_long)) == len(shown(fits)) == 60


def test_an_integer_that_python_refuses_to_print_is_described():
    assert shown(10**5000) == "a number with too many digits"
