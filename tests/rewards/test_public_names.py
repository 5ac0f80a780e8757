from __future__ import annotations

import benchflow.rewards


def test_everything_that_is_offered_can_be_imported_and_nothing_else() -> None:
    assert len(set(benchflow.rewards.__all__)) == len(benchflow.rewards.__all__)
    for name in benchflow.rewards.__all__:
        assert getattr(benchflow.rewards, name) is not None
    assert not hasattr(benchflow.rewards, "Nothing")
