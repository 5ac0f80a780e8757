"""Nothing is lost: jobs on disk, through kills, torn lines and second processes."""

import fcntl
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.evaluation.store import JobStore, job_argument
from benchflow.evaluation.summary import job_summary
from benchflow.record import ErrorRecord, Job, JobRecord, JobRequest, list_jobs, read_summary

UNSCORED = ErrorRecord("judge", "timeout", "verify", "The judge is away.")


@pytest.fixture
def result(make_result):
    return lambda number=1, **values: make_result(f"t{number}", key=f"key-{number}", **values)


def record(name="job", **request):
    return JobRecord(
        name, JobRequest(**{"sources": ("tasks",), "agent": "oracle", **request}), 1, "2026-01-01T00:00:00Z"
    )


@pytest.mark.parametrize(
    "left", [[], ["rollouts/"], ["rollouts/", ".lock"], ["rollouts/", ".lock", ".benchflow-1.tmp"]]
)
def test_a_job_that_was_killed_before_it_began_leaves_its_name_free(tmp_path, result, left):
    folder = tmp_path / "job"
    folder.mkdir()
    for name in left:
        (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("")
    store = JobStore.create(tmp_path, record())
    store.append(result(), "r")
    store.close()
    assert list_jobs(tmp_path) == ["job"]
    assert Job.find(tmp_path, "job").record.request.agent == "oracle"


def test_a_store_has_the_record_that_it_wrote_last(tmp_path):
    store = JobStore.create(tmp_path, record())
    longer = replace(store.record, planned=7)
    store.write_plan(longer)
    assert store.record is longer
    assert Job(tmp_path / "job").record == longer
    store.close()


@pytest.mark.parametrize(
    ("folder", "argument"),
    [("jobs/mine", "mine"), ("jobs/two words", "'two words'"), ("mine", "./mine"), ("other/mine", "other/mine")],
)
def test_a_job_is_named_as_commands_find_it(folder, argument):
    assert job_argument(Path(folder)) == argument


def test_a_job_that_is_about_to_begin_is_not_taken(tmp_path):
    (tmp_path / "job").mkdir()
    with (tmp_path / "job" / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another process") as caught:
            JobStore.create(tmp_path, record())
    assert caught.value.code == "job-running"


@pytest.mark.parametrize("file", ["notes.txt", "results.jsonl", "rollouts/a__1__00000000/result.json"])
def test_a_folder_of_something_else_is_never_taken_for_a_job(tmp_path, file):
    path = tmp_path / "job" / file
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(UsageError, match="is not a job; choose another name") as caught:
        JobStore.create(tmp_path, record())
    assert caught.value.code == "job-exists"
    assert not (tmp_path / "job" / "job.json").exists()


def test_what_is_appended_is_there_in_order(tmp_path, result):
    store = JobStore.create(tmp_path, record())
    for number in range(3):
        store.append(result(number), f"r{number}")
    summary = job_summary(store)
    store.write_summary(summary)
    store.close()
    again = Job.find(tmp_path, "job")
    assert [(name, r.key) for name, r in again.results] == [(f"r{n}", f"key-{n}") for n in range(3)]
    assert again.record.request.agent == "oracle"
    assert read_summary(again.places.summary) == summary
    assert list_jobs(tmp_path) == ["job"]


@settings(max_examples=settings().max_examples // 3)
@given(cut=st.integers(0, 400))
def test_a_torn_tail_is_cut_and_nothing_else_changes(tmp_path_factory, make_result, cut):
    folder = tmp_path_factory.mktemp("jobs")
    store = JobStore.create(folder, record())
    for number in range(3):
        store.append(make_result(key=f"key-{number}"), f"r{number}")
    store.close()
    path = folder / "job" / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    kept = whole[: whole.rfind(b"\n", 0, len(whole) - cut) + 1]
    store = JobStore.open(folder, "job")
    assert path.read_bytes() == kept
    store.append(make_result(key="key-9"), "r9")
    store.close()
    assert [name for name, _ in Job.find(folder, "job").results][-1] == "r9"


def test_a_reader_passes_over_a_torn_tail(tmp_path, result):
    store = JobStore.create(tmp_path, record())
    store.append(result(), "r")
    store.close()
    with (tmp_path / "job" / "results.jsonl").open("ab") as stream:
        stream.write(b'{"half')
    assert len(list(Job.find(tmp_path, "job").results)) == 1


@pytest.mark.parametrize("damage", [b"{}", b"\xff\xfe", b"[1]", b'{"schema":"benchcube.result.v9"}', b"[" * 100_000])
def test_a_damaged_line_is_named_and_the_others_are_read(tmp_path, result, damage):
    store = JobStore.create(tmp_path, record())
    for number in range(3):
        store.append(result(number), f"r{number}")
    store.close()
    path = tmp_path / "job" / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + damage + b"\n" + lines[2])
    before = path.read_bytes()
    store = JobStore.open(tmp_path, "job")
    store.close()
    results = store.results
    assert [line.number for line in results.damaged] == [2]
    assert [rollout for rollout, _ in results] == ["r0", "r2"]
    assert path.read_bytes() == before, "nothing is written anew"


def test_a_job_of_that_name_is_refused_and_points_to_resume(tmp_path):
    JobStore.create(tmp_path, record()).close()
    with pytest.raises(UsageError, match=r"bench eval resume /.*/job") as caught:
        JobStore.create(tmp_path, record())
    assert caught.value.code == "job-exists"


def test_nobody_is_sent_to_resume_a_job_that_cannot_be_read(tmp_path):
    JobStore.create(tmp_path, record()).close()
    (tmp_path / "job" / "job.json").write_text("{")
    with pytest.raises(UsageError, match=r"It cannot be continued; choose another name\.") as caught:
        JobStore.create(tmp_path, record())
    assert caught.value.code == "job-exists"


def test_a_job_of_an_older_version_cannot_be_continued(tmp_path):
    JobStore.create(tmp_path, record()).close()
    old = Path(__file__).parent.parent / "record" / "data" / "job-v1" / "job.json"
    (tmp_path / "job" / "job.json").write_bytes(old.read_bytes())
    with pytest.raises(UsageError, match="version 0.1") as caught:
        JobStore.open(tmp_path, "job")
    assert caught.value.code == "job-outdated"


def test_a_job_that_runs_elsewhere_is_refused(tmp_path):
    script = (
        "import sys; from pathlib import Path; from benchflow.evaluation.store import JobStore\n"
        "from benchflow.record import JobRecord, JobRequest\n"
        "job = JobRecord('job', JobRequest(('tasks',), 'oracle'), 1, '')\n"
        "store = JobStore.create(Path(sys.argv[1]), job); print('ready', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "ready\n"
    assert Job(tmp_path / "job").running
    with pytest.raises(UsageError, match="another process"):
        JobStore.open(tmp_path, "job")
    other.kill()
    other.communicate()
    assert not Job(tmp_path / "job").running
    JobStore.open(tmp_path, "job").close()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "a\0", "x" * 300])
def test_a_name_that_is_no_folder_is_refused(tmp_path, name):
    with pytest.raises(UsageError):
        JobStore.create(tmp_path, record(name))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_job_names_the_known(tmp_path):
    JobStore.create(tmp_path, record("mine")).close()
    with pytest.raises(UsageError, match="available: mine"):
        JobStore.open(tmp_path, "other")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureFailure, match=r"Cannot create .*: Not a directory") as caught:
        JobStore.create(tmp_path / "file", record())
    assert caught.value.code == "store-unwritable"


