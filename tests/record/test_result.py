"""A result is typed to the end: it survives JSON, fits its schema, and what is damaged is never read as another."""

import json

import pytest

from benchflow.errors import Issue
from benchflow.record import (
    AgentEnd,
    Artifact,
    BranchOption,
    BranchRecord,
    CleanupFailure,
    EarlierScore,
    ErrorRecord,
    Isolation,
    NoOutcome,
    NotCarriedOver,
    Notes,
    RescoreNote,
    Result,
    Score,
    StepRecord,
    StepVerifier,
    ToolAudit,
    VerifierPart,
    WithheldChange,
    Workspace,
)
from benchflow.record.codec import cleaned, plain, read
from written_documents import check_fits

AWAY = ErrorRecord("judge", "timeout", "verify", "The judge is away.")
VERIFIER = VerifierPart(
    "script",
    "script",
    Isolation("shared", "default", None),
    0,
    (Issue("note", "warning", "p", "m"),),
    ("verifier.pytest_plugins",),
    NotCarriedOver(1, (WithheldChange("/etc/motd", "changed", "system"),)),
)
STEPS = (
    StepRecord(name="one", outcome=Score(1.0), passed=True, agent=AgentEnd(0, False), verifier=StepVerifier("s", 0)),
    StepRecord(name="two", outcome=AWAY, artifacts=(Artifact("/a", "a", "collected", 1, 2, step="two"),)),
    StepRecord(name="three", outcome=NoOutcome("not-reached")),
)
NOTES = Notes(
    branches=(
        BranchRecord(
            id="1", parent="main", round=0, request="r", option=BranchOption("y", "allow"), outcome=NoOutcome("taken")
        ),
    ),
    artifacts=(Artifact("/b", "b", "missing"),),
    workspace=Workspace(kept=True, entries=0, bytes=0),
    audit=ToolAudit({"web_search": 2}, passed=False),
    rescore=RescoreNote(
        "sha256:v", "sha256:p", ("task",), 1, "key", 1, "rescores/0001", "now", EarlierScore("scored", 1)
    ),
    cleanup=(CleanupFailure("environment", "sandbox", "code", "message"),),
)


@pytest.mark.parametrize(
    "values",
    [{}, {"error": AWAY}, {"verifier": VERIFIER}, {"steps": STEPS, "notes": NOTES}, {"ordinal": 3, "usage": {"n": 1}}],
)
def test_a_result_survives_json_and_fits_its_schema(make_result, values):
    original = make_result(**values)
    document = json.loads(json.dumps(original.to_dict()))
    check_fits(document, "result")
    assert Result.from_dict(document) == original


def test_what_every_reader_looks_for_stands_at_the_top(make_result):
    document = make_result("p", 0.5, rewards={"reward": 0.5, "speed": 2.0}, verifier=VERIFIER).to_dict()
    assert list(document)[:9] == [
        "schema", "task", "agent", "sandbox", "attempt", "status", "reward", "rewards", "error",
    ]  # fmt: skip
    assert document["schema"] == "benchcube.result.v2"
    assert document["task"] == {"name": "p", "path": "p", "digest": "sha256:0", "content_digest": "sha256:0"}
    assert (document["status"], document["reward"], document["rewards"]["speed"]) == ("scored", 0.5, 2.0)
    assert document["verifier"]["isolation"] == {"rung": "shared", "chosen_by": "default", "proof": None}
    lost = make_result(error=AWAY).to_dict()
    assert (lost["status"], lost["reward"], lost["rewards"]) == ("unscored", None, {})
    assert lost["error"] == {"category": "judge", "code": "timeout", "phase": "verify", "message": "The judge is away."}


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("status",), "maybe", "is not an outcome"),
        (("reward",), None, "is not a number"),
        (("reward",), float("nan"), "finite number"),
        (("reward",), True, "is not a number"),
        (("rewards", "speed"), "1", "is not a number"),
        (("error",), {"category": "judge"}, "is not an outcome"),
        (("task", "name"), 3, "task: name"),
        (("task",), [], "is not an object"),
        (("agent", "timed_out"), 0, "agent: timed_out"),
        (("sandbox", "fidelity"), "nearly", "exact"),
        (("attempt",), 0, "attempt"),
        (("verifier",), {"strategy": "s"}, "verifier: the key 'name' is missing"),
        (("steps",), [{"name": "s"}], "steps"),
        (("schema",), "benchcube.result.v9", "schema"),
    ],
)
def test_a_document_that_is_not_a_result_is_refused_with_its_key(make_result, path, value, reason):
    document = json.loads(json.dumps(make_result().to_dict()))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=reason):
        Result.from_dict(document)


@pytest.mark.parametrize("missing", ["task", "status", "verifier", "key", "started_at"])
def test_a_document_without_a_key_is_refused(make_result, missing):
    document = make_result().to_dict()
    del document[missing]
    with pytest.raises(ValueError, match=missing if missing != "status" else "outcome"):
        Result.from_dict(document)


def test_usage_that_is_not_a_number_is_not_written(make_result):
    assert make_result(usage={"cost_usd": float("nan"), "steps": 2}).to_dict()["usage"] == {"steps": 2}


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), True, "1"])
def test_a_reward_is_a_finite_number(value):
    with pytest.raises(ValueError, match="finite number"):
        Score(value)


def test_secrets_are_taken_out_of_free_text_and_never_out_of_fixed_words():
    def hide(text):
        return text.replace("verify", "***").replace("away", "***")

    assert cleaned(AWAY, hide) == ErrorRecord("judge", "timeout", "verify", "The judge is ***.")
    audit = cleaned(Notes(audit=ToolAudit({"away": 1}, passed=False)), hide).audit
    assert audit.forbidden_tool_calls == {"***": 1}


def test_a_field_that_says_nothing_is_left_out_and_read_again():
    assert plain(AgentEnd(None, timed_out=False)) == {"exit_code": None, "timed_out": False}
    assert read(AgentEnd, {"exit_code": None, "timed_out": False}) == AgentEnd(None, timed_out=False)
