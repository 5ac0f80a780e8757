"""Rollouts that an agent judges: refused early without a key, its calls recorded apart from the agent's."""

import pytest

from benchflow.record import RolloutFolder, read_model_calls
from benchflow.testing import ModelServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("models")]  # the client loads for seconds

DOCUMENT = """\
---
verifier:
  strategies:
    panel:
      type: agent-judge
      role: critic
      isolation: verifier-only
      inputs: [trajectory.jsonl, /app/answer.txt]
      agent: "model:openai/judge-one"
---
## role:critic
Judge the evidence.
"""
FILES = {"verifier/verifier.md": DOCUMENT, "verifier/test.sh": None}


async def test_calls_of_a_judge_are_recorded_as_its_own_and_cost_the_agent_nothing(run, make_package, tmp_path):
    with ModelServer({"score": 0.5, "reason": "fine"}) as server:
        machine = {"PATH": "/usr/bin:/bin", **server.environment}
        result = await run(make_package(files=FILES), commands=["echo done > answer.txt"], machine=machine)
    assert result.reward == 0.5, result.error
    calls = list(read_model_calls(RolloutFolder(tmp_path / "out").model_calls))
    assert [(call.place.role, call.place.source, call.model) for call in calls] == [
        ("judge", "judge", "openai/judge-one")
    ]
    assert "model_calls" not in result.usage
    assert "trajectory.jsonl" in server.requests[0].prompt
    assert server.api_key not in (tmp_path / "out" / "verifier" / "judge-trajectory.jsonl").read_text()


async def test_a_judge_without_its_key_is_refused_before_the_agent_works(run, make_package, new_script):
    script = new_script("echo done > answer.txt")
    result = await run(make_package(files=FILES), script=script)
    assert (result.status, result.error.category, result.error.phase) == ("unscored", "judge", "plan"), result.error
    assert "OPENAI_API_KEY" in result.error.message
    assert script.prompts == []
