"""Which rewards a case may have."""

import pytest

from benchflow.record.evidence import Expected


@pytest.mark.parametrize(
    ("expected", "good", "bad"),
    [
        (Expected(reward_min=0.5), 0.5, 0.4),
        (Expected(reward_max=0.1), 0.1, 0.2),
        (Expected(reward_range=(0.2, 0.8)), 0.8, 0.9),
        (Expected(reward_range=(0.2, 0.8)), 0.2, 0.1),
        (Expected(reward_equals=0.3), 0.1 + 0.2, 0.31),
    ],
)
def test_a_reward_is_held_against_every_bound(expected, good, bad):
    assert expected.missed(good) == []
    assert len(expected.missed(bad)) == 1
    assert f"{bad:g}" in expected.missed(bad)[0]
