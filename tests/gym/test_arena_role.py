"""A role of an arena, played step by step while the others are live."""

from pathlib import Path

import pytest

from benchflow.errors import UnsupportedError
from benchflow.gym.task import UnscoredError

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
