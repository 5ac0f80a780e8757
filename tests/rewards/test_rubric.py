from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import JudgeFailure, PackageError
from benchflow.rewards import Criterion, RewardError, RewardItem, load_rubric, parse_rubric
from benchflow.rewards.rubric import JudgeSettings

TOML = """
title = "Report"
[judge]
model = "openai/gpt-5.5"
mode = "batched"
files = ["report.md"]
timeout = 30
samples = 3
[[criterion]]
name = "correct"
description = "The numbers are right."
weight = 3
[[criterion]]
id = "clear"
description = "It reads well."
type = "likert"
points = 7
space = "reasoning"
files = ["report"]
[[criterion]]
description = "It covers at least the last four quarters of the year."
type = "numeric"
min = 0
max = 4
[scoring]
aggregation = "weighted-mean"
"""


def test_a_toml_rubric_is_read_whole() -> None:
    rubric = parse_rubric(TOML.encode())
    correct, clear, covers = rubric.criteria
    assert rubric.title == "Report"
    assert (correct.id, correct.type, correct.weight) == ("correct", "binary", 3.0)
    assert (clear.points, clear.space, clear.files) == (7, "reasoning", ("report",))
    assert covers.id == "It covers at least the last four quarter"
    assert (covers.min, covers.max) == (0.0, 4.0)
    judge = rubric.judge
    assert (judge.model, judge.mode, judge.files, judge.timeout_sec) == (
        "openai/gpt-5.5",
        "batched",
        ("report.md",),
        30.0,
    )
    assert judge.options == {"samples": 3}
    assert rubric.policy.to_dict() == {
        "method": "weighted_mean",
        "weights": {"correct": 3.0, "clear": 1.0, covers.id: 1.0},
        "criteria": ["correct", "clear", covers.id],
    }


def test_a_json_rubric_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "rubric.json"
    path.write_text(
        json.dumps({"title": "T", "criteria": [{"id": "c1", "title": "Clean", "match_criteria": "No lint."}]})
    )
    (criterion,) = load_rubric(path).criteria
    assert criterion == Criterion("c1", "No lint.")


def test_a_rubric_turns_answers_into_one_reward() -> None:
    rubric = parse_rubric(TOML.encode())
    answers = dict(zip((c.id for c in rubric.criteria), ["yes", 4, 2], strict=True))
    items = {c.id: c.grade(answers[c.id], "because") for c in rubric.criteria}
    assert [item.score for item in items.values()] == [1.0, 0.5, 0.5]
    assert rubric.combine(items) == pytest.approx((3 * 1 + 0.5 + 0.5) / 5)
    with pytest.raises(RewardError, match="missing"):
        rubric.combine({"correct": items["correct"]})


@pytest.mark.parametrize(
    ("criterion", "answer", "score", "clamped"),
    [
        (Criterion("c", "d"), True, 1.0, False),
        (Criterion("c", "d"), False, 0.0, False),
        (Criterion("c", "d"), "Yes", 1.0, False),
        (Criterion("c", "d"), " failed ", 0.0, False),
        (Criterion("c", "d"), 0.5, 1.0, False),
        (Criterion("c", "d"), 0.49, 0.0, False),
        (Criterion("c", "d"), "0.7", 1.0, False),
        (Criterion("c", "d"), 1.5, 1.0, True),
        (Criterion("c", "d"), -0.5, 0.0, True),
        (Criterion("c", "d", "likert"), 1, 0.0, False),
        (Criterion("c", "d", "likert"), 3, 0.5, False),
        (Criterion("c", "d", "likert"), "5", 1.0, False),
        (Criterion("c", "d", "likert"), 0, 0.0, True),
        (Criterion("c", "d", "likert"), 85, 1.0, True),
        (Criterion("c", "d", "likert", points=2), 2, 1.0, False),
        (Criterion("c", "d", "numeric"), 25, 0.25, False),
        (Criterion("c", "d", "numeric", min=-1, max=1), 0, 0.5, False),
        (Criterion("c", "d", "numeric", min=-1, max=1), "-3", 0.0, True),
    ],
)
def test_answers_are_normalised_and_what_left_its_scale_is_marked(
    criterion: Criterion, answer: object, score: float, clamped: bool
) -> None:
    item = criterion.grade(answer)
    assert (item.score, item.clamped, item.raw) == (score, clamped, answer)


