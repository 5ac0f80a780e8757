"""Whose failure it is when a game does not end well, and that nothing outlives it."""

from __future__ import annotations

import json
import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.arena.arena_packages import PLAY, game_package

from benchflow.testing import ModelServer

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.slow]

CRASHES = "exit 3"
SILENT = "sleep 600"
TOO_MUCH = "head -c 50000000 /dev/zero | tr '\\0' x"
FORFEIT = "{forfeit: {reward: 0.0, others: 1.0}}"


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [(CRASHES, "crashed"), (SILENT, "silent"), (TOO_MUCH, "broke-protocol")],
)
async def test_a_participant_that_fails_leaves_the_game_unscored_unless_the_package_counts_it_as_a_loss(
    tmp_path, play, script, behaviour, status
):
    package = game_package(tmp_path / "game", timeout=4)
    game = await play(package, script(behaviour))
    assert game.why == ("agent", f"participant-{status}")
    assert game.result.reward is None
    assert game.result.arena.roles["first"].status == status
    assert game.result.arena.winner is None
    forfeit = game_package(tmp_path / "forfeit", timeout=4, config=FORFEIT)
    lost = await play(forfeit, script(behaviour), others={"second": script("echo 9")})
    assert (lost.why, dict(lost.result.rewards)["first"], lost.result.arena.winner) == (None, 0.0, "second")
    assert lost.result.arena.roles["first"].forfeited
    errors = [one for one in lost.messages if one.kind == "error"]
    assert [one.code for one in errors] == [f"participant-{status}"]


async def test_a_peer_that_nobody_serves_is_unreachable(tmp_path, play):
    game = await play(game_package(tmp_path / "game"), others={"second": "http://127.0.0.1:9"})
    assert game.why == ("agent", "participant-unreachable")
    assert game.result.arena.roles["second"].url == "http://127.0.0.1:9"


async def test_a_program_that_is_killed_in_the_middle_has_crashed(tmp_path, play):
    program = (
        Path(__file__).with_name("echo_program.py").read_text().replace('self.reply({"json', 'os._exit(9); ({"json')
    )
    quoted = f"cat > echo.py <<'END'\n{program}\nEND\nexec python3 echo.py \"$@\"".replace("'", "'\\''")
    game = await play(game_package(tmp_path / "game"), f"a2a:sh -c '{quoted}' sh")
    assert game.why == ("agent", "participant-crashed")
    assert "exited with code 9" in game.result.error.message


ENDS = {
    "failed": ("verifier", "assessor-failed"),
    "rejected": ("package", "assessor-rejected"),
    "canceled": ("cancelled", "assessor-cancelled"),
}


@pytest.mark.parametrize("state", ENDS)
async def test_the_state_in_which_an_assessor_ends_its_task_decides_whose_failure_it_is(tmp_path, play, state):
    ends = (
        f"def play(request, status, artifact):\n    status({state!r}, 'because of the weather')\n    return {state!r}\n"
    )
    game = await play(game_package(tmp_path / "game", play=ends))
    assert game.why == ENDS[state]
    assert "because of the weather" in game.result.error.message
    assert game.result.arena.roles["first"].reward is None


VERDICTS = {
    "a winner that does not exist": '{"winner": "ghost", "rewards": {"first": 1.0, "second": 0.0}}',
    "a reward for a stranger": '{"winner": None, "rewards": {"first": 1.0, "umpire": 1.0}}',
    "a reward that is not a number": '{"winner": None, "rewards": {"first": float("nan"), "second": 0.0}}',
    "a reward beyond the range": '{"winner": "first", "rewards": {"first": 5.0, "second": 0.0}}',
    "no reward for the scored role": '{"winner": "second", "rewards": {"second": 1.0}}',
    "one score for two roles": '{"winner": "first", "score": 1.0}',
    "nothing": '{"detail": "it was a fine game"}',
}


@pytest.mark.parametrize("wrong", VERDICTS)
async def test_an_assessor_with_an_impossible_verdict_has_failed(tmp_path, play, wrong):
    lies = f"def play(request, status, artifact):\n    artifact({VERDICTS[wrong]})\n"
    game = await play(game_package(tmp_path / "game", play=lies))
    category, code = game.why or ("", "")
    assert (category, code) in {("verifier", "assessor-verdict"), ("verifier", "assessor-protocol")}
    assert game.result.reward is None


async def test_a_winner_alone_scores_where_the_package_says_what_a_winner_gets(tmp_path, play):
    names = "def play(request, status, artifact):\n    artifact({'winner': 'second', 'detail': 'close'})\n"
    unsaid = await play(game_package(tmp_path / "unsaid", play=names))
    assert unsaid.why == ("verifier", "assessor-verdict")
    assert "winner_rewards" in unsaid.result.error.message
    said = await play(game_package(tmp_path / "said", play=names, config="{winner_rewards: {winner: 1, others: 0.25}}"))
    assert dict(said.result.rewards) == {"reward": 0.25, "first": 0.25, "second": 1.0}


