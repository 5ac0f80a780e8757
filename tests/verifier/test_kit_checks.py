"""Every check of a reward kit on files that pass and files that do not."""

from __future__ import annotations

import csv
import json
import sqlite3
import zipfile

import pytest

from benchflow.verifier.kit import rewardkit as rk
from benchflow.verifier.kit.rewardkit.scoring import KitError, score_folder
from benchflow.verifier.kit.rewardkit.session import SESSION


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("one\ntwo\n")
    (tmp_path / "a.json").write_text(json.dumps({"k": {"list": [1, 2]}, "n": 3}))
    with (tmp_path / "a.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["name", "n"], ["x", "1"], ["y", "2"]])
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("create table t (n)")
        connection.execute("insert into t values (5)")
    connection.close()
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as book:
        book.writestr("xl/workbook.xml", f'<workbook xmlns="{main}"><sheets><sheet name="S"/></sheets></workbook>')
        book.writestr("xl/sharedStrings.xml", f'<sst xmlns="{main}"><si><t>word</t></si></sst>')
        cells = '<c r="A1" t="s"><v>0</v></c><c r="B1"><v>2.5</v></c>'
        book.writestr(
            "xl/worksheets/sheet1.xml", f'<worksheet xmlns="{main}"><sheetData>{cells}</sheetData></worksheet>'
        )
    steps = [{"source": "agent", "tool_calls": [{"function_name": "bash"}]}, {"source": "user"}]
    (tmp_path / "trajectory.json").write_text(json.dumps({"steps": steps}))
    return tmp_path


CASES = [
    (rk.file_exists, ("a.txt",), {}, 1),
    (rk.file_exists, ("no",), {}, 0),
    (rk.file_not_exists, ("no",), {}, 1),
    (rk.file_contains, ("a.txt", "two"), {}, 1),
    (rk.file_contains, ("no", "two"), {}, 0),
    (rk.file_contains_regex, ("a.txt", "^t.o$"), {}, 1),
    (rk.file_matches, ("a.txt", "one\ntwo"), {}, 1),
    (rk.files_equal, ("a.txt", "b.txt"), {}, 1),
    (rk.files_equal, ("a.txt", "a.json"), {}, 0),
    (rk.diff_ratio, ("a.txt", "one\ntwo\n"), {}, 1),
    (rk.command_succeeds, ("true",), {}, 1),
    (rk.command_succeeds, ("sleep 5",), {"timeout": 0.1}, 0),
    (rk.command_output_contains, ("cat a.txt", "two"), {}, 1),
    (rk.command_output_matches, ("echo  x", "x"), {}, 1),
    (rk.command_output_matches_regex, ("echo abc", "^a.c$"), {}, 1),
    (rk.json_key_equals, ("a.json", "n", 3), {}, 1),
    (rk.json_key_equals, ("a.txt", "n", 3), {}, 0),
    (rk.json_path_equals, ("a.json", "$.k.list[1]", 2), {}, 1),
    (rk.json_path_equals, ("a.json", "k.none", 2), {}, 0),
    (rk.csv_cell_equals, ("a.csv", 1, 0, "x"), {}, 1),
    (rk.csv_cell_equals, ("a.csv", 1, "n", 2), {}, 1),
    (rk.csv_cell_equals, ("a.csv", 9, "n", 2), {}, 0),
    (rk.xlsx_cell_equals, ("a.xlsx", "A1", "word"), {}, 1),
    (rk.xlsx_cell_equals, ("a.xlsx", "B1", 2.5), {"sheet": "S"}, 1),
    (rk.xlsx_cell_equals, ("a.txt", "A1", "word"), {}, 0),
    (rk.sqlite_query_equals, ("a.db", "select n from t", 5), {}, 1),
    (rk.sqlite_query_equals, ("a.db", "select n from t", [[5]]), {}, 1),
    (rk.sqlite_query_equals, ("a.db", "select x from t", 5), {}, 0),
    (rk.http_status_equals, ("http://127.0.0.1:9/",), {"timeout": 0.2}, 0),
]


@pytest.mark.parametrize(("check", "args", "kwargs", "score"), CASES)
def test_checks(workspace, check, args, kwargs, score):
    SESSION.criteria.clear()
    check(*args, **kwargs)
    assert SESSION.criteria.pop().grade(workspace) == score


def test_checks_of_trajectories(workspace):
    SESSION.criteria.clear()
    path = str(workspace / "trajectory.json")
    rk.trajectory_tool_used("bash", path=path)
    rk.trajectory_tool_not_used("browser", path=path)
    rk.trajectory_turn_count(1, path=path)
    rk.trajectory_tool_used("bash", min_count=2, path=path)
    assert [item.grade(workspace) for item in SESSION.criteria] == [1, 1, 1, 0]


def test_a_check_that_gives_no_score_is_an_error(workspace):
    SESSION.criteria.clear()

    @rk.criterion
    def wrong(folder):
        return "yes"

    with pytest.raises(TypeError, match="truth value"):
        SESSION.criteria.pop().grade(workspace)


@pytest.mark.parametrize(
    ("aggregation", "scores", "weights", "reward"),
    [
        ("all-pass", (1, 0.99), (1, 1), 0),
        ("all_pass", (1, 1), (1, 1), 1),
        ("any-pass", (0.9, 0.2), (1, 1), 0),
        ("any-pass", (1, 0), (1, 1), 1),
        ("required-pass", (1, 0.5), (1, 0), 0),
        ("required_pass", (1, 1), (1, 1), 1),
        ("weighted-sum", (1, 1), (1, -0.25), 0.75),
        ("threshold", (1, 0.5), (1, 1), 1),
        ("weighted-mean", (1, 0.5), (3, 1), 0.875),
    ],
)
def test_checks_combine_as_the_settings_say(tmp_path, aggregation, scores, weights, reward):
    lines = ["from benchflow.verifier.kit import rewardkit as rk", "@rk.criterion", "def gives(_, score): return score"]
    for score, weight in zip(scores, weights, strict=True):
        lines.append(f"gives({score}, weight={weight})")
    (tmp_path / "checks.py").write_text("\n".join(lines))
    (tmp_path / "reward.toml").write_text(f'[[reward]]\naggregation = "{aggregation}"\n')
    assert score_folder(tmp_path, tmp_path)[0] == pytest.approx(reward)


def test_a_weight_below_zero_is_refused_where_it_means_nothing(tmp_path):
    (tmp_path / "checks.py").write_text(
        "from benchflow.verifier.kit import rewardkit as rk\nrk.file_exists('checks.py', weight=-1)\n"
    )
    with pytest.raises(KitError, match="weighted-sum"):
        score_folder(tmp_path, tmp_path)
