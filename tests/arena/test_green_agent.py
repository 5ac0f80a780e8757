"""A green agent as the public starters have it, made with the stock SDK of 0.3, runs unmodified as an assessor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from peers import peer_environment
from tests.arena.arena_packages import game_package

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.slow]

GREEN = Path(__file__).parent / "peers" / "green_agent.py"


def libraries() -> Path:
    """The stock SDK for the Python of the box, which is this machine's own."""
    binaries = peer_environment("a2a-sdk[http-server]==0.3.26", "uvicorn", python="/usr/bin/python3")
    return next(binaries.parent.glob("lib/python3*/site-packages"))


async def test_a_stock_green_agent_assesses_two_bridges(tmp_path, play, script):
    package = game_package(
        tmp_path / "game", agent="a2a:env PYTHONPATH=libraries python3 green_agent.py", config="{rounds: 3}"
    )
    shutil.copytree(libraries(), package / "verifier/libraries", ignore=shutil.ignore_patterns("pip*", "__pycache__"))
    shutil.copy(GREEN, package / "verifier/green_agent.py")
    counting = script("cat > /dev/null; echo x >> count; wc -l < count")
    game = await play(package, script("cat > /dev/null; echo I say 2"), others={"second": counting})
    assert game.why is None, game.result.error
    assert dict(game.result.rewards) == {
        "reward": pytest.approx(1 / 3),
        "first": pytest.approx(1 / 3),
        "second": pytest.approx(1 / 3),
    }
    assert game.result.arena.winner is None
    asked = [one.parts[0].text for one in game.messages if one.receiver == "second"]
    assert asked == [f"Round {number}: name a number from 1 to 9." for number in (1, 2, 3)]
    assert json.loads(game.folder.a2a_task.read_text())["state"] == "completed"
