"""One package, run and verified many times."""

import pytest

from benchflow.agents.nop_agent import NopAgent
from benchflow.agents.protocol import AgentRequest
from benchflow.errors import PackageError
from benchflow.evidence.trial_stage import StageOptions, open_stage

pytestmark = pytest.mark.anyio


async def test_a_state_is_verified_as_often_as_asked_without_a_new_run(make_package, backend):
    async with open_stage(make_package(), StageOptions(sandbox=backend)) as stage:
        trial = await stage.run("oracle", again=[{}] * 5)
    assert trial.reward == 1.0
    assert [found.verdict.reward for found in trial.again] == [1.0] * 5


async def test_more_trials_than_places_all_end(make_package, backend):
    async with open_stage(make_package(), StageOptions(sandbox=backend, concurrency=1)) as stage:
        trial = await stage.run("oracle", again=[{}] * 3)
    assert len(trial.again) == 3


async def test_an_agent_that_the_caller_makes_wins_over_declared_roles(make_package, backend):
    declared = "agents:\n  roles:\n    solver: {agent: oracle}\n"
    async with open_stage(make_package(declared), StageOptions(sandbox=backend)) as stage:
        trial = await stage.run(lambda: NopAgent(AgentRequest("idle")), name="idle")
    assert trial.reward == 0.0
    assert trial.result.agent.name == "script:idle"


async def test_an_invalid_package_is_refused_before_anything_starts(make_package, backend):
    folder = make_package("cpuz: 3\n")
    with pytest.raises(PackageError, match="cpuz"):
        async with open_stage(folder, StageOptions(sandbox=backend)):
            pytest.fail("it was opened")


async def test_a_package_whose_user_is_missing_is_prompted_once(make_package, backend):
    declared = 'benchflow:\n  document_version: "0.6"\n  interaction: {mode: multi-round}\n'
    async with open_stage(make_package(declared), StageOptions(sandbox=backend)) as stage:
        trial = await stage.run(lambda: NopAgent(AgentRequest("idle")), name="idle")
    assert trial.reward == 0.0