@pytest.mark.parametrize(
    "answer", [None, "", "maybe", [], {}, float("nan"), float("inf"), "nan", "1e999", 10**400, "--1", "1e0", "1_0", "."]
)
@pytest.mark.parametrize("kind", ["binary", "likert", "numeric"])
def test_what_is_no_answer_is_a_failure_of_the_judge(kind: str, answer: object) -> None:
    with pytest.raises(JudgeFailure) as caught:
        Criterion("c", "d", kind).grade(answer)
    assert (caught.value.code, caught.value.path) == ("judge-answer-invalid", "c")
    assert "'c'" in str(caught.value)
    assert ("yes or no" in str(caught.value)) == (kind == "binary")


@pytest.mark.parametrize("kind", ["likert", "numeric"])
def test_yes_is_no_answer_on_a_scale(kind: str) -> None:
    for answer in (True, "yes"):
        with pytest.raises(JudgeFailure):
            Criterion("c", "d", kind).grade(answer)


@given(
    st.sampled_from(["binary", "likert", "numeric", "rubric"]),
    st.booleans(),
    st.integers(2, 1000),
    st.floats(-1e300, 1e300),
    st.floats(-1e300, 1e300),
    st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.booleans() | st.text(max_size=6),
)
def test_every_score_is_inside_zero_and_one(
    kind: str, negate: bool, points: int, low: float, high: float, answer: object
) -> None:
    low, high = sorted((low, high)) if low != high else (0.0, 1.0)
    try:
        item = Criterion("c", "d", kind, points=points, min=low, max=high, levels=LEVELS, negate=negate).grade(answer)
    except JudgeFailure:
        return
    assert 0 <= item.score <= 1


def one(**extra: object) -> dict:
    return {"criteria": [{"name": "a", "description": "d", **extra}]}


