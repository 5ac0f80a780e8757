"""`bench eval show` and `watch` of rollouts, as users call them."""

import json
import re
import shutil
import subprocess
import time

import pytest

from benchflow.cli.terminal import printable
from benchflow.files.redaction import NO_SECRETS
from benchflow.record import AgentPart, ErrorRecord, NodeNote, Notes, RolloutFolder, SandboxPart, Trajectory
from loaded_commands import BENCH, bench
from made_jobs import add_calls, add_nodes, add_rollout, arena_job, made_result, open_job

HOSTILE = "a\x1b]0;title\x07\x1b[2J\u202e\x9bb"


@pytest.fixture
def job(tmp_path, make_result, make_job):
    """A job of four rollouts: full, failed by a test, failed by its agent, unscored."""
    results = [
        make_result("acme/full", 1.0),
        make_result("acme/test", 0.0, sandbox=SandboxPart("local", "host", "substituted", instead_of=("debian:12",))),
        make_result("acme/exit", 0.5, agent=AgentPart(HOSTILE, None, 3, timed_out=False)),
        make_result("acme/none", error=ErrorRecord("judge", "timeout", "verify", HOSTILE)),
    ]
    store = make_job(tmp_path / "jobs", "one", results, planned=6)
    for number in range(4):
        place = RolloutFolder(store.places.rollouts / f"r{number}")
        place.verifier.mkdir(parents=True)
        place.agent.mkdir()
        place.result.write_text(json.dumps(results[number].to_dict()))
        with Trajectory(place.trajectory, NO_SECRETS) as events:
            events("user_message", text="Write it.")
            events("tool_call", tool="bash", tool_call_id="1", arguments={"command": f"echo {HOSTILE}"})
            events("tool_result", tool_call_id="1", output=f"{HOSTILE}\nline two\nline three")
    rollouts = store.places.rollouts
    (rollouts / "r1" / "verifier" / "test-stdout.txt").write_text(f"{HOSTILE}\nFAILED a.py::test_x - assert 0\n")
    return store.folder


def test_a_job_says_per_task_why_it_is_not_1(job, tmp_path):
    shown = bench("eval", "show", "one", cwd=tmp_path).stdout
    rows = {line.split()[0]: line for line in shown.splitlines() if line.startswith("acme/")}
    assert "a.py::test_x failed: assert 0" in rows["acme/test"]
    assert "the agent exited with code 3" in rows["acme/exit"]
    assert "judge/timeout in phase verify" in rows["acme/none"]
    assert rows["acme/full"].split() == ["acme/full", "1", "1.000", "1"]
    assert "* 1 rollout ran on a substitute for the image of the package: host" in shown
    assert "2 more planned; to continue: bench eval resume one" in shown


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (["--rollout", "r1"], ["r1"]),
        (["--task", "acme/t*"], ["r1"]),
        (["--failed"], ["r1", "r2", "r3"]),
        (["--last", "--failed", "--task", "acme/exit"], ["r2"]),
    ],
)
def test_rollouts_are_selected_and_shown_as_json(job, tmp_path, selection, names):
    found = json.loads(bench("eval", "show", "one", *selection, "--json", cwd=tmp_path).stdout)
    assert [rollout["rollout"] for rollout in found["rollouts"]] == names
    rollout = found["rollouts"][0]
    assert [step["kind"] for step in rollout["steps"]] == ["prompt", "agent"]
    assert rollout["steps"][1]["parts"][0]["output"].startswith(HOSTILE)
    assert {"result", "why", "parts", "verifier_output", "agent_output", "files"} <= rollout.keys()


def test_a_rollout_says_how_often_models_were_called_and_what_that_cost(job, tmp_path):
    add_calls(job / "rollouts/r1", 3)
    shown = bench("eval", "show", "one", "--rollout", "r1", cwd=tmp_path).stdout
    assert "2 answered, 1 failed (with those of judges and simulated users)" in shown
    assert "input tokens 24,003, output tokens 160, cost $0.04" in shown
    with (job / "rollouts/r1/model_calls.jsonl").open("a") as stream:
        stream.write("damaged\n")
    shown = bench("eval", "show", "one", "--rollout", "r1", cwd=tmp_path).stdout
    assert "1 that cannot be read" in shown
    assert "output tokens unknown, cost unknown" in shown
    assert "model calls" not in bench("eval", "show", "one", "--rollout", "r2", cwd=tmp_path).stdout


def test_nothing_that_an_agent_wrote_controls_the_terminal(job, tmp_path):
    for words in (["show", "one"], ["show", "one", "--failed"], ["show", "one", "--failed", "--full"], ["list"]):
        shown = bench("eval", *words, cwd=tmp_path)
        assert shown.returncode == 0
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown.stdout + shown.stderr)
    assert "\\x1b]0;title\\x07" in bench("eval", "show", "one", "--rollout", "r1", cwd=tmp_path).stdout