def test_a_job_whose_record_cannot_be_written_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(InfrastructureFailure, match=r"Cannot create .*: File too large") as caught:
            JobStore.create(tmp_path, record())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code == "store-unwritable"
    assert list(tmp_path.iterdir()) == []


def test_a_summary_that_cannot_be_written_is_one_sentence(tmp_path):
    store = JobStore.create(tmp_path, record())
    (tmp_path / "job" / "summary.json").mkdir()
    with pytest.raises(InfrastructureFailure, match=r"Cannot write .*bench eval resume /.*/job$"):
        store.write_summary(job_summary(store))
    store.close()


def test_a_full_disk_is_an_infrastructure_failure(tmp_path, result):
    store = JobStore.create(tmp_path, record())
    store._log = Path("/dev/full").open("r+b", buffering=0)  # noqa: SIM115  # closed with the store
    with pytest.raises(InfrastructureFailure, match=r"No space left .*bench eval resume /.*/job$") as caught:
        store.append(result(), "r")
    assert caught.value.code == "disk-full"
    store.close()
    store.close()


def test_half_a_line_is_taken_back_when_the_rest_cannot_be_written(tmp_path, result):
    """A limit on the size of files ends a write in the middle, as a disk that fills up does."""
    store = JobStore.create(tmp_path, record())
    store.append(result(1), "r1")
    path = tmp_path / "job" / "results.jsonl"
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        with pytest.raises(InfrastructureFailure, match=r"bench eval resume /.*/job") as caught:
            store.append(result(2), "r2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code == "store-unwritable"
    assert path.read_bytes() == before
    assert [name for name, _ in store.results] == ["r1"], "what is not on the disk does not count"
    store.append(result(3), "r3")
    store.close()
    assert [name for name, _ in Job.find(tmp_path, "job").results] == ["r1", "r3"]


@pytest.mark.parametrize("tail", [1, 65535, 65536, 65537, 200_000])
def test_a_torn_line_of_any_length_is_cut(tmp_path, result, tail):
    store = JobStore.create(tmp_path, record())
    store.append(result(), "r")
    store.close()
    path = tmp_path / "job" / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * tail)
    JobStore.open(tmp_path, "job").close()
    assert path.read_bytes() == whole
    path.write_bytes(b"x" * tail)
    JobStore.open(tmp_path, "job").close()
    assert path.read_bytes() == b""


def test_a_job_that_was_closed_cannot_be_written(tmp_path, result):
    store = JobStore.create(tmp_path, record())
    store.close()
    with pytest.raises(RuntimeError, match="closed"):
        store.append(result(), "r")
    assert list((tmp_path / "job" / "rollouts").iterdir()) == []
