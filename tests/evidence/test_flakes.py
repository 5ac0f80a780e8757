"""The exact upper bound of a flake rate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.evidence.flakes import flake, runs_needed, upper_bound


@pytest.mark.parametrize(
    ("failures", "runs", "bound"),
    [(0, 3, 0.6316), (0, 59, 0.0495), (0, 60, 0.0487), (1, 20, 0.2161), (2, 10, 0.5069), (5, 5, 1.0), (0, 0, 1.0)],
)
def test_the_bound_is_the_one_of_clopper_and_pearson(failures, runs, bound):
    assert upper_bound(failures, runs) == pytest.approx(bound, abs=1e-4)


@given(st.integers(1, 300), st.data())
def test_at_the_bound_so_few_failures_have_a_probability_of_five_percent(runs, data):
    failures = data.draw(st.integers(0, runs - 1))
    rate = upper_bound(failures, runs)
    likely = sum(math.comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(failures + 1))
    assert likely == pytest.approx(0.05, abs=1e-6)
    assert upper_bound(failures + 1, runs) > rate


def test_fifty_nine_green_runs_show_five_percent_and_fifty_eight_do_not():
    assert runs_needed(0.05) == 59
    assert upper_bound(0, 59) <= 0.05 < upper_bound(0, 58)


def test_failures_are_counted_in_any_order():
    found = flake([True, False, True, True])
    assert (found.runs, found.failures) == (4, 1)


@pytest.mark.parametrize(("failures", "runs"), [(2, 1), (-1, 3)])
def test_impossible_counts_are_refused(failures, runs):
    with pytest.raises(ValueError, match="cannot have failed"):
        upper_bound(failures, runs)
