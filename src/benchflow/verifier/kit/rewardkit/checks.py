"""The checks: each takes the workspace first and returns a truth value or a number from 0 to 1."""

from __future__ import annotations

import csv
import difflib
import filecmp
import json
import re
import sqlite3
import subprocess
import urllib.error
import urllib.request
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from .session import registers

_SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_TRAJECTORY = "/logs/agent/trajectory.json"
"""What checks call the recorded trajectory. Such a file was written by the agent: the record is read instead."""
_RECORDED = Path(__file__).resolve().parents[1] / "trajectory.json"


def _text(workspace: Path, path: str) -> str:
    return (workspace / path).read_text(encoding="utf-8", errors="replace")


@registers
def file_exists(workspace: Path, path: str) -> bool:
    return (workspace / path).exists()


@registers
def file_not_exists(workspace: Path, path: str) -> bool:
    return not (workspace / path).exists()


@registers
def file_contains(workspace: Path, path: str, text: str) -> bool:
    return text in _text(workspace, path)


@registers
def file_contains_regex(workspace: Path, path: str, pattern: str) -> bool:
    return re.search(pattern, _text(workspace, path), re.MULTILINE) is not None


@registers
def file_matches(workspace: Path, path: str, expected: str) -> bool:
    """The same text, ignoring surrounding white space."""
    return _text(workspace, path).strip() == expected.strip()


@registers
def files_equal(workspace: Path, first: str, second: str) -> bool:
    return filecmp.cmp(str(workspace / first), str(workspace / second), shallow=False)


@registers
def diff_ratio(workspace: Path, path: str, expected: str) -> float:
    """The similarity of two texts."""
    return difflib.SequenceMatcher(None, _text(workspace, path), expected).ratio()


def _run(workspace: Path, command: str, cwd: str | None, timeout: float) -> tuple[int, str]:
    folder = workspace / cwd if cwd else workspace
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=str(folder), timeout=timeout, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")


@registers
def command_succeeds(workspace: Path, cmd: str, cwd: str | None = None, timeout: float = 30) -> bool:
    return _run(workspace, cmd, cwd, timeout)[0] == 0


@registers
def command_output_contains(workspace: Path, cmd: str, text: str, cwd: str | None = None, timeout: float = 30) -> bool:
    return text in _run(workspace, cmd, cwd, timeout)[1]


@registers
def command_output_matches(
    workspace: Path, cmd: str, expected: str, cwd: str | None = None, timeout: float = 30
) -> bool:
    return _run(workspace, cmd, cwd, timeout)[1].strip() == expected.strip()


@registers
def command_output_matches_regex(
    workspace: Path, cmd: str, pattern: str, cwd: str | None = None, timeout: float = 30
) -> bool:
    return re.search(pattern, _run(workspace, cmd, cwd, timeout)[1], re.MULTILINE) is not None


def _json(workspace: Path, path: str) -> Any:
    try:
        return json.loads(_text(workspace, path))
    except ValueError as error:
        raise AssertionError(f"{path} is not JSON") from error


def _follow(value: Any, names: list[str]) -> Any:
    for name in names:
        if isinstance(value, list) and name.lstrip("-").isdigit() and -len(value) <= int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            raise AssertionError(f"{name} does not exist")
    return value


@registers
def json_key_equals(workspace: Path, path: str, key: str, expected: Any) -> bool:
    return bool(_follow(_json(workspace, path), [key]) == expected)


@registers
def json_path_equals(workspace: Path, path: str, json_path: str, expected: Any) -> bool:
    """`a.b[0].c`, with or without a leading `$.`."""
    names = [name for name in re.split(r"[.\[\]]+", json_path.lstrip("$")) if name]
    return bool(_follow(_json(workspace, path), names) == expected)


@registers
def csv_cell_equals(workspace: Path, path: str, row: int, col: int | str, expected: Any) -> bool:
    """Rows count from 0; with a column name they count from below the header."""
    with (workspace / path).open(newline="", encoding="utf-8", errors="replace") as stream:
        rows = list(csv.reader(stream))
    if isinstance(col, str):
        if not rows or col not in rows[0]:
            return False
        rows, col = rows[1:], rows[0].index(col)
    return row < len(rows) and col < len(rows[row]) and rows[row][col].strip() == str(expected)