def test_steps_are_folded_unless_everything_is_asked_for(job, tmp_path):
    folded = bench("eval", "show", "one", "--rollout", "r1", cwd=tmp_path).stdout
    assert ("[+2 lines]" in folded, "line three" in folded) == (True, False)
    assert "line three" in bench("eval", "show", "one", "--rollout", "r1", "--full", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["one", "--rollout", "r"], "4 rollouts begin with 'r': r0, r1, r2, r3."),
        (["one", "--rollout", "../one"], "has no rollout '../one'"),
        (["one", "--task", "acme/tset"], "Did you mean 'acme/test'?"),
        (["one", "--task", "acme/full", "--failed"], "has no rollouts below a reward of 1"),
        (["one", "--full"], "--full applies to rollouts"),
        (["onne"], "Did you mean 'one'?"),
    ],
)
def test_a_selection_of_nothing_is_refused_in_one_sentence(job, tmp_path, words, said):
    shown = bench("eval", "show", *words, cwd=tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert said in shown.stderr


@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema": "benchcube.result.v1"}', b"\xff" * 100])
def test_a_rollout_with_damaged_files_is_shown_as_far_as_it_goes(job, tmp_path, damage):
    place = RolloutFolder(job / "rollouts" / "r1")
    place.trajectory.write_bytes(place.trajectory.read_bytes()[:-10] + damage)
    place.rewards.write_bytes(damage)
    (place.verifier / "reward-details.json").write_bytes(damage)
    shown = bench("eval", "show", "one", "--rollout", "r1", cwd=tmp_path)
    assert (shown.returncode, "Write it." in shown.stdout) == (0, True)
    place.result.write_bytes(damage)
    alone = bench("eval", "show", "jobs/one/rollouts/r1", cwd=tmp_path)
    assert (alone.returncode, "no result: result.json" in alone.stdout) == (0, True)


def test_a_rollout_whose_folder_is_gone_still_shows_its_result(job, tmp_path):
    shutil.rmtree(job / "rollouts")
    shown = bench("eval", "show", "one", "--rollout", "r2", cwd=tmp_path)
    assert (shown.returncode, "the agent exited with code 3" in shown.stdout) == (0, True)
    assert bench("eval", "show", "one", cwd=tmp_path).returncode == 0


def test_watching_a_job_that_does_not_run_shows_its_results_and_ends(job, tmp_path):
    shown = bench("eval", "watch", "one", cwd=tmp_path)
    assert (shown.returncode, "acme/test, attempt 1: 0" in shown.stdout) == (0, True)
    assert "2 more planned; to continue: bench eval resume one" in shown.stdout
    look = json.loads(bench("eval", "watch", "one", "--json", cwd=tmp_path).stdout)
    assert (look["running"], look["planned"], look["done"], look["unscored"], look["rollouts"]) == (False, 6, 4, 1, [])


def test_a_rollout_is_shown_in_the_users_pager(job, tmp_path, in_terminal):
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGED; exec cat\n")
    pager.chmod(0o755)
    code, shown = in_terminal(["eval", "show", "one", "--failed"], environ={"PAGER": str(pager)})
    assert (code, "PAGED" in shown, "test_x" in shown) == (0, True, True)
    code, shown = in_terminal(["eval", "show", "one", "--failed"], environ={"PAGER": "no-such-pager"})
    assert (code, "test_x" in shown) == (0, True)


def test_leaving_the_pager_early_is_no_failure(job, tmp_path, in_terminal):
    with Trajectory(job / "rollouts" / "r1" / "trajectory.jsonl", NO_SECRETS) as events:
        for _ in range(3000):
            events("agent_message", text="x" * 1000)
    code, shown = in_terminal(["eval", "show", "one", "--rollout", "r1"], environ={"PAGER": "head -3"})
    assert (code, "Traceback" in shown) == (0, False)


@pytest.mark.parametrize("columns", [40, 200])
def test_tables_fit_the_terminal_as_far_as_they_can(job, tmp_path, in_terminal, columns):
    code, shown = in_terminal(["eval", "show", "one"], columns=columns)
    row = next(line for line in shown.splitlines() if line.startswith("acme/test"))
    assert (code, len(row) <= max(columns, 70)) == (0, True)


def test_nodes_are_watched_while_their_job_runs_and_not_once_its_driver_is_gone(tmp_path):
    store = open_job(tmp_path / "jobs", "far", 3)
    add_nodes(store, HOSTILE)
    seen = bench("eval", "watch", "far", "--once", cwd=tmp_path).stdout
    assert [line.split("  ")[1] for line in seen.splitlines()[1:4]] == [
        "node gone: lost; It does not answer. " + printable(HOSTILE),
        "node fast: 1 running, 4 done, free: 31.2 GB memory, 87.9 GB disk, clock 3.5 s behind",
        "1 waiting for a node: node fast has 8 of 8 processors reserved",
    ]
    assert "acme/far, attempt 2 on fast" in seen.splitlines()[4]
    assert "\x1b" not in seen
    look = json.loads(bench("eval", "watch", "far", "--json", cwd=tmp_path).stdout)
    assert [(node["name"], node["state"], node["running"]) for node in look["nodes"]] == [
        ("fast", "ready", 1),
        ("gone", "lost", 0),
    ]
    assert ([rollout["node"] for rollout in look["rollouts"]], look["waiting"]) == (["fast"], 1)
    assert look["message"] == "node fast has 8 of 8 processors reserved"
    store.close()
    assert bench("eval", "watch", "far", "--once", cwd=tmp_path).stdout == "0 of 3 done, 0 running\n"
    look = json.loads(bench("eval", "watch", "far", "--json", cwd=tmp_path).stdout)
    assert (look["rollouts"], "nodes" in look) == ([], False)


def test_a_rollout_says_on_which_node_it_ran_and_whether_its_times_can_be_compared(tmp_path):
    store = open_job(tmp_path / "jobs", "far", 2)
    for name, note in (("r0", NodeNote("fast")), ("r1", NodeNote("slow", -90.0))):
        add_rollout(store, name, made_result(f"acme/{name}", notes=Notes(node=note)))
    store.close()
    shown = [bench("eval", "show", "far", "--rollout", name, cwd=tmp_path).stdout for name in ("r0", "r1")]
    assert "2026-11-16T09:14:02.020Z, on node fast\n" in shown[0]
    assert "2026-11-16T09:14:02.020Z, on node slow, whose clock was 90 s behind\n" in shown[1]


@pytest.mark.sandbox
def test_a_running_job_is_watched_from_another_process_until_it_ends(tmp_path):
    task = tmp_path / "task"
    (task / "verifier").mkdir(parents=True)
    (task / "task.md").write_text("---\ntask: {name: acme/slow}\nenvironment: {workdir: /app}\n---\nWait.\n")
    (task / "verifier" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    (tmp_path / "agent.sh").write_text("while ! [ -e /app/go ]; do sleep 0.2; [ $((i=i+1)) -lt 200 ] || exit 1; done\n")
    command = [*BENCH, "eval", "run", "task", "--agent", "script:agent.sh", "--sandbox", "local", "--name", "live"]
    limited = [*command, "--agent-timeout", "8"]
    with subprocess.Popen(limited, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        seen, deadline = [], time.monotonic() + 120
        while not seen and time.monotonic() < deadline and process.poll() is None:
            if (tmp_path / "jobs" / "live" / "job.json").exists():
                look = json.loads(bench("eval", "watch", "live", "--json", cwd=tmp_path).stdout)
                seen = [rollout for rollout in look["rollouts"] if rollout["phase"] == "agent"]
        assert [(rollout["task"], rollout["attempt"]) for rollout in seen] == [("acme/slow", 1)]
        watched = bench("eval", "watch", "live", "--interval", "0.2", cwd=tmp_path)
        process.communicate(timeout=120)
    assert (watched.returncode, "acme/slow, attempt 1: 1" in watched.stdout) == (0, True)
    assert "The job is not running." in watched.stderr


def test_a_game_shows_who_said_what_to_whom_and_when_rewards_were_given(tmp_path):
    arena_job(tmp_path / "jobs", "games")
    shown = bench("eval", "show", "games", "--rollout", "haggle__1__1", cwd=tmp_path).stdout
    exchange = shown.partition("exchange")[2].partition("steps")[0]
    assert "1  09:12:01  umpire → buyer" in exchange
    assert exchange.index("I say 99.") < exchange.index("reward 0.125  buyer, by the assessor")
    assert "final reward 0.6" in exchange
    assert "[7 kB; --full shows it]" in exchange
    assert "a long letter" in bench("eval", "show", "games", "--rollout", "haggle__1__1", "--full", cwd=tmp_path).stdout
    document = json.loads(bench("eval", "show", "games", "--rollout", "haggle__1__1", "--json", cwd=tmp_path).stdout)
    [rollout] = document["rollouts"]
    assert [set(entry) for entry in rollout["exchange"]].count({"message"}) == 20


def test_a_job_of_games_shows_ratings_and_cross_play(tmp_path):
    arena_job(tmp_path / "jobs", "games")
    shown = bench("eval", "show", "games", cwd=tmp_path).stdout
    assert shown.startswith("games: agents oracle, script:")
    assert "12 games, 1 without a score" in shown
    rows = {line.split()[0]: line for line in shown.splitlines() if line.startswith(("oracle ", "nop "))}
    assert re.search(r"^oracle +\+95 \[-101, \+292\] +8 +0\.875", shown, re.MULTILINE), rows
    assert re.search(r"^nop +below -109 +8 +0\.000", shown, re.MULTILINE), rows
    assert "mean reward as seller against" in shown
    arena = json.loads(bench("eval", "show", "games", "--json", cwd=tmp_path).stdout)["arena"]
    assert [pairing["won"] + pairing["tied"] + pairing["lost"] for pairing in arena["pairings"]] == [4, 4, 4]
    assert bench("eval", "compare", "games", "games", cwd=tmp_path).returncode == 0
