"""The script contract: reward files, exit codes, freshness, time and output limits."""

from __future__ import annotations

import pytest

from benchflow.rewards import Scored, Unscored

pytestmark = pytest.mark.anyio


async def test_a_solution_scores_and_none_does_not(bench, package):
    async with bench(package()) as it:
        assert (await it.verify()).verdict.reward == 0
        await it.agent("echo 42 > answer.txt")
        found = await it.verify()
        assert found.verdict.reward == 1
        assert (it.output / "reward.txt").read_text() == "1.0\n"
        assert found.record()["strategy"] == "script"
        assert found.record()["isolation"] == "shared"
        assert found.record()["exit_code"] == 0
