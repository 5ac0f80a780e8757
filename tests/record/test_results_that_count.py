"""Of several tries at one item, which result counts; what a line of results is, and what a job of that name is."""

import json
import os

import pytest

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.record import ErrorRecord, Job, JobRecord, JobRequest, list_jobs, read_summary
from benchflow.record.job import JOB_SCHEMA, JobResults, result_line, safe_job_name


def lost(message):
    return ErrorRecord("judge", "timeout", "verify", message)


@pytest.fixture
def counts(make_result):
    """Adds (rollout, outcome) pairs of one item in order; gives the rollout and outcome that count."""

    def run(*tries):
        results = JobResults()
        for rollout, outcome in tries:
            reward = {"reward": outcome} if isinstance(outcome, float) else {"error": lost(outcome)}
            results.add(rollout, make_result(key="key", **reward))
        ((rollout, result),) = results
        assert results.lines == len(tries)
        return rollout, result.error.message if result.error is not None else result.reward

    return run


def test_of_tries_without_a_score_the_last_counts(counts):
    assert counts(("r1", "first"), ("r2", "second"), ("r3", "third")) == ("r3", "third")


def test_a_score_counts_before_any_try_without_one(counts):
    assert counts(("r1", "lost"), ("r2", 0.0)) == ("r2", 0.0)
    assert counts(("r1", 0.25), ("r2", "lost")) == ("r1", 0.25)
    assert counts(("r1", 0.25), ("r2", "lost"), ("r3", "lost")) == ("r1", 0.25)


def test_of_two_scores_the_last_counts(counts):
    assert counts(("r1", 0.25), ("r2", 0.5)) == ("r2", 0.5)


def test_of_a_rollout_that_was_scored_again_the_newest_verdict_counts(counts):
    assert counts(("r1", 0.25), ("r1", "lost")) == ("r1", "lost")
    assert counts(("r1", 0.25), ("r1", 0.75)) == ("r1", 0.75)


def test_results_keep_the_order_in_which_their_keys_came(make_result):
    results = JobResults()
    for number, key in enumerate(["a", "b", "a", "c"]):
        results.add(f"r{number}", make_result(key=key))
    assert [(rollout, result.key) for rollout, result in results] == [("r2", "a"), ("r1", "b"), ("r3", "c")]
    assert results.lines == 4


def test_parts_that_results_have_in_common_are_kept_once(tmp_path, make_job, make_result):
    make_job(tmp_path, results=[make_result(key="a"), make_result(key="b", reward=0.5)])
    (_, first), (_, second) = Job.find(tmp_path, "job").results
    for name in ("task", "agent", "sandbox", "verifier", "notes"):
        assert getattr(first, name) is getattr(second, name), name
    assert (first.reward, second.reward) == (1.0, 0.5)


def test_a_line_holds_the_result_and_the_rollout_it_is_of(make_result):
    result = make_result()
    line = result_line("r1", result)
    assert line.endswith(b"\n")
    assert json.loads(line) == {**json.loads(json.dumps(result.to_dict())), "rollout": "r1"}


@pytest.mark.parametrize("rollout", [None, 7, []])
def test_a_line_that_names_no_rollout_is_damaged(tmp_path, make_job, make_result, rollout):
    make_job(tmp_path, results=[make_result()])
    path = tmp_path / "job" / "results.jsonl"
    document = json.loads(path.read_bytes())
    missing = {key: value for key, value in document.items() if key != "rollout"}
    with path.open("a") as stream:
        stream.write(json.dumps({**document, "rollout": rollout}) + "\n")
        stream.write(json.dumps(missing) + "\n")
    results = Job.find(tmp_path, "job").results
    assert [line.number for line in results.damaged] == [2, 3]
    assert all("rollout" in line.reason for line in results.damaged)
    assert len(list(results)) == 1


@pytest.fixture
def damage(tmp_path, make_job, make_result):
    """Writes changed copies of a sound line behind it; gives the reasons why they are damaged."""

    def run(*changes):
        make_job(tmp_path, results=[make_result()])
        path = tmp_path / "job" / "results.jsonl"
        document = json.loads(path.read_bytes())
        with path.open("ab") as stream:
            for change in changes:
                line = change if isinstance(change, bytes) else json.dumps({**document, **change}).encode()
                stream.write(line + b"\n")
        results = Job.find(tmp_path, "job").results
        assert [line.number for line in results.damaged] == list(range(2, len(changes) + 2))
        assert len(list(results)) == results.lines == 1
        return [line.reason for line in results.damaged]

    return run


@pytest.mark.parametrize("rollout", ["", ".", "..", "../../x", "/tmp/x", "a/b", "a\\b", "a\0b", ".hidden", "x" * 300])
def test_a_rollout_that_is_not_a_plain_folder_name_is_damaged(damage, rollout):
    [reason] = damage({"rollout": rollout})
    assert reason.startswith("rollout: ")
    assert reason.endswith(" is not a plain folder name")


def test_a_key_that_is_missing_is_named(damage):
    [reason] = damage({"rollout": "r", "agent": {"name": "a"}})
    assert reason == "agent: the key 'model' is missing"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"usage": {"tokens": 10**400}}, "is not a finite number"),
        ({"timing": {"total": 10**400}}, "is not a finite number"),
        ({"attempt": 10**400}, "is not a finite number"),
        ({"usage": {"tokens": float("nan")}}, "it has NaN, which is not a JSON number"),
        ({"timing": {"total": float("inf")}}, "it has Infinity, which is not a JSON number"),
        ({"agent": {"name": "\ud800"}}, "unpaired surrogate"),
        (b"[" * 100_000, "it is nested deeper than 64 levels"),
        (b'{"a":', "it is not JSON: Expecting value"),
        ({"schema": "benchcube.result.v9"}, "it must be benchcube.result.v2 or benchcube.result.v1"),
        ({"attempt": "one"}, "attempt: 'one' is not an integer"),
    ],
)
def test_what_cannot_be_calculated_with_or_written_again_is_damaged(damage, change, reason):
    [found] = damage(change)
    assert reason in found
    assert "line 1" not in found
    assert "column" not in found


