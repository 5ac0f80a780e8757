"""The reward contract, rule by rule, on real folders."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import MappingProxyType

import pytest

from benchflow.errors import InfrastructureFailure, Issue, PackageError
from benchflow.rewards import AggregatePolicy, RewardError, RewardRange, Scored, read_reward, write_reward
from benchflow.rewards.reward_files import MAX_BYTES, PRESERVED

MEAN = AggregatePolicy("mean")
KIT = AggregatePolicy("weighted_mean", weights={"a": 3.0, "b": 1.0}, criteria=("a", "b"))
WIDE = RewardRange(-1, 2)


def folder(tmp_path: Path, text: str | bytes | None = None, document: object = None) -> Path:
    """A verifier's log folder; a document that is not bytes is written as JSON."""
    if text is not None:
        (tmp_path / "reward.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    if document is not None:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        (tmp_path / "reward.json").write_bytes(data)
    return tmp_path


ACCEPTED = {
    "metrics of any finite value": (
        None,
        {"reward": 0.5, "subchecks_passed": 64, "metrics": {"delta": -3.5}},
        {},
        0.5,
        {"subchecks_passed": 64.0, "delta": -3.5},
    ),
    "text alone": ("1.0", None, {}, 1.0, {}),
    "text with space around": (" \r\n0.25\n", None, {}, 0.25, {}),
    "text as a whole number": ("1", None, {}, 1.0, {}),
    "text with an exponent": ("5e-1", None, {}, 0.5, {}),
    "text without a leading digit": (".5", None, {}, 0.5, {}),
    "text with a byte order mark": (b"\xef\xbb\xbf1", None, {}, 1.0, {}),
    "text of minus zero": ("-0.0", None, {}, 0.0, {}),
    "text in a wider range": ("-0.5", None, {"reward_range": WIDE}, -0.5, {}),
    "text beside a policy without criteria": ("0.5", None, {"policy": MEAN}, 0.5, {}),
    "envelope": (None, {"reward": 0.75}, {}, 0.75, {}),
    "envelope of a whole number": (None, {"reward": 1}, {}, 1.0, {}),
    "envelope with extra metrics": (None, {"reward": 1.0, "exact": 0.5}, {}, 1.0, {"exact": 0.5}),
    "envelope with a metric map": (None, {"reward": 0.9, "metrics": {"a": 0}}, {}, 0.9, {"a": 0.0}),
    "envelope that agrees with the text": ("0.75", {"reward": 0.75}, {}, 0.75, {}),
    "agreement within rounding": ("0.3333333333", {"reward": 1 / 3}, {}, 1 / 3, {}),
    "own aggregate": (
        None,
        {"metrics": {"a": 1, "b": 0}, "aggregate": {"method": "weighted_mean", "weights": {"a": 3, "b": 1}}},
        {},
        0.75,
        {"a": 1.0, "b": 0.0},
    ),
    "own weights for the declared method": (
        None,
        {"metrics": {"a": 1, "b": 0}, "aggregate": {"method": "mean", "weights": {"a": 3, "b": 1}}},
        {"policy": AggregatePolicy("weighted_mean")},
        0.75,
        {"a": 1.0, "b": 0.0},
    ),
    "own aggregate with dashes": (
        None,
        {"metrics": {"a": 1, "b": 0}, "aggregate": {"method": "any-pass", "primary": "reward"}},
        {},
        1.0,
        {"a": 1.0, "b": 0.0},
    ),
    "declared aggregate": (None, {"metrics": {"a": 1, "b": 0}}, {"policy": MEAN}, 0.5, {"a": 1.0, "b": 0.0}),
    "declared aggregate over loose metrics": (
        None,
        {"a": 1, "b": 0.5},
        {"policy": MEAN},
        0.75,
        {"a": 1.0, "b": 0.5},
    ),
    "fallback method": (
        None,
        {"a": 1, "b": 0},
        {"policy": AggregatePolicy(fallback="max")},
        1.0,
        {"a": 1.0, "b": 0.0},
    ),
    "aggregate that agrees with the text": (
        "0.5",
        {"metrics": {"a": 1, "b": 0}},
        {"policy": MEAN},
        0.5,
        {"a": 1.0, "b": 0.0},
    ),
    "metrics without an aggregate, text as the scalar": ("0.4", {"metrics": {"a": 1}}, {}, 0.4, {"a": 1.0}),
    "evidence without a scalar, text as the scalar": ("0.4", {"evidence": ["log.txt"]}, {}, 0.4, {}),
    "an envelope is not recomputed from loose metrics": (
        None,
        {"reward": 0.9, "b": 0.1},
        {"policy": MEAN},
        0.9,
        {"b": 0.1},
    ),
    "declared criteria": (None, {"metrics": {"a": 1, "b": 0}}, {"policy": KIT}, 0.75, {"a": 1.0, "b": 0.0}),
    "declared criteria and an equal reward": (
        "0.75",
        {"reward": 0.75, "metrics": {"a": 1, "b": 0}},
        {"policy": KIT},
        0.75,
        {"a": 1.0, "b": 0.0},
    ),
    "metrics in a wider range": (None, {"reward": 2, "a": -1}, {"reward_range": WIDE}, 2.0, {"a": -1.0}),
    "rounding of a sum at the edge": (
        None,
        {
            "metrics": {"a": 1, "b": 1, "c": 1},
            "aggregate": {"method": "weighted_sum", "weights": {"a": 0.7, "b": 0.2, "c": 0.1}},
        },
        {},
        1.0,
        {"a": 1.0, "b": 1.0, "c": 1.0},
    ),
    "a metric named reward that agrees": (
        None,
        {"metrics": {"reward": 1}},
        {"policy": MEAN},
        1.0,
        {"reward": 1.0},
    ),
    "space and granularity": (None, {"reward": 1, "space": "action", "granularity": "step"}, {}, 1.0, {}),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepts(case: str, tmp_path: Path) -> None:
    text, document, options, reward, metrics = ACCEPTED[case]
    scored = read_reward(folder(tmp_path, text, document), **options)
    assert scored.reward == pytest.approx(reward, abs=1e-12)
    assert dict(scored.metrics) == metrics


REFUSED = {
    "nothing": (None, None, {}, "reward-missing", "neither"),
    "empty text": ("", None, {}, "reward-invalid", "reward.txt is empty"),
    "blank text": (" \n", None, {}, "reward-invalid", "reward.txt is empty"),
    "text that is a word": ("one", None, {}, "reward-invalid", "one decimal number"),
    "text of two numbers": ("1 0", None, {}, "reward-invalid", "one decimal number"),
    "text in hexadecimal": ("0x1", None, {}, "reward-invalid", "one decimal number"),
    "text with an underscore": ("1_0", None, {}, "reward-invalid", "one decimal number"),
    "text of foreign digits": ("١", None, {}, "reward-invalid", "one decimal number"),
    "text of nan": ("nan", None, {}, "reward-invalid", "one decimal number"),
    "text of inf": ("inf", None, {}, "reward-invalid", "one decimal number"),
    "text that overflows": ("1e999", None, {}, "reward-invalid", "finite"),
    "text of true": ("true", None, {}, "reward-invalid", "one decimal number"),
    "text above the range": ("1.01", None, {}, "reward-invalid", "outside [0, 1]"),
    "text below the range": ("-0.1", None, {}, "reward-invalid", "outside [0, 1]"),
    "text outside a wider range": ("2.5", None, {"reward_range": WIDE}, "reward-invalid", "outside [-1, 2]"),
    "text that is not unicode": (b"\xff1", None, {}, "reward-invalid", "not UTF-8"),
    "text alone with declared criteria": ("1", None, {"policy": KIT}, "reward-missing", "criteria"),
    "empty json": (None, b"", {}, "reward-invalid", "reward.json is empty"),
    "empty json beside a good text": ("1", b"", {}, "reward-invalid", "reward.json is empty"),
    "empty text beside a good json": ("", {"reward": 1}, {}, "reward-invalid", "reward.txt is empty"),
    "json that is torn": (None, b'{"reward": 1', {}, "reward-invalid", "not JSON"),
    "json that is not unicode": (None, b'{"reward": 1, "a\xff": 1}', {}, "reward-invalid", "not UTF-8"),
    "json number": (None, b"0.5", {}, "reward-invalid", "must be an object"),
    "json null": (None, b"null", {}, "reward-invalid", "not null"),
    "json list": (None, [1], {}, "reward-invalid", "must be an object"),
    "json text": (None, b'"1"', {}, "reward-invalid", "must be an object"),
    "empty object": (None, {}, {}, "reward-invalid", "neither a `reward` nor metrics"),
    "metrics without an aggregate": (None, {"metrics": {"a": 1}}, {}, "reward-invalid", "neither a `reward`"),
    "an aggregate without metrics": (
        None,
        {"aggregate": {"method": "mean"}},
        {},
        "reward-invalid",
        "no metrics",
    ),
    "an aggregate without metrics beside a text": (
        "1",
        {"aggregate": {"method": "mean"}},
        {},
        "reward-invalid",
        "no metrics",
    ),
    "reward true": (None, {"reward": True}, {}, "reward-invalid", "not True"),
    "reward null": (None, {"reward": None}, {}, "reward-invalid", "not None"),
    "reward text": (None, {"reward": "1"}, {}, "reward-invalid", "finite number"),
    "reward nan": (None, b'{"reward": NaN}', {}, "reward-invalid", "NaN"),
    "reward infinite": (None, b'{"reward": -Infinity}', {}, "reward-invalid", "Infinity"),
    "reward overflows": (None, b'{"reward": 1e999}', {}, "reward-invalid", "too large"),
    "reward overflows as an integer": (
        None,
        b'{"reward": 1' + b"0" * 400 + b"}",
        {},
        "reward-invalid",
        "finite number",
    ),
    "reward with endless digits": (
        None,
        b'{"reward": 1' + b"0" * 5000 + b"}",
        {},
        "reward-invalid",
        "digits",
    ),
    "reward above the range": (None, {"reward": 1.5}, {}, "reward-invalid", "outside [0, 1]"),
    "nan anywhere": (None, b'{"reward": 1, "debug": [NaN]}', {}, "reward-invalid", "NaN"),
    "duplicate keys": (None, b'{"reward": 1, "reward": 0}', {}, "reward-invalid", "'reward' twice"),
    "duplicate keys inside": (
        None,
        b'{"reward": 1, "raw": {"a": 1, "a": 2}}',
        {},
        "reward-invalid",
        "'a' twice",
    ),
    "half a character": (None, b'{"reward": 1, "reason": "\\ud800"}', {}, "reward-invalid", "Unicode"),
    "nested too deep": (
        None,
        b'{"reward": 1, "raw": ' + b"[" * 65 + b"]" * 65 + b"}",
        {},
        "reward-invalid",
        "deeper than 64",
    ),
    "nested beyond parsing": (None, b"[" * 100_000, {}, "reward-invalid", "deeper than 64"),
    "unknown text key": (
        None,
        {"reward": 1, "note": "x"},
        {},
        "reward-invalid",
        "note must be a finite number",
    ),
    "metric true": (None, {"reward": 1, "metrics": {"a": True}}, {}, "reward-invalid", "metrics.a"),
    "aggregate above the range": (
        None,
        {"metrics": {"a": 2, "b": 3}, "aggregate": {"method": "mean"}},
        {},
        "reward-invalid",
        "outside [0, 1]",
    ),
    "metrics as a list": (None, {"reward": 1, "metrics": [1]}, {}, "reward-invalid", "metrics must map"),
    "rubric as a map": (None, {"reward": 1, "rubric": {}}, {}, "reward-invalid", "rubric must be a list"),
    "rubric without a score": (
        None,
        {"reward": 1, "rubric": [{"name": "a"}]},
        {},
        "reward-invalid",
        "rubric[0]",
    ),
    "rubric score true": (
        None,
        {"reward": 1, "rubric": [{"score": True}]},
        {},
        "reward-invalid",
        "rubric[0].score",
    ),
    "rubric score in a wider range": (
        None,
        {"reward": 1, "rubric": [{"score": 1.5}]},
        {"reward_range": WIDE},
        "reward-invalid",
        "rubric[0].score",
    ),
    "rubric in no space": (
        None,
        {"reward": 1, "rubric": [{"score": 1, "space": "outer"}]},
        {},
        "reward-invalid",
        "space",
    ),
    "no such space": (None, {"reward": 1, "space": "outer"}, {}, "reward-invalid", "space"),
    "no such granularity": (None, {"reward": 1, "granularity": "each"}, {}, "reward-invalid", "granularity"),
    "aggregate as a text": (
        None,
        {"reward": 1, "aggregate": "mean"},
        {},
        "reward-invalid",
        "aggregate must be a mapping",
    ),
    "aggregate without a method": (
        None,
        {"reward": 1, "aggregate": {}},
        {},
        "reward-invalid",
        "name a method",
    ),
    "no such method": (
        None,
        {"reward": 1, "aggregate": {"method": "median"}},
        {},
        "reward-invalid",
        "median",
    ),
    "unknown key of an aggregate": (
        None,
        {"a": 1, "aggregate": {"method": "mean", "treshold": 1}},
        {},
        "reward-invalid",
        "treshold",
    ),
    "aggregate of another field": (
        None,
        {"a": 1, "aggregate": {"method": "mean", "primary": "a"}},
        {},
        "reward-invalid",
        "primary",
    ),
    "weight below zero": (
        None,
        {"a": 1, "aggregate": {"method": "weighted_mean", "weights": {"a": -1}}},
        {},
        "reward-invalid",
        "weight",
    ),
    "weights add up to zero": (
        None,
        {"a": 1, "aggregate": {"method": "weighted_mean", "weights": {"a": 0}}},
        {},
        "reward-invalid",
        "add up to 0",
    ),
    "weights without a metric": (
        None,
        {"a": 1, "aggregate": {"method": "weighted_mean", "weights": {"a": 1, "b": 1}}},
        {},
        "reward-invalid",
        "'b'",
    ),
    "sum without weights": (
        None,
        {"a": 1, "aggregate": {"method": "weighted_sum"}},
        {},
        "reward-invalid",
        "needs a weight",
    ),
    "sum above the range": (
        None,
        {"a": 1, "aggregate": {"method": "weighted_sum", "weights": {"a": 2}}},
        {},
        "reward-invalid",
        "outside",
    ),
    "text against json": ("0", {"reward": 1}, {}, "reward-mismatch", "reward.txt"),
    "text against an aggregate": (
        "1",
        {"metrics": {"a": 0}},
        {"policy": MEAN},
        "reward-mismatch",
        "reward.txt",
    ),
    "reward against its own aggregate": (
        None,
        {"reward": 1, "metrics": {"a": 0}, "aggregate": {"method": "mean"}},
        {},
        "reward-mismatch",
        "aggregate",
    ),
    "reward against the declared aggregate": (
        None,
        {"reward": 1, "metrics": {"a": 0}},
        {"policy": MEAN},
        "reward-mismatch",
        "aggregate",
    ),
    "a metric twice": (
        None,
        {"reward": 1, "a": 1, "metrics": {"a": 0}},
        {},
        "reward-mismatch",
        "stated twice",
    ),
    "a metric named reward that differs": (
        None,
        {"reward": 1, "metrics": {"reward": 0}},
        {},
        "reward-mismatch",
        "'reward'",
    ),
    "criteria without metrics": (None, {"reward": 1}, {"policy": KIT}, "reward-invalid", "need `metrics`"),
    "criteria with loose metrics": (
        None,
        {"a": 1, "b": 0},
        {"policy": KIT},
        "reward-invalid",
        "need `metrics`",
    ),
    "a criterion missing": (None, {"metrics": {"a": 1}}, {"policy": KIT}, "reward-invalid", "missing ['b']"),
    "a criterion too many": (
        None,
        {"metrics": {"a": 1, "b": 1, "c": 1}},
        {"policy": KIT},
        "reward-invalid",
        "not declared ['c']",
    ),
    "criteria without a method": (
        None,
        {"reward": 1, "metrics": {"a": 1}},
        {"policy": AggregatePolicy(criteria=("b",))},
        "reward-invalid",
        "'b'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case: str, tmp_path: Path) -> None:
    text, document, options, code, words = REFUSED[case]
    with pytest.raises(RewardError) as caught:
        read_reward(folder(tmp_path, text, document), **options)
    assert caught.value.code == code
    assert caught.value.category == "verifier"
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_value_is_named_with_its_file_and_key(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match=r"^reward\.json: metrics\.speed must be a finite number, not '7'$") as caught:
        read_reward(folder(tmp_path, None, {"reward": 1, "metrics": {"speed": "7"}}))
    assert (caught.value.file, caught.value.path) == ("reward.json", "metrics.speed")


PLACES = {
    "text outside the range": ("7", None, {}, "reward.txt", "", "reward.txt is 7.0, outside"),
    "text that is not UTF-8": (b"\xff", None, {}, "reward.txt", "", "reward.txt is not UTF-8"),
    "text that is a word": ("one", None, {}, "reward.txt", "", "reward.txt must contain one decimal number"),
    "json that is null": (None, b"null", {}, "reward.json", "", "reward.json must contain an object"),
    "text that is empty": ("", None, {}, "reward.txt", "", "reward.txt is empty"),
    "text without the metrics of the criteria": (
        "1",
        None,
        {"policy": KIT},
        "reward.json",
        "",
        "the declared criteria",
    ),
    "json that is torn": (None, b"{", {}, "reward.json", "", "reward.json is not JSON"),
    "an empty object": (None, {}, {}, "reward.json", "reward", "reward.json: there is neither"),
    "reward": (None, {"reward": True}, {}, "reward.json", "reward", "reward.json: reward must be"),
    "space": (None, {"reward": 1, "space": "x"}, {}, "reward.json", "space", "reward.json: space "),
    "granularity": (
        None,
        {"reward": 1, "granularity": "x"},
        {},
        "reward.json",
        "granularity",
        "reward.json: granularity ",
    ),
    "metrics": (None, {"reward": 1, "metrics": []}, {}, "reward.json", "metrics", "reward.json: metrics must map"),
    "a loose metric": (None, {"reward": 1, "a": []}, {}, "reward.json", "a", "reward.json: a must be"),
    "rubric": (None, {"reward": 1, "rubric": {}}, {}, "reward.json", "rubric", "reward.json: rubric must be a list"),
    "a line of the rubric": (
        None,
        {"reward": 1, "rubric": [{"score": 1}, 7]},
        {},
        "reward.json",
        "rubric[1]",
        "reward.json: rubric[1] must be an object",
    ),
    "the score of a line": (
        None,
        {"reward": 1, "rubric": [{"score": 2}]},
        {},
        "reward.json",
        "rubric[0].score",
        "reward.json: rubric[0].score is 2.0",
    ),
    "the space of a line": (
        None,
        {"reward": 1, "rubric": [{"score": 1, "space": "x"}]},
        {},
        "reward.json",
        "rubric[0].space",
        "reward.json: rubric[0].space ",
    ),
    "a key of the aggregate": (
        None,
        {"a": 1, "aggregate": {"treshold": 1}},
        {},
        "reward.json",
        "aggregate.treshold",
        "reward.json: aggregate has an unknown key",
    ),
    "the method": (
        None,
        {"a": 1, "aggregate": {}},
        {},
        "reward.json",
        "aggregate.method",
        "reward.json: aggregate must name a method",
    ),
    "criteria without metrics": (
        None,
        {"reward": 1},
        {"policy": KIT},
        "reward.json",
        "metrics",
        "reward.json: the declared criteria need",
    ),
    "a text against the reward": (
        "0",
        {"reward": 1},
        {},
        "reward.json",
        "reward",
        "reward.json: the reward is 1.0 by reward, but 0.0 by reward.txt",
    ),
    "an aggregate against the reward": (
        None,
        {"reward": 1, "metrics": {"a": 0}},
        {"policy": MEAN},
        "reward.json",
        "reward",
        "reward.json: the reward is 1.0 by reward, but 0.0 by aggregate",
    ),
}


@pytest.mark.parametrize("case", PLACES)
def test_what_is_wrong_is_named_with_its_file_and_key(case: str, tmp_path: Path) -> None:
    text, document, options, file, path, words = PLACES[case]
    with pytest.raises(RewardError) as caught:
        read_reward(folder(tmp_path, text, document), **options)
    assert (caught.value.file, caught.value.path) == (file, path)
    assert str(caught.value).startswith(words)


def test_a_line_of_the_rubric_is_named_by_its_first_name_or_its_place(tmp_path: Path) -> None:
    lines = [
        {"score": 1, "name": "a", "id": "b"},
        {"score": 1, "name": "", "id": "b", "criterion": "c"},
        {"score": 1, "name": 7, "criterion": "c", "title": "d"},
        {"score": 1, "title": "d", "reason": 7},
        {"score": 1},
    ]
    scored = read_reward(folder(tmp_path, None, {"reward": 1, "rubric": lines}))
    assert [item.name for item in scored.items] == ["a", "b", "c", "d", "rubric[4]"]
    assert {(item.space, item.reason) for item in scored.items} == {("output", None)}


@pytest.mark.parametrize("name", ["reward.txt", "reward.json"])
@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "socket", "dangling link"])
def test_anything_but_a_regular_file_is_refused_at_once(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    target = tmp_path / "elsewhere"
    target.write_text('{"reward": 1}' if name.endswith("json") else "1")
    match kind:
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(target)
        case "dangling link":
            path.symlink_to("nowhere")
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                short = Path(os.path.relpath(path))
                server.bind(str(min(short, path, key=lambda p: len(str(p)))))
    with pytest.raises(RewardError, match="not a regular file") as caught:
        read_reward(tmp_path)
    assert (caught.value.code, caught.value.file) == ("reward-invalid", name)


@pytest.mark.parametrize("name", ["reward.txt", "reward.json"])
def test_an_oversized_file_is_refused_without_reading_it(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(RewardError, match="at most 1,048,576 are allowed") as caught:
        read_reward(tmp_path)
    assert caught.value.code == "reward-invalid"


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    document = json.dumps({"reward": 1, "raw": ""})
    padded = json.dumps({"reward": 1, "raw": "x" * (MAX_BYTES - len(document))})
    assert len(padded) == MAX_BYTES
    assert read_reward(folder(tmp_path, None, padded.encode())).reward == 1.0


def test_a_folder_that_cannot_be_read_is_trouble_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InfrastructureFailure) as caught:
        read_reward(tmp_path / "file")
    assert (caught.value.code, caught.value.file) == ("unreadable", "reward.txt")


def test_structured_keys_survive_reading_and_writing_back(tmp_path: Path) -> None:
    document = {
        "metrics": {"a": 1, "b": 0},
        "rubric": [{"name": "style", "score": 0.5, "space": "reasoning", "reason": "terse", "more": [1]}],
        **{key: {"kept": [key, None, 1.5, "ü"]} for key in sorted(PRESERVED)},
    }
    scored = read_reward(folder(tmp_path, None, document), policy=MEAN)
    write_reward(tmp_path, scored)
    written = json.loads((tmp_path / "reward.json").read_text())
    assert written == {**document, "reward": 0.5, "aggregate": {"method": "mean"}}
    assert next(iter(written)) == "reward"
    assert (tmp_path / "reward.txt").read_text() == "0.5\n"
    (item,) = scored.items
    assert (item.name, item.score, item.space, item.reason) == ("style", 0.5, "reasoning", "terse")


def test_what_was_written_back_reads_the_same_without_the_policy(tmp_path: Path) -> None:
    own = {"method": "mean", "weights": {"a": 1, "b": 1}}
    first = read_reward(folder(tmp_path, None, {"metrics": {"a": 1, "b": 0}, "aggregate": own}), policy=KIT)
    assert first.reward == 0.75
    (note,) = first.diagnostics
    assert (note.code, note.severity) == ("aggregate-overruled", "warning")
    assert (note.file, note.path) == ("reward.json", "aggregate")
    assert "method, weights" in note.message
    write_reward(tmp_path, first)
    again = read_reward(tmp_path)
    assert (again.reward, again.metrics, again.document) == (first.reward, first.metrics, first.document)
    assert again.diagnostics == ()


def test_a_text_alone_gets_its_envelope(tmp_path: Path) -> None:
    write_reward(tmp_path, read_reward(folder(tmp_path, "1")))
    assert json.loads((tmp_path / "reward.json").read_text()) == {"reward": 1.0}
    assert (tmp_path / "reward.txt").read_text() == "1.0\n"


def test_details_are_preserved_untouched(tmp_path: Path) -> None:
    details = b'{"criteria":[{"name":"a","score":1}]}'
    (tmp_path / "reward-details.json").write_bytes(details)
    scored = read_reward(folder(tmp_path, "1"))
    write_reward(tmp_path, scored)
    assert scored.details == {"criteria": [{"name": "a", "score": 1}]}
    assert scored.diagnostics == ()
    assert (tmp_path / "reward-details.json").read_bytes() == details


@pytest.mark.parametrize("details", [b"not json", b'{"a": NaN}', b"x" * (MAX_BYTES + 1)], ids=["torn", "nan", "large"])
def test_unusable_details_cost_a_diagnostic_and_not_the_score(details: bytes, tmp_path: Path) -> None:
    (tmp_path / "reward-details.json").write_bytes(details)
    scored = read_reward(folder(tmp_path, "1"))
    assert scored.reward == 1.0
    assert scored.details is None
    (note,) = scored.diagnostics
    assert note == Issue("details-invalid", "warning", "", note.message, "reward-details.json")
    assert note.message.startswith("reward-details.json ")


@pytest.mark.parametrize("details", [{"a": "ü"}, MappingProxyType({"a": "ü"})])
def test_documents_are_written_for_people_to_read(details: object, tmp_path: Path) -> None:
    write_reward(tmp_path, Scored(1.0, details=details))
    assert (tmp_path / "reward-details.json").read_text() == '{\n  "a": "ü"\n}\n'


def test_details_may_be_a_list_but_no_document_holds_what_is_not_json(tmp_path: Path) -> None:
    write_reward(tmp_path, Scored(1.0, details=[1, 2]))
    assert json.loads((tmp_path / "reward-details.json").read_text()) == [1, 2]
    with pytest.raises(ValueError, match="JSON"):
        write_reward(tmp_path, Scored(1.0, document={"raw": float("nan")}))


def test_a_reader_of_the_old_reward_keeps_it_and_an_unseen_one_is_written_directly(tmp_path: Path) -> None:
    write_reward(tmp_path, Scored(0.25))
    with (tmp_path / "reward.txt").open() as old:
        write_reward(tmp_path, Scored(0.5))
        assert old.read() == "0.25\n"
    with (tmp_path / "reward.txt").open() as same:
        write_reward(tmp_path, Scored(0.75), unseen=True)
        assert same.read() == "0.75\n"


def test_writing_replaces_a_planted_link_and_leaves_its_target(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    logs = tmp_path / "logs"
    logs.mkdir()
    scored = read_reward(folder(logs, "1"))
    (logs / "reward.json").symlink_to(target)
    write_reward(logs, scored)
    assert target.read_text() == "mine"
    assert not (logs / "reward.json").is_symlink()


def test_a_folder_that_cannot_be_written_is_trouble_of_the_machine(tmp_path: Path) -> None:
    scored = read_reward(folder(tmp_path, "1"))
    with pytest.raises(InfrastructureFailure) as caught:
        write_reward(tmp_path / "missing", scored)
    assert caught.value.code == "unwritable"


@pytest.mark.parametrize(("low", "high"), [(0.1, 1), (0, 0.9), (float("nan"), 1), (0, float("inf"))])
def test_a_range_can_only_be_widened(low: float, high: float) -> None:
    with pytest.raises(PackageError) as caught:
        RewardRange(low, high)
    assert caught.value.path == "verifier.reward_range"