async def test_an_assessor_that_does_not_start_or_never_ends_has_failed(tmp_path, play):
    broken = await play(game_package(tmp_path / "broken", agent="a2a:python3 -c 'raise SystemExit(5)'"))
    assert broken.why == ("verifier", "assessor-unreachable")
    assert "exited with code 5" in broken.result.error.message
    dies = "def play(request, status, artifact):\n    os._exit(1)\n"
    gone = await play(game_package(tmp_path / "gone", play=dies))
    assert gone.why[0] == "verifier"
    endless = "def play(request, status, artifact):\n    time.sleep(600)\n"
    package = game_package(tmp_path / "endless", play=endless)
    text = (package / "task.md").read_text().replace("verifier: {timeout_sec: 240}", "verifier: {timeout_sec: 1}")
    (package / "task.md").write_text(text)
    game = await play(package)
    assert game.why == ("verifier", "timeout")


async def test_the_failing_model_of_a_participant_is_not_its_loss(tmp_path, play):
    package = game_package(tmp_path / "game", config=FORFEIT)
    with ModelServer(lambda _request: (_ for _ in ()).throw(RuntimeError)) as server:
        environ = {**os.environ, **server.environment}
    game = await play(package, "model:openai/gpt-5-mini", machine=environ)
    assert game.why is not None
    assert game.why[0] == "infrastructure"


def test_nothing_outlives_a_driver_that_is_killed(tmp_path):
    package = game_package(tmp_path / "game")
    (tmp_path / "wait.sh").write_text("#!/bin/sh\nexec sleep 98765\n")
    code = (
        "import anyio, sys\nfrom pathlib import Path\nfrom benchflow.rollout import Rollout, RolloutConfig\n"
        "config = RolloutConfig(sys.argv[1], f'script:{sys.argv[2]}/wait.sh', sandbox='local')\n"
        "anyio.run(Rollout(config, Path(sys.argv[2], 'out')).run)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", code, str(package), str(tmp_path)])
    try:
        messages = tmp_path / "out/a2a/messages.jsonl"
        until = time.monotonic() + 60
        while not _waits(started := _descendants(driver.pid)) and time.monotonic() < until:
            time.sleep(0.1)
        assert _waits(started), "the game did not begin"
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        until = time.monotonic() + 20
        while (left := _identities(started) & _identities(_processes())) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left
    finally:
        driver.kill()
    assert [json.loads(line)["kind"] for line in messages.read_text().splitlines()] == ["message"]


def _waits(processes: Mapping[int, tuple[int, str, str]]) -> bool:
    """Whether an assessor and a participant that it has asked are among these."""
    lines = [line for _, _, line in processes.values()]
    return all(any(words in line for line in lines) for words in ("assessor.py --host", "sleep 98765"))


def _identities(processes: Mapping[int, tuple[int, str, str]]) -> set[tuple[int, str, str]]:
    """What tells processes from others with the same number, whoever is their parent by now."""
    return {(pid, start, line) for pid, (_, start, line) in processes.items()}


def _descendants(pid: int) -> dict[int, tuple[int, str, str]]:
    """What a process has started, and what that has started, without the process."""
    found = _processes()
    chosen = {pid}
    while more := {child for child, (parent, *_) in found.items() if parent in chosen} - chosen:
        chosen |= more
    return {child: found[child] for child in chosen - {pid} if child in found}


def _processes() -> dict[int, tuple[int, str, str]]:
    """The parent, the time of the start and the command of everything that runs on this machine."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent, start = operator.itemgetter(1, 19)((path / "stat").read_text().rpartition(")")[2].split())
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found[int(path.name)] = (int(parent), start, line)
    return found


BLAMES = """
def play(request, status, artifact):
    for role, url in request["participants"].items():
        if not ask(url, "Say a number.", "game").strip().isdigit():
            status("failed", None, {"participant_failure": {"role": role, "message": "it said no number"}})
            return "failed"
    artifact({"winner": None, "rewards": {"first": 1.0, "second": 1.0}})
"""


@pytest.mark.parametrize(
    ("first", "second", "config", "reward", "why"),
    [
        ("echo I win", "echo 9", "{}", None, ("agent", "participant-broke-protocol")),
        ("echo I win", "echo 9", "{forfeit: true}", 0.0, None),
        ("exit 3", "echo 9", "{forfeit: true}", 0.0, None),
        ("echo 9", "echo no", "{forfeit: {others: 0.75}}", 0.75, None),
        ("echo 9", "echo no", "{forfeit: true}", None, ("agent", "participant-broke-protocol")),
        ("echo I win", "echo 9", "{forfeit: {others: 7}}", None, ("verifier", "assessor-verdict")),
    ],
)
async def test_a_participant_cannot_buy_an_unscored_game_where_its_failure_is_a_loss(
    tmp_path, play, script, first, second, config, reward, why
):
    package = game_package(tmp_path / "game", play=BLAMES, config=config)
    game = await play(package, script(first), others={"second": script(second)})
    assert (game.result.reward, game.why) == (reward, why)


async def test_a_participant_that_spoils_its_own_box_has_lost(tmp_path, play, script):
    twice = PLAY.replace(
        "    said =", '    [ask(url, "Ready?", "game") for url in request["participants"].values()]\n    said ='
    )
    package = game_package(tmp_path / "game", play=twice, config=FORFEIT)
    text = (package / "task.md").read_text().replace("agent: {timeout_sec", "agent: {user: root, timeout_sec", 1)
    (package / "task.md").write_text(text)
    spoils = script("cat >/dev/null; rm -rf /tmp; touch /tmp; echo 1")
    game = await play(package, spoils, others={"second": script("echo 9")})
    assert (game.why, game.result.reward, game.result.arena.winner) == (None, 0.0, "second")
