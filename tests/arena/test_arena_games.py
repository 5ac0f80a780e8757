"""Games from the first message to the record: who is scored, what is written down, and what is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from tests.arena.arena_packages import game_package

from benchflow.record import read_rewards

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.slow]


async def test_a_game_is_scored_by_its_assessor_and_recorded_in_both_directions(tmp_path, play, script):
    package = game_package(tmp_path / "game")
    game = await play(package, others={"second": script("read message; echo 4")}, seed=7)
    result, arena = game.result, game.result.arena
    assert (result.reward, dict(result.rewards)) == (0.9, {"reward": 0.9, "first": 0.9, "second": 0.4})
    assert arena is not None
    assert (arena.winner, arena.scored_role, arena.seed, arena.events) == ("first", "first", 7, 2)
    assert {role: (one.agent.partition(":")[0], one.reward, one.status) for role, one in arena.roles.items()} == {
        "first": ("oracle", 0.9, "played"),
        "second": ("script", 0.4, "played"),
    }
    said = [(one.sender, one.receiver, one.parts[0].text) for one in game.messages]
    assert said == [
        ("umpire", "first", "Say a number."),
        ("first", "umpire", "9\n"),
        ("umpire", "second", "Say a number."),
        ("second", "umpire", "4\n"),
    ]
    assert [one.reply_to for one in game.messages] == [None, 1, None, 3]
    live = [(line.source, line.tag, line.value) for line in read_rewards(game.folder.rewards)]
    assert live == [("assessor", "first", 0.9), ("assessor", "second", 0.4), ("verifier", "reward", 0.9)]
    envelope = json.loads((game.folder.verifier / "reward.json").read_text())
    assert (envelope["winner"], envelope["participants"]["second"]["reward"]) == ("first", 0.4)
    assert {"first", "second", "umpire"} == json.loads(game.folder.a2a_cards.read_text()).keys()
    assert json.loads(game.folder.a2a_task.read_text())["state"] == "completed"
    assert {event.get("role") for event in game.events if event["type"] == "a2a_message"} == {
        "umpire",
        "first",
        "second",
    }


async def test_nop_says_nothing_and_loses_to_the_players_of_the_package(tmp_path, play):
    game = await play(game_package(tmp_path / "game"), "nop")
    assert (game.result.reward, game.result.arena.winner) == (0.0, "second")


async def test_a_program_that_speaks_a2a_is_a_participant_and_remembers_its_conversation(tmp_path, play):
    package = game_package(tmp_path / "game", play=TWICE)
    program = Path(__file__).with_name("echo_program.py").read_bytes()
    starter = f"cat > echo.py <<'END'\n{program.decode()}\nEND\nexec python3 echo.py \"$@\""
    game = await play(package, f"a2a:{_inline(starter)}")
    assert game.why is None, game.result.error
    assert [one.parts[0].text for one in game.messages if one.sender == "first"] == ["1: hello", "2: again"]


def _inline(script: str) -> str:
    """A command that is a whole script."""
    quoted = script.replace("'", "'\\''")
    return f"sh -c '{quoted}' sh"


TWICE = """
def play(request, status, artifact):
    url = request["participants"]["first"]
    said = [ask(url, text, "talk") for text in ("hello", "again")]
    artifact({"winner": None, "rewards": {role: 0.5 for role in request["participants"]}})
"""


async def test_participants_see_neither_each_other_nor_the_verifier_and_have_no_network(tmp_path, play, script):
    look = script(
        "ls /verifier /oracle 2>&1; cat /instruction.md; ls -a /app; id -un; "
        "for p in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$p; echo; done; "
        "python3 - <<'E'\nimport socket\nfor a in (('1.1.1.1', 53), ('127.0.0.1', 80)):\n"
        " try: socket.create_connection(a, 1); print('reached', a)\n except OSError: pass\nE\n"
        "touch /app/mine"
    )
    game = await play(game_package(tmp_path / "game"), look, others={"second": look})
    for role, other in (("first", "second"), ("second", "first")):
        said = next(one.parts[0].text for one in game.messages if one.sender == role)
        assert f"quetzalcoatl-{role}" in said
        assert f"quetzalcoatl-{other}" not in said
        assert "assessor.py" not in said
        assert "reached" not in said
        assert "mine" not in said
    audit = json.loads((game.folder.verifier / "arena-audit.json").read_text())
    assert [one["role"] for one in audit["revealed"]] == ["first", "second"]
    assert "private-facts-revealed" in [note.code for note in game.result.verifier.diagnostics]


async def test_two_games_at_once_do_not_meet(tmp_path, play, script):
    games: dict[int, object] = {}

    async def one(number: int) -> None:
        package = game_package(tmp_path / f"game{number}")
        games[number] = await play(package, script(f"echo {number}"), others={"second": script(f"echo {number}")})

    async with anyio.create_task_group() as group:
        for number in (1, 2, 3):
            group.start_soon(one, number)
    for number, game in games.items():
        assert game.result.reward == number / 10
        assert {one.parts[0].text for one in game.messages if one.sender != "umpire"} == {f"{number}\n"}


async def test_cancelling_a_game_reaches_the_assessor_and_leaves_a_record(tmp_path, play, script):
    package = game_package(tmp_path / "game")
    with anyio.move_on_after(4):
        await play(package, script("sleep 600"))
    [record] = tmp_path.glob("out-*/result.json")
    result = json.loads(record.read_text())
    assert (result["status"], result["error"]["category"]) == ("unscored", "cancelled")
    assert result["arena"]["roles"]["first"]["reward"] is None