@registers
def xlsx_cell_equals(workspace: Path, path: str, cell: str, expected: Any, sheet: str | None = None) -> bool:
    found = _cell(workspace / path, cell, sheet)
    try:
        return found is not None and (found == str(expected) or float(found) == float(expected))
    except ValueError:
        return False


def _cell(path: Path, cell: str, sheet: str | None) -> str | None:
    try:
        with zipfile.ZipFile(str(path)) as book:
            names = [item.get("name") for item in ET.fromstring(book.read("xl/workbook.xml")).iter(_SHEET + "sheet")]
            number = names.index(sheet) + 1 if sheet else 1
            shared = _shared(book)
            for item in ET.fromstring(book.read(f"xl/worksheets/sheet{number}.xml")).iter(_SHEET + "c"):
                if item.get("r") == cell:
                    text = "".join(part.text or "" for part in item.iter() if part.tag in (_SHEET + "v", _SHEET + "t"))
                    return shared[int(text)] if item.get("t") == "s" else text
    except (zipfile.BadZipFile, KeyError, ValueError, IndexError, ET.ParseError):
        pass
    return None


def _shared(book: zipfile.ZipFile) -> list[str]:
    if "xl/sharedStrings.xml" not in book.namelist():
        return []
    items = ET.fromstring(book.read("xl/sharedStrings.xml")).iter(_SHEET + "si")
    return ["".join(part.text or "" for part in item.iter(_SHEET + "t")) for item in items]


@registers
def sqlite_query_equals(workspace: Path, db: str, query: str, expected: Any) -> bool:
    """One value, or all rows."""
    path = workspace / db
    if not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            rows = connection.execute(query).fetchall()
    except sqlite3.Error:
        return False
    if len(rows) == 1 and len(rows[0]) == 1 and not isinstance(expected, (list, tuple)):
        return bool(rows[0][0] == expected)
    return [list(row) for row in rows] == [list(row) for row in expected] if isinstance(expected, list) else False


def _fetch(url: str, timeout: float) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.status, answer.read(1 << 20).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read(1 << 20).decode("utf-8", "replace")
    except (OSError, ValueError):
        return 0, ""


@registers
def http_status_equals(workspace: Path, url: str, status: int = 200, timeout: float = 10) -> bool:
    del workspace
    return _fetch(url, timeout)[0] == status


@registers
def http_response_contains(workspace: Path, url: str, text: str, timeout: float = 10) -> bool:
    del workspace
    return text in _fetch(url, timeout)[1]


def _steps(path: str) -> list[Any]:
    """The steps of a trajectory. A record that does not exist is an error, not a score."""
    file = _RECORDED if path == _TRAJECTORY else Path(path)
    if file == _RECORDED and not file.is_file():
        raise RuntimeError("this verification has no recorded trajectory of an agent")
    data = json.loads(file.read_text(encoding="utf-8"))
    steps = data.get("steps", []) if isinstance(data, dict) else data
    return [step for step in steps if isinstance(step, dict)]


def _uses(path: str, tool: str) -> int:
    calls = [call for step in _steps(path) for call in step.get("tool_calls") or []]
    return sum(1 for call in calls if tool in (call.get("function_name"), call.get("name"), call.get("tool")))


@registers
def trajectory_tool_used(workspace: Path, tool: str, min_count: int = 1, path: str = _TRAJECTORY) -> bool:
    del workspace
    return _uses(path, tool) >= min_count


@registers
def trajectory_tool_not_used(workspace: Path, tool: str, path: str = _TRAJECTORY) -> bool:
    del workspace
    return _uses(path, tool) == 0


@registers
def trajectory_turn_count(workspace: Path, max_turns: int, path: str = _TRAJECTORY) -> bool:
    del workspace
    return sum(1 for step in _steps(path) if step.get("source", "agent") == "agent") <= max_turns
