"""Merging: jobs of one plan become one job with nothing lost or doubled; what does not belong together is refused."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.evaluation.shards.merge import merge_jobs
from benchflow.evaluation.store import JobStore
from benchflow.evaluation.summary import job_summary
from benchflow.record import ErrorRecord, Job, JobRecord, JobRequest, Shard, WholePlan, list_jobs, read_summary

PLAN = WholePlan(4, "sha256:plan", "sha256:order")
FAILED = ErrorRecord("sandbox", "start-failed", "environment", "No room.")


@pytest.fixture
def jobs(tmp_path):
    return tmp_path / "jobs"


@pytest.fixture
def make(jobs, make_result):
    """Makes a job of results, given as (task, reward or error), one folder with a file for each rollout."""

    def made(name, *results, shard=None, plan=PLAN, created="2026-01-01T00:00:00+00:00", directory="", **request):
        wanted = JobRequest(**{"sources": (f"of-{name}",), "agent": "oracle", "shard": shard, **request})
        folder = jobs / directory
        store = JobStore.create(folder, JobRecord(name, wanted, len(results), created, plan=plan))
        for number, (task, outcome) in enumerate(results):
            rollout = f"{task}__1__{name}{number}"
            scored = isinstance(outcome, float)
            result = make_result(task, outcome if scored else 1.0, None if scored else outcome)
            result = replace(result, finished_at=f"2026-01-01T00:0{number}:00Z")
            (store.places.rollout(rollout).path / "verifier").mkdir(parents=True)
            (store.places.rollout(rollout).verifier / "test.log").write_text(f"{name} {number}")
            store.append(result, rollout)
        store.close()
        return Job(store.folder)

    return made


@pytest.fixture
def shards(make):
    return [
        make("a", ("t1", 1.0), ("t2", FAILED), ("t2", 0.5), shard=Shard(1, 2)),
        make("b", ("t3", 0.0), ("t4", FAILED), shard=Shard(2, 2), created="2026-01-02T00:00:00+00:00"),
    ]


def lines(job: Job) -> list[str]:
    return [json.loads(line)["rollout"] for line in job.places.results.read_bytes().splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_line_and_every_folder_is_taken_over_in_an_order_that_does_not_depend_on_the_command(jobs, shards):
    (shards[0].places.rollouts / "killed__1__0").mkdir()
    report = merge_jobs(shards, jobs, "both")
    both = Job(report.folder)
    assert lines(both) == ["t1__1__a0", "t3__1__b0", "t2__1__a1", "t4__1__b1", "t2__1__a2"]
    assert names(both.places.rollouts) == sorted([*lines(both), "killed__1__0"])
    assert (both.record.planned, both.record.created_at) == (4, "2026-01-01T00:00:00+00:00")
    assert both.record.request == replace(shards[0].record.request, shard=None)
    assert [(part.job, str(part.shard), part.results) for part in both.record.merged] == [
        ("a", "1/2", 3),
        ("b", "2/2", 2),
    ]
    assert read_summary(both.places.summary) == job_summary(both) == report.summary
    assert (report.missing, report.summary.statistics.scored) == (0, 3)
    merge_jobs(shards[::-1], jobs, "again")
    assert Job(jobs / "again").places.results.read_bytes() == both.places.results.read_bytes()
    assert tree(jobs / "again" / "rollouts") == tree(both.places.rollouts)


def test_a_merged_job_stays_as_it_is_when_its_sources_are_changed_or_removed(jobs, shards):
    merge_jobs(shards, jobs, "both")
    before = tree(jobs / "both")
    with (shards[0].places.rollout("t1__1__a0").verifier / "test.log").open("a") as stream:
        stream.write("changed in place")
    shutil.rmtree(shards[1].folder)
    assert tree(jobs / "both") == before


def test_shards_can_be_missing_and_merged_later_and_merges_can_be_merged(jobs, shards):
    first = merge_jobs(shards[:1], jobs, "first")
    assert first.missing == 2
    merge_jobs(shards, jobs, "both")
    for number, sources in enumerate((["first", "b"], ["both", "first"], ["both", "a", "b"])):
        merge_jobs([Job(jobs / each) for each in sources], jobs, f"m{number}")
        merged = Job(jobs / f"m{number}")
        assert sorted(lines(merged)) == sorted(lines(Job(jobs / "both")))
        assert len(lines(merged)) == len(set(lines(merged))) == 5
        assert tree(merged.places.rollouts) == tree(jobs / "both" / "rollouts")


def test_of_a_rollout_that_was_rescored_in_one_of_two_jobs_all_verdicts_are_kept(jobs, shards, make_result):
    merge_jobs(shards, jobs, "both")
    store = JobStore.open(jobs, "both")
    store.append(make_result("t1", 0.25), "t1__1__a0")
    (store.places.rollout("t1__1__a0").path / "rescores").mkdir()
    (store.places.rollout("t1__1__a0").path / "rescores" / "new").write_text("x")
    store.close()
    report = merge_jobs([shards[0], Job(jobs / "both")], jobs, "next")
    assert lines(Job(jobs / "next")).count("t1__1__a0") == 2
    assert (jobs / "next/rollouts/t1__1__a0/rescores/new").exists()
    assert {result.task.name: result.reward for _, result in report.summary.counted}["t1"] == 0.25


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"agent": "nop"}, "they differ in agent, oracle and nop."),
        ({"max_steps": 5}, "they differ in max_steps, None and 5."),
        ({"attempts": 2}, "they differ in attempts, 1 and 2."),
        ({"keep_workspace": False}, "they differ in keep_workspace, True and False."),
        ({"plan": replace(PLAN, digest="sha256:other")}, "the packages that they were last run with are not the same."),
        ({"plan": None}, "Job 'c' does not record its plan"),
    ],
)
def test_jobs_of_different_plans_are_refused_with_what_differs(jobs, shards, make, changes, sentence):
    other = make("c", ("t3", 1.0), **{"shard": Shard(2, 2), **changes})
    with pytest.raises(UsageError) as caught:
        merge_jobs([shards[0], other], jobs, "both")
    assert sentence in str(caught.value)
    assert names(jobs) == ["a", "b", "c"], "nothing was written"


def test_where_packages_are_may_differ(jobs, shards, make):
    other = make("c", ("t3", 1.0), shard=Shard(2, 2), sources=("elsewhere",), pull="never", concurrent_calls=3)
    assert merge_jobs([shards[0], other], jobs, "both").record.request.sources == ("of-a",)


def test_two_scores_of_the_same_work_are_refused_and_failed_tries_beside_a_score_are_kept(jobs, make):
    first, second = make("a", ("t1", 1.0), ("t2", FAILED)), make("b", ("t2", 0.5), ("t1", FAILED))
    report = merge_jobs([first, second], jobs, "both")
    assert {result.task.name: result.reward for _, result in report.summary.counted} == {"t1": 1.0, "t2": 0.5}
    assert report.summary.statistics.total == 2
    third = make("c", ("t1", 0.0))
    with pytest.raises(UsageError, match=r"'a' and 'c' have both scored t1, attempt 1.*merge one of them"):
        merge_jobs([first, third], jobs, "none")


def test_jobs_with_the_same_name_in_different_folders_are_merged(jobs, make):
    one, two = make("job", ("t1", 1.0), directory="one"), make("job", ("t2", 1.0), directory="two")
    (two.places.rollouts / "t2__1__job0").rename(two.places.rollouts / "renamed")
    report = merge_jobs([one, two], jobs, "both")
    assert report.without_folder == ("t2__1__job0",)
    assert (report.folder / "rollouts" / "renamed").is_dir()


def test_a_damaged_line_is_kept_and_named_and_a_torn_one_is_left_out(jobs, shards):
    with shards[0].places.results.open("ab") as stream:
        stream.write(b"{broken}\n")
    with shards[1].places.results.open("ab") as stream:
        stream.write(b'{"half')
    report = merge_jobs(shards, jobs, "both")
    assert report.torn == ("b",)
    assert [line.number for line in Job(report.folder).results.damaged] == [6]
    assert Job(report.folder).places.results.read_bytes().endswith(b"{broken}\n")


def test_what_runs_what_is_old_what_is_named_twice_and_a_name_that_exists_are_refused(jobs, shards, tmp_path):
    with pytest.raises(UsageError, match="'a' is named twice"):
        merge_jobs([shards[0], Job(jobs / ".." / "jobs" / "a")], jobs, "both")
    with pytest.raises(UsageError, match="'b' exists"):
        merge_jobs(shards, jobs, "b")
    with shards[1].places.lock.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="'b' is being run by another process"):
            merge_jobs(shards, jobs, "both")
    old = Path(__file__).parent.parent / "record" / "data" / "job-v1" / "job.json"
    shards[1].places.job.write_bytes(old.read_bytes())
    with pytest.raises(UsageError, match=r"version 0\.1"):
        merge_jobs([shards[0], Job(shards[1].folder)], jobs, "both")
    assert names(jobs) == ["a", "b"]


def test_a_source_that_cannot_be_written_is_read(jobs, shards):
    shards[0].places.lock.unlink()
    assert merge_jobs(shards, jobs, "both").summary.statistics.total == 4


def test_what_a_killed_merge_left_is_no_job_and_is_removed_by_the_next(jobs, shards):
    left = jobs / ".benchflow-0123.tmp"
    shutil.copytree(shards[0].folder, left)
    (left / ".lock").touch()
    assert list_jobs(jobs) == ["a", "b"]
    with (left / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merge_jobs(shards, jobs, "both")
        assert left.exists(), "a merge that is still running keeps its folder"
    merge_jobs(shards, jobs, "again")
    assert not left.exists()


def test_passes_of_rescore_are_continued_where_one_was_not_finished(jobs, shards):
    for job, document in zip(
        shards, ({"number": 2, "finished_at": None}, {"number": 1, "finished_at": "x"}), strict=True
    ):
        job.places.rescore.write_text(json.dumps(document))
    merge_jobs(shards, jobs, "both")
    assert json.loads((jobs / "both/rescore.json").read_bytes()) == {"number": 2, "finished_at": None}


def test_whatever_lies_in_the_place_of_a_lock_is_not_waited_for_and_not_taken_for_an_ended_job(jobs, shards):
    for job in shards:
        job.places.lock.unlink(missing_ok=True)
    os.mkfifo(shards[0].places.lock)
    shards[1].places.lock.symlink_to(shards[1].places.lock)
    with pytest.raises(UsageError, match="unknown whether the job is running"):
        merge_jobs(shards, jobs, "both")
    shards[1].places.lock.unlink()
    merge_jobs(shards, jobs, "both")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_disk_that_fills_up_leaves_nothing(tmp_path, shards):
    (shards[1].places.rollout("t3__1__b0").path / "large").write_bytes(b"x" * 300_000)
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", full], check=True)
    try:
        with pytest.raises(InfrastructureFailure, match=r"No space left on device\. Nothing was written\.") as caught:
            merge_jobs(shards, full, "both")
        assert caught.value.code == "disk-full"
        assert list(full.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", full], check=True)


def test_links_stay_links_and_what_is_not_a_file_is_one_sentence(jobs, shards):
    folder = shards[0].places.rollout("t1__1__a0").path
    (folder / "link").symlink_to("/nowhere")
    merge_jobs(shards, jobs, "both")
    assert (jobs / "both/rollouts/t1__1__a0/link").readlink() == Path("/nowhere")
    os.mkfifo(folder / "pipe")
    with pytest.raises(InfrastructureFailure, match=r"pipe is not a regular file\. Nothing was written\."):
        merge_jobs(shards, jobs, "again")
    assert names(jobs) == ["a", "b", "both"]


def test_a_folder_that_only_one_of_two_jobs_with_a_rollout_has_is_taken_from_that_one(jobs, shards):
    merge_jobs(shards, jobs, "both")
    shutil.rmtree(jobs / "both/rollouts/t1__1__a0")
    report = merge_jobs([Job(jobs / "both"), shards[0]], jobs, "again")
    assert report.without_folder == ()
    assert (jobs / "again/rollouts/t1__1__a0/verifier/test.log").read_text() == "a 0"


def test_a_link_in_the_place_of_a_rollout_is_not_followed(jobs, shards, tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("secret")
    folder = shards[0].places.rollout("t1__1__a0").path
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path / "private")
    report = merge_jobs(shards, jobs, "both")
    assert report.without_folder == ("t1__1__a0",)
    assert not os.path.lexists(jobs / "both/rollouts/t1__1__a0")


@pytest.mark.slow
def test_folders_that_are_nested_deeply_are_copied(jobs, shards):
    deep = Path(*["d"] * 1100)
    place = os.open(shards[0].places.rollout("t1__1__a0").path, os.O_RDONLY)
    for name in deep.parts:
        os.mkdir(name, dir_fd=place)
        inner = os.open(name, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    try:
        merge_jobs(shards, jobs, "both")
        assert (jobs / "both/rollouts/t1__1__a0" / deep).is_dir()
    finally:
        subprocess.run(["rm", "-rf", jobs], check=True)  # too deep for Python


def test_a_file_that_cannot_be_read_is_named(jobs, shards):
    shards[0].places.rescore.mkdir()
    with pytest.raises(InfrastructureFailure, match=r"Is a directory \(.*/a/rescore\.json\)\. Nothing was written\."):
        merge_jobs(shards, jobs, "both")
    shards[0].places.rescore.rmdir()
    shards[0].places.rescore.write_text('{"number": 1, "finished_at": 5}')
    with pytest.raises(InfrastructureFailure, match=r"a/rescore\.json cannot be read: 'finished_at' is not a time\."):
        merge_jobs(shards, jobs, "both")
    assert names(jobs) == ["a", "b"]
