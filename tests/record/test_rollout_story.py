"""Why a reward is not full, and what else a rollout's folder says."""

import json

import pytest

from benchflow.record import (
    AgentPart,
    ErrorRecord,
    Isolation,
    NotCarriedOver,
    Notes,
    RolloutFolder,
    Score,
    StepRecord,
    VerifierPart,
    WiderCheck,
)
from benchflow.record.reading.failing_tests import FailingTest, printed_failures, reported_failures
from benchflow.record.reading.rollout_story import KEPT, read_story, why_not_full


@pytest.fixture
def rollout(tmp_path, make_result):
    """Makes the folder of a rollout with a result."""

    def make(files=None, **result):
        folder = tmp_path / "r"
        made = make_result(**{"reward": 0.0, **result})
        for name, text in {"result.json": json.dumps(made.to_dict()), **(files or {})}.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder

    return make


@pytest.mark.parametrize(
    ("result", "kind", "text"),
    [
        (
            {"error": ErrorRecord("judge", "timeout", "verify", "away")},
            "unscored",
            "judge/timeout in phase verify: away",
        ),
        ({"agent": AgentPart("a", None, 0, timed_out=True)}, "agent-timeout", "the agent reached its time limit"),
        ({"agent": AgentPart("a", None, 3, timed_out=False)}, "agent-exit", "the agent exited with code 3"),
        ({"agent": AgentPart("a", None, 0, timed_out=False, stop_reason="max_steps")}, "stopped", "max_steps"),
        ({"notes": Notes(limits_reached=("processes",))}, "limit", "limit of processes"),
        ({"steps": (StepRecord(name="b", outcome=Score(0.5)),)}, "step", "step b: 0.5"),
        ({}, "reward", "the verifier gave 0"),
    ],
)
def test_the_first_reason_is_the_most_telling(rollout, result, kind, text):
    [first, *_] = read_story(rollout(**result)).reasons
    assert (first.kind, text in first.text) == (kind, True)


def test_a_full_reward_needs_no_reason(rollout):
    assert read_story(rollout(reward=1.0, agent=AgentPart("a", None, 3, timed_out=False))).reasons == ()


def test_work_that_scores_more_with_withheld_changes_says_so(make_result):
    verifier = VerifierPart(
        "script", "", Isolation("shared", "default", None), 0, (), (), NotCarriedOver(1, ()), WiderCheck("system", 1.0)
    )
    [reason] = why_not_full(make_result(reward=0.0, verifier=verifier))
    assert (reason.kind, "at 'system' the same work scores 1" in reason.text) == ("withheld", True)


@pytest.mark.parametrize(
    ("output", "name", "message"),
    [
        ("FAILED tests/test_a.py::test_x[1-2] - assert 1 == 2", "tests/test_a.py::test_x[1-2]", "assert 1 == 2"),
        ("\x1b[31mFAILED\x1b[0m a.py::test_x", "a.py::test_x", ""),
        ("FAIL: test_it (suite.Case)", "test_it (suite.Case)", ""),
        ("    --- FAIL: TestSum/empty (0.00s)", "TestSum/empty", ""),
        ("test it::works ... FAILED", "it::works", ""),
        ("ok 1 - fine\nnot ok 2 - adds", "adds", ""),
        ("  ✕ renders (12 ms)", "renders", ""),
    ],
)
def test_the_failing_test_of_known_runners_is_named(output, name, message):
    assert printed_failures(f"collected 3\n{output}\n1 failed\n")[0] == FailingTest(name, message)


@pytest.mark.parametrize("output", ["", "FAILED", "not ok 1 - later # TODO soon", "everything FAILED here", "ok 1 - x"])
def test_nothing_is_guessed(output):
    assert printed_failures(output) == ()


def test_a_report_comes_before_the_output_and_a_damaged_one_is_ignored(rollout):
    tests = [{"name": "a", "status": "passed"}, {"name": "b", "status": "failed", "message": "Trace\nE  assert 0\n"}]
    report = json.dumps({"results": {"tests": tests}})
    output = {"verifier/test-stdout.txt": "FAILED x.py::y"}
    folder = rollout({"verifier/ctrf.json": report, **output})
    assert read_story(folder).reasons[0].text == "b failed: E  assert 0"
    (folder / "verifier" / "ctrf.json").write_text("[" * 100_000)
    assert read_story(folder).reasons[0].text == "x.py::y failed"
    assert reported_failures(folder / "nowhere") == ()


def test_parts_have_the_rubrics_words_and_what_the_judge_said(rollout):
    line = {"ts": "", "type": "process", "source": "verifier_rubric", "value": 0.25, "tag": "tone"}
    line |= {"space": "output", "granularity": "step", "meta": {"reason": "too harsh"}}
    details = {"criteria": [{"name": "tone", "description": "The tone is friendly.", "weight": 2}]}
    files = {"rewards.jsonl": json.dumps(line) + "\ntorn", "verifier/reward-details.json": json.dumps(details)}
    story = read_story(rollout(files))
    [part] = story.parts
    assert (part.name, part.value, part.words, part.reason, part.weight) == (
        *("tone", 0.25, "The tone is friendly.", "too harsh", 2),
    )
    assert story.reasons[0].text == "tone is 0.25: too harsh"


def test_long_output_is_kept_at_both_ends_and_links_are_not_followed(rollout, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    text = b"begin" + b"x" * (3 * KEPT) + b"end"
    folder = rollout({"verifier/test-stdout.txt": text, "agent/a.txt": "said"})
    (folder / "agent" / "link.txt").symlink_to(tmp_path / "secret.txt")
    story = read_story(folder)
    [output] = story.verifier
    assert (output.size, output.dropped) == (len(text), len(text) - 2 * KEPT)
    assert (output.text[:5], output.text[-3:]) == ("begin", "end")
    assert [found.text for found in story.agent] == ["said"]
    assert "agent/link.txt" not in [file.name for file in story.files]


def test_steps_cannot_name_folders_elsewhere(rollout, tmp_path):
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "test-stdout.txt").write_text("outside")
    folder = rollout({"steps/x/verifier/test-stdout.txt": "in"}, steps=(StepRecord(name="../..", outcome=Score(0.5)),))
    assert "outside" not in str(read_story(folder).verifier)


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[" * 100_000, b"\xff", b'{"schema": "benchcube.result.v9"}'])
def test_a_folder_without_a_readable_result_says_why(rollout, content):
    folder = rollout()
    place = RolloutFolder(folder).result
    place.unlink() if content is None else place.write_bytes(content)
    story = read_story(folder)
    assert (story.result, story.reasons) == (None, ())
    assert story.problem.startswith("result.json ")