@pytest.mark.parametrize("key", ["schema", "status", "attempt", "rollout", "task", "key", "timing"])
def test_a_huge_value_makes_no_huge_message(damage, key):
    [reason] = damage({key: ["x" * 1_000_000]})
    assert len(reason) < 200


def test_a_job_is_found_by_name_or_by_path(tmp_path, make_job):
    make_job(tmp_path, "one")
    make_job(tmp_path, "two")
    assert Job.find(tmp_path, "one").folder == tmp_path / "one"
    assert Job.find(tmp_path / "elsewhere", str(tmp_path / "two")).folder == tmp_path / "two"
    with pytest.raises(UsageError, match="available: one, two") as caught:
        Job.find(tmp_path, "three")
    assert caught.value.code == "no-job"
    with pytest.raises(UsageError, match="available: none"):
        Job.find(tmp_path / "elsewhere", "three")


def test_a_path_that_is_not_a_job_is_named_as_it_is(tmp_path):
    with pytest.raises(UsageError) as caught:
        Job.find(tmp_path / "jobs", f"{tmp_path}/nope")
    assert str(caught.value) == f"{tmp_path}/nope is not a job: there is no such folder."
    with pytest.raises(UsageError) as caught:
        Job.find(tmp_path / "jobs", str(tmp_path))
    assert str(caught.value) == f"{tmp_path} is not a job: it has no job.json."


@pytest.mark.parametrize(("file", "read"), [("job.json", "record"), ("results.jsonl", "results")])
def test_a_folder_in_place_of_a_file_of_a_job_is_one_sentence(tmp_path, make_job, make_result, file, read):
    make_job(tmp_path, results=[make_result()])
    path = tmp_path / "job" / file
    path.unlink()
    path.mkdir()
    with pytest.raises(InfrastructureFailure) as caught:
        getattr(Job.find(tmp_path, "job"), read)
    assert str(caught.value) == f"{path} cannot be read: Is a directory."


def test_the_request_of_a_job_survives_its_record():
    request = JobRequest(
        ("a", "cube:b"),
        "script:x",
        "m",
        3,
        "local",
        "host",
        "never",
        max_steps=7,
        max_cost_usd=1.5,
        agent_timeout_sec=30.0,
        timeout_sec=60.0,
        keep_workspace=False,
    )
    record = JobRecord("job", request, 6, "2026-01-01T00:00:00Z")
    document = json.loads(json.dumps(record.to_dict()))
    assert document["schema"] == JOB_SCHEMA
    assert (document["name"], document["planned"], document["sources"]) == ("job", 6, ["a", "cube:b"])
    assert JobRecord.from_dict(document) == record
    assert JobRecord.from_dict({**document, "upgraded": True}) == record
    settings = request.settings()
    assert (settings.agent, settings.model, settings.sandbox, settings.base_image) == ("script:x", "m", "local", "host")
    assert (settings.max_steps, settings.max_cost_usd) == (7, 1.5)
    assert (settings.agent_timeout_sec, settings.timeout_sec) == (30.0, 60.0)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"{}", b"[" * 100_000, b'{"schema": "\\ud800"}', b"NaN", b'{"schema": "benchcube.job.v9"}'],
)
def test_a_job_whose_record_is_damaged_is_one_sentence(tmp_path, make_job, content):
    make_job(tmp_path)
    (tmp_path / "job" / "job.json").write_bytes(content)
    with pytest.raises(InfrastructureFailure, match=r"job\.json cannot be read") as caught:
        _ = Job.find(tmp_path, "job").record
    assert caught.value.code == "job-damaged"


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{", b'{"schema": "benchcube.summary.v2"}', b'{"job": "job"}'])
def test_a_summary_that_cannot_be_read_is_none(tmp_path, make_job, content):
    make_job(tmp_path)
    if content is not None:
        (tmp_path / "job" / "summary.json").write_bytes(content)
    assert read_summary(Job.find(tmp_path, "job").places.summary) is None


def test_a_job_that_nobody_holds_does_not_run(tmp_path, make_job):
    make_job(tmp_path)
    assert Job.find(tmp_path, "job").running is False
    assert Job(tmp_path / "none").running is False


def test_jobs_are_listed_oldest_first_and_by_name_among_equals(tmp_path, make_job):
    for name, when in (("b", 2), ("a", 2), ("c", 1)):
        make_job(tmp_path, name)
        os.utime(tmp_path / name, (when, when))
    (tmp_path / "not-a-job").mkdir()
    assert list_jobs(tmp_path) == ["c", "a", "b"]


@pytest.mark.parametrize("name", ["a", "X", "a b", "x" * 200, "a.b", "ä"])
def test_a_plain_folder_name_can_be_a_jobs(name):
    assert safe_job_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "a/b", "a\\b", "a\0b", "x" * 201])
def test_any_other_name_is_refused(name):
    with pytest.raises(UsageError, match="plain folder name") as caught:
        safe_job_name(name)
    assert caught.value.code == "job-name"
