"""Perturbed verifications: what is different, and what is said when it cannot be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.verifier.perturbation import other_day, other_locale


@given(st.integers(0, 23))
def test_the_other_time_zone_is_always_on_another_day(hour):
    _, rule = other_day(hour)
    east = -int(rule.partition(">")[2])
    assert not 0 <= hour + east < 24


@pytest.mark.parametrize(
    ("available", "current", "expected"),
    [
        (["C", "C.utf8", "POSIX"], "C", "C.utf8"),
        (["C", "C.utf8", "POSIX"], "C.UTF-8", "C"),
        (["C", "POSIX"], "C", None),
        (["C", "C.utf8", "de_DE", "tr_TR.utf8"], "C.UTF-8", "tr_TR.utf8"),
        (["C", "de_DE.utf8"], "de_DE.UTF-8", "C"),
        ([], "C", None),
    ],
)
def test_the_other_locale_is_one_that_exists_and_differs(available, current, expected):
    assert other_locale(available, current) == expected
