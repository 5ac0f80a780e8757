"""`bench eval list | show | compare` as users call them."""

import json
import shlex

import pytest

from benchflow.record import ErrorRecord
from loaded_commands import bench


@pytest.fixture
def fill(make_result, make_job):
    def fill(folder, name, rewards, **job):
        away = ErrorRecord("judge", "timeout", "verify", "away")
        results = [make_result(task, reward, away if reward is None else None) for task, reward in rewards]
        make_job(folder / "jobs", name, results, **job)

    return fill


@pytest.fixture
def jobs(tmp_path, fill):
    fill(tmp_path, "one", [("a", 0.0), ("b", 0.1), ("c", 0.0)], planned=3)
    fill(tmp_path, "two", [("a", 1.0), ("b", 1.0), ("c", 0.9), ("d", None)], planned=9)
    return tmp_path


def test_list_shows_state_and_score(jobs):
    rows = json.loads(bench("eval", "list", "--json", cwd=jobs).stdout)["jobs"]
    assert [(row["job"], row["state"], row["scored"], row["total"]) for row in rows] == [
        ("one", "finished", 3, 3),
        ("two", "unfinished", 3, 4),
    ]
    assert "3/9" in bench("eval", "list", cwd=jobs).stdout


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("job.json", b"{", "job.json cannot be read"),
        ("job.json", b"[]", "it is not a JSON object"),
        ("job.json", b'{"planned": "three"}', "cannot be read"),
        ("job.json", b"[" * 100_000, "it is nested deeper than 64 levels"),
        ("job.json", b'{"schema": "benchcube.job.v9"}', "it must be benchcube.job.v2 or benchcube.job.v1"),
    ],
)
def test_a_damaged_job_is_a_row_that_says_so_beside_the_others(jobs, file, content, why):
    (jobs / "jobs" / "one" / file).write_bytes(content)
    shown = bench("eval", "list", cwd=jobs)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "3/9" in shown.stdout
    assert "one is damaged: " in shown.stdout
    assert why in shown.stdout
    rows = {row["job"]: row for row in json.loads(bench("eval", "list", "--json", cwd=jobs).stdout)["jobs"]}
    assert (rows["one"]["state"], rows["one"]["scored"], rows["two"]["scored"]) == ("damaged", None, 3)
    assert why in rows["one"]["problem"]
    assert rows["two"]["problem"] is None


@pytest.mark.parametrize("damage", [b'{"schema": "other"}\n', b"\xff\xfe\n"])
def test_a_damaged_line_is_named_on_stderr_and_the_rest_is_shown(jobs, damage):
    path = jobs / "jobs" / "one" / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + damage + lines[2])
    shown = bench("eval", "show", "one", cwd=jobs)
    assert (shown.returncode, "2 of 2 rollouts scored" in shown.stdout) == (0, True)
    assert "1 more planned; to continue: bench eval resume one" in shown.stdout
    assert "jobs/one/results.jsonl, line 2 is damaged and left out: " in shown.stderr
    summary = json.loads(bench("eval", "show", "one", "--json", cwd=jobs).stdout)
    assert ([line["line"] for line in summary["damaged_lines"]], summary["total"]) == ([2], 2)
    compared = bench("eval", "compare", "one", "two", cwd=jobs)
    assert (compared.returncode, "line 2 is damaged" in compared.stderr) == (0, True)


@pytest.mark.parametrize(
    "change",
    [{"usage": {"tokens": 10**400}}, {"timing": {"total": float("nan")}}, {"key": "\ud800"}, {"rollout": "../../x"}],
)
def test_one_odd_line_stops_no_command(jobs, change):
    path = jobs / "jobs" / "one" / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    odd = json.dumps({**json.loads(lines[1]), **change}).encode() + b"\n"
    path.write_bytes(lines[0] + odd + lines[2])
    for command in (["show", "one"], ["list"], ["compare", "one", "two"]):
        shown = bench("eval", *command, cwd=jobs)
        assert (shown.returncode, "results.jsonl, line 2 is damaged and left out: " in shown.stderr) == (0, True)


