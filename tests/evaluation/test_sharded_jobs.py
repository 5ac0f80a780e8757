"""The same job whole, and as shards from different folders, killed, resumed and merged: equal summaries."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loaded_commands import BENCH, bench

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.xdist_group("jobs")]
EXAMPLES = Path(__file__).parents[2] / "examples" / "packages"
RUN = ("eval", "run", "tasks", "--agent", "oracle", "--attempts", 2, "--base-image", "host", "--sandbox", "local")


def package(folder: Path, verifier: str) -> None:
    (folder / "verifier").mkdir(parents=True)
    (folder / "task.md").write_text(f"---\nschema_version: '1.3'\ntask: {{name: t/{folder.name}}}\n---\nDo it.\n")
    (folder / "oracle").mkdir()
    (folder / "oracle" / "solve.sh").write_text("#!/bin/sh\ntrue\n")
    (folder / "verifier" / "test.sh").write_text(f"#!/bin/sh\n{verifier}\n")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders with the same packages, as two machines have them; the whole job has run on the first."""
    folder = tmp_path_factory.mktemp("machines")
    here, there = folder / "here", folder / "there"
    for name in ("count-words", "fix-parser"):
        shutil.copytree(EXAMPLES / name, here / "tasks" / name)
    package(here / "tasks" / "half", "echo 0.5 > /logs/verifier/reward.txt")
    package(here / "tasks" / "silent", "true")
    package(here / "tasks" / "twin", "echo 1 > /logs/verifier/reward.txt")
    shutil.copytree(here / "tasks" / "twin", here / "tasks" / "twin-2")
    shutil.copytree(here, there)
    (there / "tasks").rename(there / "moved")
    whole = bench(*RUN, "--name", "whole", cwd=here)
    assert whole.returncode == 1, whole.stderr
    return here, there


def told(done: subprocess.CompletedProcess[str], code: int) -> Any:
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout)


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    """What has to be equal: everything but times, and what is made up for each rollout."""
    results = []
    for result in summary["results"]:
        kept = {
            key: value for key, value in result.items() if key not in ("rollout", "timing", "started_at", "finished_at")
        }
        kept["task"] = {**kept["task"], "path": ""}
        results.append(kept)
    return {**summary, "job": "", "results": sorted(results, key=lambda kept: str(kept["key"]))}


def summary_of(folder: Path) -> dict[str, Any]:
    return without_times(json.loads((folder / "summary.json").read_bytes()))


def test_shards_of_two_machines_one_of_them_killed_are_the_whole_job_when_they_are_merged(machines):
    here, there = machines
    second = bench(*RUN[:2], "moved", *RUN[3:], "--shard", "2/2", "--name", "job", "--json", cwd=there)
    summary = json.loads(second.stdout)
    assert (summary["total"], summary["shard"]) == (6, {"index": 2, "count": 2})
    assert second.returncode == (0 if summary["scored"] == 6 else 1)

    with subprocess.Popen(
        [*BENCH, *map(str, RUN), "--shard", "1/2", "--name", "first", "--concurrency", "1"],
        cwd=here,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stderr is not None
        assert "[1/6]" in first.stderr.readline()
        first.kill()
    shards = ("first", there / "jobs" / "job")
    early = bench("eval", "merge", *shards, "--name", "early", "--json", cwd=here)
    missing = told(early, 1)["missing"]
    assert missing > 0
    assert f"{missing} of 12 rollouts are missing; to run them: bench eval resume early" in early.stderr

    resumed = bench("eval", "resume", "first", "--json", cwd=here)
    assert json.loads(resumed.stdout)["total"] == 6, resumed.stderr
    merged = told(bench("eval", "merge", *shards, "--name", "merged", "--json", cwd=here), 1)
    assert (merged["missing"], merged["without_folder"]) == (0, [])
    whole = summary_of(here / "jobs" / "whole")
    assert without_times(merged["summary"]) == summary_of(here / "jobs" / "merged") == whole
    lines = (here / "jobs/merged/results.jsonl").read_bytes().splitlines()
    sources = [path / "results.jsonl" for path in (here / "jobs" / "first", there / "jobs" / "job")]
    assert sorted(lines) == sorted(line for path in sources for line in path.read_bytes().splitlines())

    told(bench("eval", "resume", "early", "--json", cwd=here), 1)
    assert summary_of(here / "jobs" / "early") == whole, "what is missing in a merged job is run by resume"


def test_everything_that_takes_a_job_takes_a_merged_one(machines, tmp_path):
    here, _ = machines
    for index in (1, 2, 3):
        bench(*RUN, "--exclude", "*silent", "--shard", f"{index}/3", "--name", f"s{index}", cwd=here)
    assert (
        told(bench("eval", "merge", "s3", "s1", "s2", "--name", "m", "--json", cwd=here), 0)["summary"]["scored"] == 10
    )
    shutil.rmtree(here / "jobs" / "s2")
    again = told(bench("eval", "resume", "m", "--json", cwd=here), 0)
    assert again["total"] == len((here / "jobs/m/results.jsonl").read_bytes().splitlines()) == 10, "nothing ran again"
    compared = told(bench("eval", "compare", "m", "whole", "--json", cwd=here), 0)
    assert compared["difference"]["value"] == 0
    rescored = told(bench("eval", "rescore", "m", "--json", cwd=here), 0)
    assert (len(rescored["rescored"]), rescored["not_rescored"]) == (10, [])
    board = tmp_path / "board.zip"
    exported = bench("leaderboard", "export", "m", "-o", board, cwd=here)
    assert exported.returncode == 0, exported.stderr
    checked = bench("leaderboard", "verify", board, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    refused = bench("leaderboard", "export", "s1", "-o", tmp_path / "none.zip", cwd=here)
    assert refused.returncode == 1
    assert "the job is shard 1/3 of its plan: publish the merged job" in refused.stderr + refused.stdout
    page = tmp_path / "job.html"
    for job, shown in (("m", "10"), ("s1", "shard 1/3 of its plan")):
        assert bench("view", "jobs", "--export", page, "--job", job, cwd=here).returncode == 0
        assert shown in page.read_text()
        page.unlink()


def test_a_shard_is_listed_shown_and_continued_as_one_and_refused_after_a_task_was_added(machines):
    here, _ = machines
    bench(*RUN, "--include", "*count*", "--include", "*twin*", "--shard", "1/2", "--name", "part", cwd=here)
    [row] = [row for row in told(bench("eval", "list", "--json", cwd=here), 0)["jobs"] if row["job"] == "part"]
    assert (row["shard"], row["planned"], row["state"]) == ({"index": 1, "count": 2}, 3, "finished")
    shown = bench("eval", "show", "part", cwd=here).stdout
    assert "part: agent oracle, model –, shard 1/2 of a plan of 6 rollouts" in shown
    assert "statistics are of shard 1/2 only" in shown
    watched = told(bench("eval", "watch", "part", "--json", cwd=here), 0)
    assert (watched["planned"], watched["done"], watched["shard"]) == (3, 3, {"index": 1, "count": 2})
    package(here / "tasks" / "twin-3", "true")
    try:
        refused = bench("eval", "resume", "part", cwd=here)
        assert refused.returncode == 2
        assert "tasks were added or removed since" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    finally:
        shutil.rmtree(here / "tasks" / "twin-3")
    assert bench("eval", "resume", "part", cwd=here).returncode == 0
