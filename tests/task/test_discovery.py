"""Finding packages below the paths a user names."""

import os
from pathlib import Path

import pytest

from benchflow.errors import UsageError
from benchflow.task.discovery import PACKAGE_MARKERS, TERMINAL_BENCH_MARKER, find_packages


def package(folder: Path, marker: str = "task.md") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / marker).write_text("")
    return folder


def found(*paths: Path, **options) -> list[str]:
    return [item.path.as_posix() for item in find_packages(paths, **options)]


def test_a_package_named_itself_is_found_as_called(tmp_path, monkeypatch):
    package(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    assert found(Path("a")) == ["a"]
    assert find_packages([Path("a")])[0].named
    monkeypatch.chdir(tmp_path / "a")
    assert found(Path()) == ["."]


def test_paths_are_the_call_joined_with_what_is_below_and_sorted(tmp_path, monkeypatch):
    for name in ("b", "a/x", "a/deep/er", "a.b"):
        package(tmp_path / "tasks" / name)
    monkeypatch.chdir(tmp_path)
    assert found(Path("tasks")) == ["tasks/a/deep/er", "tasks/a/x", "tasks/a.b", "tasks/b"]
    assert not find_packages([Path("tasks")])[0].named


def test_packages_inside_packages_are_not_looked_for(tmp_path):
    package(package(tmp_path / "outer") / "environment" / "inner", "task.toml")
    assert found(tmp_path) == [str(tmp_path / "outer")]


def test_hidden_folders_are_skipped_unless_named(tmp_path):
    package(tmp_path / ".cache" / "a")
    package(tmp_path / "b")
    assert found(tmp_path) == [str(tmp_path / "b")]
    assert found(tmp_path / ".cache") == [str(tmp_path / ".cache" / "a")]


def test_linked_folders_are_followed_only_when_named(tmp_path):
    elsewhere = package(tmp_path / "elsewhere" / "a").parent
    package(tmp_path / "tasks" / "b")
    (tmp_path / "tasks" / "link").symlink_to(elsewhere)
    assert found(tmp_path / "tasks") == [str(tmp_path / "tasks" / "b")]
    assert found(tmp_path / "tasks" / "link") == [str(tmp_path / "tasks" / "link" / "a")]


def test_a_package_is_reported_once_under_its_first_name(tmp_path):
    first = package(tmp_path / "tasks" / "a")
    (tmp_path / "alias").symlink_to(first)
    assert found(tmp_path / "tasks", first, tmp_path / "alias") == [str(first)]
    assert found(tmp_path / "alias", tmp_path / "tasks") == [str(tmp_path / "alias")]


def test_loops_of_links_end(tmp_path):
    package(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to("self")
    assert found(tmp_path) == [str(tmp_path / "a")]
    with pytest.raises(UsageError, match="self"):
        find_packages([tmp_path / "self"])


@pytest.mark.parametrize("kind", ["fifo", "folder", "dangling link"])
def test_a_marker_that_is_no_file_still_makes_a_package(tmp_path, kind):
    folder = tmp_path / "odd"
    folder.mkdir()
    marker = folder / "task.md"
    make = {"fifo": os.mkfifo, "folder": Path.mkdir, "dangling link": lambda path: path.symlink_to("nowhere")}
    make[kind](marker)
    assert found(tmp_path) == [str(folder)]


def test_terminal_bench_folders_count_only_where_asked_for(tmp_path):
    package(tmp_path / "tb", TERMINAL_BENCH_MARKER)
    package(tmp_path / "native")
    assert found(tmp_path) == [str(tmp_path / "native")]
    assert len(found(tmp_path, markers=(*PACKAGE_MARKERS, TERMINAL_BENCH_MARKER))) == 2


def test_every_named_path_must_hold_a_package(tmp_path):
    package(tmp_path / "a")
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (empty, "no packages found"),
        (tmp_path / "missing", "no such folder"),
        (tmp_path / "file", "not a folder"),
        (tmp_path / "pipe", "not a folder"),
        (Path("x" * 5000), "cannot be read"),
    ):
        with pytest.raises(UsageError, match=message):
            find_packages([tmp_path / "a", path])


def test_a_folder_that_cannot_be_searched_is_a_finding(tmp_path, monkeypatch):
    package(tmp_path / "a")
    locked = tmp_path / "locked"
    locked.mkdir()
    scandir = os.scandir

    def refuse(path):
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    good, bad = find_packages([tmp_path])
    assert good.problem is None
    assert bad.path == locked
    assert bad.problem is not None
    assert bad.problem.code == "unreadable-folder"


def test_a_package_whose_path_is_not_text_is_a_finding(tmp_path):
    package(tmp_path / "a")
    package(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xef")))
    assert [found.problem and found.problem.code for found in find_packages([tmp_path])] == [None, "path-not-utf-8"]


def test_very_deep_folders_end_in_a_finding_rather_than_a_crash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(40):
        Path("d" * 120).mkdir()
        os.chdir("d" * 120)
    results = find_packages([tmp_path])
    assert [item.problem is not None for item in results] == [True]