def test_rewards_that_cannot_be_added_up_are_listed_and_shown(jobs):
    path = jobs / "jobs" / "one" / "results.jsonl"
    huge = {"reward": 1.7e308, "rewards": {"reward": 1.7e308}}
    lines = [json.dumps({**json.loads(line), **huge}) + "\n" for line in path.read_bytes().splitlines()]
    path.write_text("".join(lines))
    shown = bench("eval", "list", cwd=jobs)
    assert (shown.returncode, "1.700e+308" in shown.stdout, "3/9" in shown.stdout) == (0, True, True)
    whole = bench("eval", "show", "one", cwd=jobs)
    assert (whole.returncode, "mean reward 1.700e+308" in whole.stdout, "inf" in whole.stdout) == (0, True, False)


def test_show_mentions_a_torn_last_line_in_one_sentence(jobs):
    path = jobs / "jobs" / "one" / "results.jsonl"
    assert "incomplete" not in bench("eval", "show", "one", cwd=jobs).stderr
    path.write_bytes(path.read_bytes()[:-9])
    shown = bench("eval", "show", "one", cwd=jobs)
    assert (shown.returncode, "2 of 2 rollouts scored" in shown.stdout) == (0, True)
    assert shown.stderr.splitlines() == ["The last line of jobs/one/results.jsonl is incomplete and left out."]


def test_a_file_is_no_folder_of_jobs(jobs):
    (jobs / "file").write_text("")
    result = bench("eval", "list", "--jobs-dir", "file", cwd=jobs)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "bench: file is not a folder.\n")


def test_an_empty_folder_says_how_to_start(tmp_path):
    result = bench("eval", "list", cwd=tmp_path)
    assert (result.returncode, "bench eval run" in result.stdout) == (0, True)


def test_show_prints_the_summary(jobs):
    summary = json.loads(bench("eval", "show", "two", "--json", cwd=jobs).stdout)
    assert (summary["total"], summary["unscored_by"]) == (4, {"judge": 1})
    assert len(summary["results"]) == 4
    text = bench("eval", "show", "jobs/two", cwd=jobs).stdout
    assert "3 of 4 rollouts scored" in text
    assert "judge/timeout" in text
    assert "5 more planned; to continue: bench eval resume two" in text
    assert "planned" not in bench("eval", "show", "one", cwd=jobs).stdout


@pytest.mark.parametrize("place", ["elsewhere", "."])
def test_the_hint_to_resume_names_a_job_that_is_found(tmp_path, fill, place):
    fill(tmp_path, "one", [("a", 1.0)], planned=2)
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / "jobs" / "one").rename(tmp_path / place / "o ne")
    shown = bench("eval", "show", "o ne", "--jobs-dir", place, cwd=tmp_path).stdout
    [hint] = [line for line in shown.splitlines() if "to continue" in line]
    command = shlex.split(hint.partition("to continue: ")[2])
    assert command[:3] == ["bench", "eval", "resume"]
    assert bench("eval", "show", *command[3:], cwd=tmp_path).returncode == 0


def test_compare_says_which_is_better_and_can_fail(jobs):
    result = bench("eval", "compare", "one", "two", cwd=jobs)
    assert (result.returncode, "better" in result.stdout) == (0, True)
    worse = bench("eval", "compare", "two", "one", "--fail-if-worse", "--json", cwd=jobs)
    assert (worse.returncode, json.loads(worse.stdout)["verdict"]) == (1, "worse")


@pytest.mark.parametrize("arguments", [["show", "nothing"], ["compare", "one", "nothing"], ["show", "../x"]])
def test_an_unknown_job_is_wrong_usage_with_nothing_on_stdout(jobs, arguments):
    result = bench("eval", *arguments, "--json", cwd=jobs)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
