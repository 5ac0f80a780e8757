"""The deadline of a whole rollout: the agent is ended early enough to be verified; what takes longer is unscored."""

import pytest

from benchflow.rollout.plan import time_for_agents

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("sandbox"), pytest.mark.sandbox]


async def test_an_agent_that_would_use_all_the_time_is_still_verified(make_package, run):
    result = await run(make_package(), commands=["echo done > answer.txt; sleep 60"], timeout_sec=12.0)
    assert (result.status, result.reward, result.agent.timed_out) == ("scored", 1.0, True), result.error


@pytest.mark.parametrize(("whole", "verifier", "agents"), [(100, 600, 75), (100, 5, 85), (8, 600, 6)])
def test_the_reserve_is_a_quarter_or_what_three_verifications_may_take(whole, verifier, agents):
    assert time_for_agents(whole, verifier) == agents


async def test_a_verifier_that_is_cut_off_by_the_deadline_leaves_the_rollout_unscored(make_package, run):
    result = await run(make_package(verifier="sleep 60\n"), commands=["true"], timeout_sec=5.0)
    assert (result.error.category, result.error.code, result.error.phase) == ("infrastructure", "deadline", "verify")
    assert "5 s" in result.error.message


async def test_an_agent_without_its_key_is_unscored_before_anything_is_started(make_package, run, tmp_path):
    result = await run(make_package(), agent="model:gpt-4o", make_agent=None)
    assert (result.error.category, result.error.phase) == ("agent", "plan")
    assert "OPENAI_API_KEY" in result.error.message
    assert not (tmp_path / "out" / "trajectory.jsonl").exists()
