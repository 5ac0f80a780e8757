"""A role of an arena, played step by step while the others are live."""

from pathlib import Path

import pytest

from benchflow.errors import UnsupportedError
from benchflow.gym.task import UnscoredError
from benchflow.models.gateway import CallLimits
from benchflow.record import read_model_calls
from benchflow.testing import ModelServer

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
HAGGLE = Path(__file__).parents[2] / "examples" / "packages" / "haggle-arena"


def test_replies_are_the_moves_of_the_role_and_the_game_is_the_score(gym):
    one = gym(HAGGLE, participants={"seller": "oracle"})
    first = one.reset()
    assert "You have 120 to spend" in first
    assert {"reply", "bash"} <= one.actions()
    assert "next_step" not in one.actions()
    assert one.bash("cat /instruction.md; ls /verifier 2>&1").count("/verifier") == 1
    with pytest.raises(UnscoredError, match="not over"):
        one.task.evaluate()
    with pytest.raises(UnsupportedError, match="cannot be forked"):
        one.task.fork()
    second = one.act("reply", text="OFFER 90")
    assert not second.done
    assert "OFFER 118" in second.obs.to_markdown()
    third = one.act("reply", text="OFFER 100")
    assert (third.done, third.reward) == (True, 1.0)
    assert one.task.evaluate()[1]["rewards"] == {"buyer": 1.0, "seller": 0.0}
    assert "You have 120 to spend" in one.reset()


def test_a_live_participant_is_recorded_and_limited_as_in_a_rollout(gym, tmp_path, monkeypatch):
    with ModelServer("OFFER 118") as models:
        for name, value in models.environment.items():
            monkeypatch.setenv(name, value)
        settings = {"records": str(tmp_path / "records"), "call_limits": CallLimits(max_calls=2)}
        one = gym(HAGGLE, participants={"seller": "model:openai/gpt-4o"}, **settings)
        one.reset()
        output = one.act("reply", text="OFFER 90")
        while not output.done:
            output = one.act("reply", text="OFFER 91")
        one.task.close()
    (game,) = (tmp_path / "records").iterdir()
    calls = [(call.place.role, call.outcome, call.code) for call in read_model_calls(game / "model_calls.jsonl")]
    assert calls[0] == ("seller", "answered", None)
    assert set(calls[1:]) == {("seller", "limited", "max_calls")}
    assert len(models.requests) == 1  # its half of what the rollout may call
    assert (game / "result.json").is_file()
