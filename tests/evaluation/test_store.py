"""Nothing is lost: jobs on disk, through kills, torn lines and second processes."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.evaluation.store import JobStore, is_running, list_jobs
from benchflow.record import schema
from benchflow.record.schemas import ErrorRecord, Result


def result(number=1, **values):
    values.setdefault("status", "scored")
    values.setdefault("reward", 1.0)
    return Result(
        task={"name": f"t{number}", "path": "p", "digest": "sha256:0"},
        agent={"name": "oracle", "model": None, "exit_code": 0, "timed_out": False},
        sandbox={"name": "local", "base": "host", "fidelity": "exact"},
        attempt=1,
        key=f"key-{number}",
        rewards={"reward": 1.0},
        verifier={"strategy": "script", "isolation": "shared", "exit_code": 0, "diagnostics": []},
        timing={"agent": 0.1},
        started_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T00:00:01Z",
        **values,
    )


UNSCORED = {
    "status": "unscored",
    "reward": None,
    "error": ErrorRecord("judge", "timeout", "verify", "The judge is away."),
}


@pytest.mark.parametrize("values", [{}, UNSCORED, {"extra": {"steps": [1]}}])
def test_a_result_survives_json_and_fits_its_schema(values):
    original = result(**values)
    document = json.loads(json.dumps(original.to_dict()))
    jsonschema.validate(document, schema("result"))
    assert Result.from_dict(document) == original
    assert len(json.dumps(document)) < 4096


@pytest.mark.parametrize(
    "values",
    [
        {"reward": None},
        {"status": "unscored", "reward": None},
        {**UNSCORED, "reward": 0.0},
        {"error": UNSCORED["error"]},
    ],
)
def test_there_is_nothing_between_scored_and_unscored(values):
    with pytest.raises(ValueError, match="exactly when"):
        result(**values)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), True, "1"])
def test_a_reward_is_a_finite_number(value):
    with pytest.raises(ValueError, match="finite number"):
        result(reward=value)
    with pytest.raises(ValueError, match="speed"):
        Result.from_dict({**result().to_dict(), "rewards": {"reward": 1.0, "speed": value}})


def test_usage_that_is_no_number_is_not_written():
    assert result(usage={"cost_usd": float("nan"), "steps": 2}).to_dict()["usage"] == {"steps": 2}


@pytest.mark.parametrize(
    "left", [[], ["rollouts/"], ["rollouts/", ".lock"], ["rollouts/", ".lock", ".benchflow-1.tmp"]]
)
def test_a_job_that_was_killed_before_it_began_leaves_its_name_free(tmp_path, left):
    folder = tmp_path / "job"
    folder.mkdir()
    for name in left:
        (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("")
    store = JobStore.create(tmp_path, "job", {"agent": "oracle"})
    store.append(result(), "r")
    store.close()
    assert list_jobs(tmp_path) == ["job"]
    assert JobStore.read(tmp_path, "job").job["agent"] == "oracle"


def test_a_job_that_is_about_to_begin_is_not_taken(tmp_path):
    (tmp_path / "job").mkdir()
    with (tmp_path / "job" / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another process"):
            JobStore.create(tmp_path, "job", {})


@pytest.mark.parametrize("file", ["notes.txt", "results.jsonl", "rollouts/a__1__00000000/result.json"])
def test_a_folder_of_something_else_is_never_taken_for_a_job(tmp_path, file):
    path = tmp_path / "job" / file
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(UsageError, match="is no job; choose another name"):
        JobStore.create(tmp_path, "job", {})
    assert not (tmp_path / "job" / "job.json").exists()


def test_what_is_appended_is_there_in_order(tmp_path):
    store = JobStore.create(tmp_path, "job", {"agent": "oracle"})
    for number in range(3):
        store.append(result(number), f"r{number}")
    store.write_summary({"total": 3})
    store.close()
    again = JobStore.read(tmp_path, "job")
    assert [(name, r.key) for name, r in again.results()] == [(f"r{n}", f"key-{n}") for n in range(3)]
    assert again.job["agent"] == "oracle"
    assert json.loads((tmp_path / "job" / "summary.json").read_text()) == {"total": 3}
    assert list_jobs(tmp_path) == ["job"]


@settings(max_examples=30)
@given(cut=st.integers(0, 400))
def test_a_torn_tail_is_cut_and_nothing_else_changes(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("jobs")
    store = JobStore.create(folder, "job", {})
    for number in range(3):
        store.append(result(number), f"r{number}")
    store.close()
    path = folder / "job" / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    kept = whole[: whole.rfind(b"\n", 0, len(whole) - cut) + 1]
    store = JobStore.open(folder, "job")
    assert path.read_bytes() == kept
    store.append(result(9), "r9")
    store.close()
    assert [name for name, _ in JobStore.read(folder, "job").results()][-1] == "r9"


def test_a_reader_passes_over_a_torn_tail(tmp_path):
    store = JobStore.create(tmp_path, "job", {})
    store.append(result(), "r")
    store.close()
    with (tmp_path / "job" / "results.jsonl").open("ab") as stream:
        stream.write(b'{"half')
    assert len(list(JobStore.read(tmp_path, "job").results())) == 1


def test_a_damaged_line_is_named(tmp_path):
    JobStore.create(tmp_path, "job", {}).close()
    (tmp_path / "job" / "results.jsonl").write_text("{}\n")
    with pytest.raises(InfrastructureFailure, match="line 1 is damaged"):
        list(JobStore.read(tmp_path, "job").results())


def test_a_job_of_that_name_is_refused_and_points_to_resume(tmp_path):
    JobStore.create(tmp_path, "job", {}).close()
    with pytest.raises(UsageError, match="bench eval resume job"):
        JobStore.create(tmp_path, "job", {})


def test_a_job_that_runs_elsewhere_is_refused(tmp_path):
    script = (
        "import sys; from pathlib import Path; from benchflow.evaluation.store import JobStore\n"
        "store = JobStore.create(Path(sys.argv[1]), 'job', {}); print('ready', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "ready\n"
    assert is_running(tmp_path / "job")
    with pytest.raises(UsageError, match="another process"):
        JobStore.open(tmp_path, "job")
    other.kill()
    other.communicate()
    assert not is_running(tmp_path / "job")
    JobStore.open(tmp_path, "job").close()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "a\0", "x" * 300])
def test_a_name_that_is_no_folder_is_refused(tmp_path, name):
    with pytest.raises(UsageError):
        JobStore.create(tmp_path, name, {})
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_job_names_the_known(tmp_path):
    JobStore.create(tmp_path, "mine", {}).close()
    with pytest.raises(UsageError, match="there are: mine"):
        JobStore.open(tmp_path, "other")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureFailure, match="Cannot create"):
        JobStore.create(tmp_path / "file", "job", {})


def test_a_full_disk_is_an_infrastructure_failure(tmp_path):
    store = JobStore.create(tmp_path, "job", {})
    store._results = Path("/dev/full").open("r+b", buffering=0)  # noqa: SIM115  # closed with the store
    with pytest.raises(InfrastructureFailure, match="No space left"):
        store.append(result(), "r")
    store.close()


def test_a_job_that_is_only_read_cannot_be_written(tmp_path):
    JobStore.create(tmp_path, "job", {}).close()
    with pytest.raises(RuntimeError, match="only read"):
        JobStore.read(tmp_path, "job").append(result(), "r")
    assert list((tmp_path / "job" / "rollouts").iterdir()) == []
