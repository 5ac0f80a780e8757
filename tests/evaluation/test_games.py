"""Jobs of games for real: agents that take turns, beside other packages, killed in the middle, resumed."""

import json
import os
import signal
import subprocess
import time
from collections import Counter

import pytest
from tests.arena.arena_packages import game_package

from loaded_commands import BENCH, bench

pytestmark = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.xdist_group("jobs")]
LOCAL = ["--sandbox", "local", "--base-image", "host"]
ANSWER = "cat > /dev/null; echo 5"


@pytest.fixture
def tasks(tmp_path):
    """A game of two and an ordinary package."""
    game_package(tmp_path / "tasks/game")
    path = tmp_path / "tasks/plain"
    (path / "verifier").mkdir(parents=True)
    (path / "task.md").write_text("---\nschema_version: '1.3'\ntask: {name: t/plain}\n---\nDo it.\n")
    (path / "verifier/test.sh").write_text(
        "#!/bin/sh\n[ -e /app/done ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt\n"
    )
    (tmp_path / "five.sh").write_text(f"touch done; {ANSWER}\n")
    return tmp_path


def summary(done):
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_agents_take_turns_in_games_and_each_does_the_other_packages(tasks):
    players = ["--agent", "script:five.sh", "--agent", "nop", "--rotate-roles"]
    found = summary(bench("eval", "run", "tasks", *players, "--seed", 3, *LOCAL, "--json", cwd=tasks))
    assert (found["total"], found["scored"]) == (4, 4)
    games = [line for line in found["results"] if "arena" in line]
    assert {tuple(line["arena"]["rotation"].values()) for line in games} == {
        ("script:five.sh", "nop"),
        ("nop", "script:five.sh"),
    }
    assert len({line["arena"]["seed"] for line in games}) == 1
    plain = {line["agent"]["name"]: line["reward"] for line in found["results"] if "arena" not in line}
    assert plain == {"script:five.sh": 1.0, "nop": 0.0}
    [group] = found["arena"]["groups"]
    assert [rating["player"] for rating in group["ratings"]] == ["script:five.sh", "nop"]
    assert found["arena"]["pairings"] == [{"first": "nop", "second": "script:five.sh", "won": 0, "tied": 0, "lost": 2}]


def test_a_killed_job_of_games_resumes_without_losing_or_repeating_one(tasks):
    players = ["--agent", "script:five.sh", "--agent", "nop", "--agent", "oracle", "--rotate-roles", "--attempts", "2"]
    command = [*BENCH, "eval", "run", "tasks/game", *players, *LOCAL, "--name", "many", "--concurrency", "4"]
    results = tasks / "jobs/many/results.jsonl"
    with subprocess.Popen(command, cwd=tasks, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        deadline = time.monotonic() + 300
        while not results.exists() or results.read_bytes().count(b"\n") < 4:
            assert job.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            os.sched_yield()
        job.send_signal(signal.SIGKILL)
    before = results.read_bytes()
    found = summary(bench("eval", "resume", "many", "--concurrency", 4, "--json", cwd=tasks))
    assert results.read_bytes().startswith(before)
    assert (found["total"], found["scored"], found["arena"]["games"]) == (12, 12, 12)
    played = Counter((line["attempt"], *line["arena"]["rotation"].values()) for line in found["results"])
    assert (len(played), set(played.values())) == (12, {1})
    assert len(results.read_text().splitlines()) == 12
    for line in found["results"]:
        kept = tasks / "jobs/many/rollouts" / line["rollout"] / "a2a/messages.jsonl"
        assert len(kept.read_text().splitlines()) == line["arena"]["messages"]
    again = summary(bench("eval", "resume", "many", "--json", cwd=tasks))
    assert again["results"] == found["results"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["tasks/plain", "--agent", "nop", "--rotate-roles"], "--rotate-roles applies to arena packages"),
        (["tasks/plain", "--agent", "nop", "--participant", "second=nop"], "it has no arena packages"),
        (["tasks", "--agent", "nop", "--participant", "sceond=nop"], "no role 'sceond'"),
        (["tasks", "--agent", "nop", "--participant", "first=nop"], "--agent plays the role 'first'"),
        (["tasks", "--agent", "nop", "--participant", "second"], "expected ROLE=AGENT or ROLE=URL"),
        (["tasks", "--agent", "nop", "--participant", "second=nop", "--participant", "second=nop"], "is given twice"),
        (["tasks", "--agent", "nop", "--participant", "second=nobody"], "Unknown agent 'nobody'"),
        (["tasks", "--agent", "nop", "--participant", "second=http://"], "'second' is not an http or https URL"),
        (
            ["tasks", "--agent", "nop", "--participant", "second=ftp://x"],
            "'second' must begin with http:// or https://",
        ),
        (["tasks", "--agent", "nop", "--participant", "second=http://u:p@h"], "'second' must not contain a user"),
        (["tasks", "--agent", "nop", "--agent", "nop", "--rotate-roles"], "with --rotate-roles it is one player"),
        (["tasks/plain", "--agent", "nop", "--seed", 3], "--seed applies to --sample and to arena packages"),
        (["cube:guess", "tasks", "--agent", "nop", "--rotate-roles"], "--rotate-roles applies to packages only"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(tasks, given, words):
    done = bench("eval", "run", *given, *LOCAL, cwd=tasks)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert not (tasks / "jobs").exists()
