"""Isolation in jobs: proven once for all attempts, chosen by the user, counted in every summary, kept when rescored."""

import contextlib
import io
import json

import pytest

from benchflow.cli import main
from benchflow.cli.arguments import ISOLATIONS
from benchflow.evaluation.statistics import Sample, summarise
from benchflow.record import TaskId
from benchflow.task.config.task_config import AUTO, RUNGS
from written_documents import check_fits

SYSTEM = "if [ -f /etc/answer ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
SPLIT = {
    "task.toml": "version = '1.0'\n[task]\nname = 't/split'\n[agent]\nuser = 'root'\n",
    "instruction.md": "Do it.",
    "tests/test.sh": SYSTEM,
    "solution/solve.sh": "echo > /etc/answer\n",
}
NATIVE = {
    "task.md": "---\ntask: {name: t/native}\n---\nDo it.\n",
    "verifier/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "true\n",
}


@pytest.fixture
def bench(tmp_path, monkeypatch, sandbox_name):
    """Runs `bench` inside this process, with its own cache; gives exit code and output."""
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))

    def run(*arguments):
        out = io.StringIO()
        with contextlib.chdir(tmp_path), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = main([str(argument) for argument in arguments])
        return code, out.getvalue()

    def job(name, *arguments, agent="oracle"):
        named = ("--agent", agent, "--sandbox", sandbox_name, "--name", name, "--json")
        code, out = run("eval", "run", "tasks", *named, *arguments)
        assert code == 0, out
        return json.loads(out)

    run.job = job
    return run


@pytest.fixture
def write(tmp_path):
    def write(name, files):
        for path, text in files.items():
            place = tmp_path / "tasks" / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)

    return write


def rungs(summary):
    return [line["verifier"]["isolation"]["rung"] for line in summary["results"]]


def test_a_summary_says_how_many_rollouts_ran_at_which_rung(bench, write):
    write("split", SPLIT)
    write("native", NATIVE)
    write("without", {**SPLIT, "task.toml": "version = '1.0'\n[task]\nname = 't/without'\n", "solution/solve.sh": ""})
    summary = bench.job("all", "--attempts", "2", agent="nop")
    check_fits(summary, "summary")
    assert summary["isolation"] == {"shared": 2, "system": 2, "open": 2}
    assert summary["wider"] == {"checked": 0, "higher": 0}
    _, text = bench("eval", "show", "all")
    assert "isolation shared 2, system 2, open 2" in text
    assert "OPEN: 2 rollouts verified in the agent's own sandbox" in text


def test_rewards_that_a_wider_rung_would_raise_are_counted(bench, write, tmp_path):
    either = SYSTEM.replace("if [", "if [ -f answer ] || [")
    write("split", {**SPLIT, "tests/test.sh": either, "solution/solve.sh": "echo > answer\n"})
    (tmp_path / "agent.sh").write_text("echo > /etc/answer\n")
    summary = bench.job("lost", agent="script:agent.sh")
    assert (summary["mean_reward"]["value"], summary["wider"]) == (0.0, {"checked": 1, "higher": 1})
    _, text = bench("eval", "show", "lost")
    assert "1 rollout below full reward with changes withheld; 1 would score more with them" in text


def test_the_isolation_of_the_user_is_kept_with_the_job(bench, write):
    write("split", SPLIT)
    summary = bench.job("strict", "--isolation", "shared")
    (line,) = summary["results"]
    assert line["verifier"]["isolation"] == {"rung": "shared", "chosen_by": "user", "proof": None}
    code, _ = bench("eval", "rescore", "strict")
    assert code == 0
    _, text = bench("eval", "show", "strict", "--json")
    assert rungs(json.loads(text)) == ["shared"]


def test_a_proven_rung_is_used_again_when_a_job_is_rescored(bench, write):
    write("split", SPLIT)
    before = bench.job("proven")
    code, _ = bench("eval", "rescore", "proven")
    assert code == 0
    after = json.loads(bench("eval", "show", "proven", "--json")[1])
    assert after["results"][0]["verifier"]["isolation"] == before["results"][0]["verifier"]["isolation"]
    assert after["results"][0]["reward"] == 1.0


def test_a_package_shows_its_isolation_and_what_is_proven(bench, write, sandbox_name):
    write("split", SPLIT)
    _, text = bench("tasks", "show", "tasks/split")
    assert "auto, not proven yet on this machine" in text
    bench.job("proven")
    _, text = bench("tasks", "show", "tasks/split")
    assert f"auto, system proven on {sandbox_name} (host)" in text
    (part,) = json.loads(bench("tasks", "show", "tasks/split", "--json")[1])["isolation"]
    assert (part["declared"], part["proofs"][0]["rung"]) == ("auto", "system")


def test_an_unknown_isolation_is_wrong_usage(bench, write):
    write("split", SPLIT)
    assert bench("eval", "run", "tasks", "--agent", "nop", "--isolation", "none")[0] == 2
    assert bench("eval", "run", "cube:counter", "--agent", "nop", "--isolation", "open")[0] == 2


def test_the_command_line_has_every_isolation():
    assert list(ISOLATIONS) == [*RUNGS, AUTO]


def test_rungs_are_counted_in_their_order():
    task = TaskId("t/a", None)
    samples = [Sample(task, 1.0, rung=rung) for rung in ("open", "shared", "shared", None)]
    found = summarise([*samples, Sample(task, 0.0, rung="shared", higher=(False,))])
    assert list(found.isolation.items()) == [("shared", 3), ("open", 1)]
    assert (found.wider.checked, found.wider.higher) == (1, 0)