WRONG = {
    "nothing": ({}, "criteria", "at least one"),
    "no criteria": ({"criteria": []}, "criteria", "at least one"),
    "both spellings": ({"criteria": [{"name": "a"}], "criterion": []}, "criteria", "both"),
    "unknown key": ({**one(), "scorng": {}}, "scorng", "not a known key"),
    "a criterion that is a text": ({"criteria": ["a"]}, "criteria[0]", "table"),
    "unknown key of a criterion": (one(wieght=1), "criteria[0].wieght", "not a known key"),
    "no description": ({"criteria": [{"id": "a"}]}, "criteria[0]", "no description"),
    "two of one name": ({"criteria": [{"title": "a"}, {"title": "a"}]}, "criteria[1]", "two criteria"),
    "no such type": (one(type="stars"), "criteria[0].type", "stars"),
    "no such space": (one(space="outer"), "criteria[0].space", "outer"),
    "points that are no integer": (one(points=2.5), "criteria[0].points", "integer"),
    "too many points": (one(points=1001), "criteria[0].points", "to 1000"),
    "a description that is a number": (one(description=3), "criteria[0].description", "string"),
    "a blank description": (one(description=" "), "criteria[0].description", "string"),
    "a low end that is a text": (one(min="a"), "criteria[0].min", "finite"),
    "a high end that is a text": (one(max="a"), "criteria[0].max", "finite"),
    "a scale of endless width": (one(type="numeric", min=-1e308, max=1e308), "criteria[0].min", "less than"),
    "levels that are a text": (one(levels="a"), "criteria[0].levels", "list"),
    "a file that is a number": (one(files=[3]), "criteria[0].files", "list"),
    "a file without a name": (one(files=[""]), "criteria[0].files", "list"),
    "a title that is a number": ({**one(), "title": 3}, "title", "string"),
    "unknown key of the scoring": ({**one(), "scoring": {"tresh": 1}}, "scoring.tresh", "not a known key"),
    "a threshold over weights of nothing": (
        {**one(weight=0), "scoring": {"method": "threshold"}},
        "scoring",
        "above 0",
    ),
    "a model that is a number": ({**one(), "judge": {"model": 3}}, "judge.model", "string"),
    "files of the judge that are a text": ({**one(), "judge": {"files": "a"}}, "judge.files", "list"),
    "a time that is a text": ({**one(), "judge": {"timeout": "a"}}, "judge.timeout", "finite"),
    "one point": (one(type="likert", points=1), "criteria[0].points", "from 2"),
    "points true": (one(points=True), "criteria[0].points", "integer"),
    "an empty scale": (one(type="numeric", min=5, max=5), "criteria[0].min", "less than"),
    "a negative weight": (one(weight=-1), "criteria[0].weight", "at least 0"),
    "a weight that is a text": (one(weight="1"), "criteria[0].weight", "finite"),
    "a name that is a number": (one(name=3), "criteria[0].name", "string"),
    "files that are a text": (one(files="a"), "criteria[0].files", "list"),
    "no such aggregation": ({**one(), "scoring": {"aggregation": "median"}}, "scoring", "median"),
    "aggregation twice": (
        {**one(), "scoring": {"aggregation": "mean", "method": "mean"}},
        "scoring.method",
        "one of them",
    ),
    "a threshold above one": ({**one(), "scoring": {"threshold": 2}}, "scoring", "threshold"),
    "scoring that is a list": ({**one(), "scoring": []}, "scoring", "table"),
    "weights of nothing": (one(weight=0), "scoring", "above 0"),
    "levels of another type": (one(levels=["a", "b"]), "criteria[0].levels", "empty for other types"),
    "no levels": (one(type="rubric"), "criteria[0].levels", "2 to 10"),
    "one level": (one(type="rubric", levels=["a"]), "criteria[0].levels", "2 to 10"),
    "too many levels": (one(type="rubric", levels=["a"] * 11), "criteria[0].levels", "2 to 10"),
    "negate as a text": (one(negate="yes"), "criteria[0].negate", "true or false"),
    "optional as a number": (one(optional=1), "criteria[0].optional", "true or false"),
    "nothing required": (
        {**one(optional=True), "scoring": {"aggregation": "required-pass"}},
        "scoring",
        "not optional",
    ),
    "no such mode": ({**one(), "judge": {"mode": "panel"}}, "judge.mode", "panel"),
    "no time": ({**one(), "judge": {"timeout": 0}}, "judge.timeout", "more than 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_rubric_is_refused_at_its_key(case: str) -> None:
    value, path, words = WRONG[case]
    for data, as_json in ((json.dumps(value), True), (tomli_w.dumps(value), False)):
        with pytest.raises(PackageError) as caught:
            parse_rubric(data.encode(), json=as_json, file="rubrics/verifier.toml")
        assert (caught.value.code, caught.value.path) in {
            ("invalid-rubric", path),
            ("invalid-aggregate", path),
        }
        assert caught.value.file == "rubrics/verifier.toml"
        assert words in str(caught.value)
        if caught.value.code == "invalid-rubric":
            assert str(caught.value).startswith(f"rubrics/verifier.toml: {path} ")


@pytest.mark.parametrize(
    ("data", "as_json", "words"),
    [
        (b"[1]", True, "must contain an object"),
        (b"{", True, "is not JSON"),
        (b"a = \xff", False, "is not UTF-8 (byte 4)"),
        (b"a = ", False, "is not TOML"),
    ],
)
def test_a_file_that_is_no_rubric_is_refused_as_a_whole(data: bytes, as_json: bool, words: str) -> None:
    with pytest.raises(PackageError) as caught:
        parse_rubric(data, json=as_json)
    assert (caught.value.code, caught.value.path, caught.value.file) == ("invalid-rubric", "", "rubric.toml")
    assert str(caught.value).startswith(f"rubric.toml {words}")


def test_every_key_of_a_criterion_is_taken() -> None:
    entry = {
        "title": "Pace",
        "description": "How fast is it?",
        "type": "numeric",
        "min": 1e308,
        "max": 1.5e308,
        "points": 1000,
        "weight": 2,
        "negate": True,
        "optional": True,
        "files": ["a.txt"],
        "space": "action",
        "metadata": {"by": "me"},
        "annotations": [],
    }
    levels = [str(number) for number in range(10)]
    value = {"criteria": [entry, {"id": "r", "title": "t", "type": "rubric", "levels": levels}], "metadata": {}}
    rubric = parse_rubric(json.dumps(value).encode(), json=True)
    assert rubric.criteria == (
        Criterion(
            "Pace",
            "How fast is it?",
            "numeric",
            points=1000,
            min=1e308,
            max=1.5e308,
            weight=2.0,
            negate=True,
            optional=True,
            files=("a.txt",),
            space="action",
        ),
        Criterion("r", "t", "rubric", levels=tuple(levels)),
    )
    assert rubric.judge == JudgeSettings()
    assert rubric.judge.timeout_sec == 120.0


def test_a_scale_may_have_two_points_and_a_judge_less_than_a_second() -> None:
    value = {**one(type="likert", points=2), "judge": {"timeout": 0.5}}
    rubric = parse_rubric(json.dumps(value).encode(), json=True)
    assert rubric.criteria[0].points == 2
    assert (rubric.judge.timeout_sec, rubric.judge.mode) == (0.5, "individual")


def test_a_graded_item_says_what_was_judged_and_why() -> None:
    item = Criterion("c", "d", "likert", space="reasoning").grade(3, "so so")
    assert item == RewardItem("c", 0.5, "reasoning", "so so", raw=3)


LEVELS = ("bad", "fair", "good")


@pytest.mark.parametrize(
    ("criterion", "answer", "score"),
    [
        (Criterion("c", "d", negate=True), "yes", 0.0),
        (Criterion("c", "d", negate=True), "no", 1.0),
        (Criterion("c", "d", "likert", negate=True), 4, 0.25),
        (Criterion("c", "d", "rubric", levels=LEVELS), 0, 0.0),
        (Criterion("c", "d", "rubric", levels=LEVELS), 1, 0.5),
        (Criterion("c", "d", "rubric", levels=LEVELS), 9, 1.0),
        (Criterion("c", "d", "rubric", levels=LEVELS, negate=True), 2, 0.0),
    ],
)
def test_levels_and_negated_answers(criterion: Criterion, answer: object, score: float) -> None:
    assert criterion.grade(answer).score == score


def test_a_level_is_named_by_its_number() -> None:
    with pytest.raises(JudgeFailure, match="from 0 to 2"):
        Criterion("c", "d", "rubric", levels=LEVELS).grade("good")


@pytest.mark.parametrize(("a", "b", "reward"), [("yes", "no", 1.0), ("yes", "yes", 1.0), ("no", "yes", 0.0)])
@pytest.mark.parametrize("method", ["required-pass", "required_pass"])
def test_only_what_is_required_must_pass(method: str, a: str, b: str, reward: float) -> None:
    criteria = [{"name": "a", "description": "d"}, {"name": "b", "description": "d", "optional": True, "weight": 9}]
    value = {"criteria": criteria, "scoring": {"aggregation": method}}
    rubric = parse_rubric(json.dumps(value).encode(), json=True)
    one, two = rubric.criteria
    assert rubric.combine({"a": one.grade(a), "b": two.grade(b)}) == reward


def test_the_method_has_two_spellings_of_its_key() -> None:
    for key in ("method", "aggregation"):
        rubric = parse_rubric(json.dumps({**one(), "scoring": {key: "min"}}).encode(), json=True)
        assert rubric.policy.method == "min"


def test_mean_means_the_weighted_one() -> None:
    rubric = parse_rubric(json.dumps({**one(), "scoring": {"method": "mean"}}).encode(), json=True)
    assert rubric.policy.method == "weighted_mean"


def test_a_missing_or_oversized_file_is_the_packages_fault(tmp_path: Path) -> None:
    with pytest.raises(PackageError) as caught:
        load_rubric(tmp_path / "rubric.toml", file="rubrics/verifier.toml")
    assert (caught.value.code, caught.value.file) == ("missing-rubric", "rubrics/verifier.toml")
    (tmp_path / "rubric.toml").write_bytes(b"#" * (1 << 21))
    with pytest.raises(PackageError, match=r"^rubric\.toml .*at most") as caught:
        load_rubric(tmp_path / "rubric.toml")
    assert (caught.value.code, caught.value.file) == ("invalid-rubric", "rubric.toml")


def test_a_broken_file_is_named_as_the_caller_names_it(tmp_path: Path) -> None:
    (tmp_path / "rubric.toml").write_text("a = ")
    for name, expected in ((None, "rubric.toml"), ("rubrics/verifier.toml", "rubrics/verifier.toml")):
        with pytest.raises(PackageError) as caught:
            load_rubric(tmp_path / "rubric.toml", file=name)
        assert caught.value.file == expected


@given(st.binary(max_size=200) | st.text(alphabet='[]{}"=,.\n a1é', max_size=60).map(str.encode), st.booleans())
def test_any_bytes_are_a_rubric_or_one_clear_error(data: bytes, as_json: bool) -> None:
    with pytest.raises(PackageError):
        parse_rubric(data, json=as_json)


def test_deep_toml_is_refused() -> None:
    with pytest.raises(PackageError, match="not TOML"):
        parse_rubric(b"a = " + b"[" * 100_000)
