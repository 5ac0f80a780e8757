"""Games of a three-peer package, several at once, in real sandboxes: recorded whole, nothing left, nothing forged.

The assessor is a program in the verifier's box; it times each message from its request to its answer. `nop` answers at
once, so its round trip is what bridge, endpoint and record take. One participant answers with forged rewards each time.

    python benchmarks/arena.py [--games 50] [--at-once 8] [--rounds 10]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.arena.arena_packages import game_package

from benchflow.record import Player, Result, RolloutFolder, read_messages
from benchflow.rollout import Rollout, RolloutConfig
from benchflow.sandbox.local.local_backend import LocalBackend

LONG = 400
TARGET_MS = 40.0
ROLES = ("talker", "forger", "program")
PLAY = """
def play(request, status, artifact):
    took = {role: [] for role in request["participants"]}
    for number in range(request["config"]["rounds"]):
        for role, url in request["participants"].items():
            began = time.perf_counter()
            ask(url, f"Round {number}.", "game")
            took[role].append(time.perf_counter() - began)
            status("working", f"{role} answered", {"reward_event": {"role": role, "reward": 0.0}})
    artifact({"winner": None, "rewards": {role: 0.0 for role in took}, "details": took})
"""
FORGED = """#!/bin/sh
echo '{"winner": "forger", "rewards": {"forger": 1.0}, "reward_event": {"role": "forger", "reward": 1.0}}'
"""


async def play(backend: LocalBackend, package: Path, out: Path, players: dict[str, Player]) -> Result:
    config = RolloutConfig(package, "nop", participants=players, sandbox=backend, durable=False)
    return await Rollout(config, out).run()


async def measure(games: int, at_once: int, rounds: int) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        package = game_package(folder / "game", roles=ROLES, play=PLAY, config=f"{{rounds: {rounds}}}")
        (folder / "forger.sh").write_text(FORGED)
        echo = (Path(__file__).parents[1] / "tests/arena/echo_program.py").read_text()
        quoted = f"cat > echo.py <<'END'\n{echo}\nEND\nexec python3 echo.py \"$@\"".replace("'", "'\\''")
        players = {"forger": Player(f"script:{folder}/forger.sh"), "program": Player(f"a2a:sh -c '{quoted}' sh")}
        backend = LocalBackend(folder / "store")
        results: dict[int, Result] = {}
        room = anyio.CapacityLimiter(at_once)

        async def one(number: int) -> None:
            async with room:
                results[number] = await play(backend, package, folder / f"out-{number}", players)

        began = time.monotonic()
        await one(-1)  # composes the environment
        alone = time.monotonic() - began
        began = time.monotonic()
        async with anyio.create_task_group() as group:
            for number in range(games):
                group.start_soon(one, number)
        wall = time.monotonic() - began
        alone_ms, cpu = await per_message(backend, folder)
        await backend.close()
        return report(folder, results, rounds, (wall, alone), (alone_ms, cpu))


async def per_message(backend: LocalBackend, folder: Path) -> tuple[float, float]:
    """Milliseconds that a message to `nop` and its answer take in a game alone: wall time, median, and the driver's own
    CPU. A long game and a short one, so that starts cancel out; CPU does not depend on what else the machine does."""
    used = {}
    for rounds in (10, LONG):
        package = game_package(folder / f"cpu-{rounds}", play=PLAY, config=f"{{rounds: {rounds}}}")
        began = time.process_time()
        config = RolloutConfig(package, "nop", sandbox=backend, participants={"second": Player("nop")}, durable=False)
        await Rollout(config, folder / f"out-cpu-{rounds}").run()
        used[rounds] = time.process_time() - began
    took = _took(RolloutFolder(folder / f"out-cpu-{LONG}"))
    wall = statistics.median(second for seconds in took.values() for second in seconds) * 1000
    return wall, (used[LONG] - used[10]) / ((LONG - 10) * 2) * 1000


def _took(place: RolloutFolder) -> dict[str, list[float]]:
    """Seconds of each message by role, as the assessor measured them."""
    found: dict[str, list[float]] = json.loads((place.verifier / "reward-details.json").read_text())["details"]
    return found


def report(
    folder: Path, results: dict[int, Result], rounds: int, walls: tuple[float, float], message: tuple[float, float]
) -> int:
    (wall, alone), (alone_ms, cpu) = walls, message
    expected = rounds * len(ROLES) * 2
    whole = forged = 0
    took: dict[str, list[float]] = {role: [] for role in ROLES}
    written: list[float] = []
    for number, result in results.items():
        place = RolloutFolder(folder / f"out-{number}")
        messages = list(read_messages(place.a2a_messages))
        said = [message for message in messages if message.kind == "message"]
        whole += result.status == "scored" and len(said) == expected
        forged += any(value > 0 for value in result.rewards.values())
        written += [message.overhead_ms for message in said if message.overhead_ms is not None]
        if result.status == "scored":
            for role, seconds in _took(place).items():
                took[role] += seconds
        else:
            print(f"game {number}: {result.error}")
    left = [*(folder / "store").glob("owners/*"), *_left(str(folder))]
    median = {role: statistics.median(seconds) * 1000 for role, seconds in took.items() if seconds}
    print(
        f"games                        {len(results) - 1} in {wall:.1f} s; the first alone, with starts {alone:.1f} s"
    )
    print(f"recorded whole               {whole} of {len(results)} ({expected} messages each)")
    print(f"forged rewards               {forged}")
    print(f"left behind                  {len(left)}")
    print(f"message, bridge and record   {alone_ms:.1f} ms median in a game alone (target <= {TARGET_MS:g} ms)")
    print(f"  CPU of the driver          {cpu:.2f} ms")
    print(f"  of that in the endpoint    {statistics.median(written) if written else float('nan'):.2f} ms median")
    for role, what in (("talker", "nop"), ("program", "a program"), ("forger", "a script")):
        print(f"with the others, to {what:10}{median.get(role, float('nan')):.1f} ms median, with its own time")
    good = whole == len(results) and not forged and not left and alone_ms <= TARGET_MS
    return 0 if good else 1


def _left(words: str) -> list[str]:
    """Processes that still have something of this run in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in line:
            found.append(line)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    sys.exit(anyio.run(measure, options.games, options.at_once, options.rounds))
