from __future__ import annotations

import benchflow.rewards


def test_all_is_exactly_what_can_be_imported() -> None:
    names = {
        name
        for name, value in vars(benchflow.rewards).items()
        if not name.startswith("_") and not getattr(value, "__spec__", None)
    }
    assert names - {"aggregate", "gain"} == set(benchflow.rewards.__all__) - {"aggregate", "gain"}
    assert callable(benchflow.rewards.aggregate)
    assert callable(benchflow.rewards.gain)
