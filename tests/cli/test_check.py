"""`bench tasks check`: the contract of its output and exit codes, on whatever a folder can hold."""

import json
import os
import socket
from pathlib import Path

import pytest


def parsed(result):
    document = json.loads(result.stdout)
    assert result.stdout.count("\n") >= 1
    return document


def codes(report) -> list[str]:
    return [issue["code"] for issue in report["issues"]]


def test_a_valid_package_in_json(bench, make_package):
    make_package()
    result = bench("tasks", "check", "tasks/a", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    document = parsed(result)
    digest = document["tasks"][0].pop("digest")
    assert digest.startswith("sha256:")
    assert len(digest) == 71
    assert document["tasks"][0].pop("content_digest") == digest, "the package has no evidence"
    assert document == {
        "level": "structural",
        "sandbox": None,
        "summary": {"total": 1, "valid": 1, "invalid": 0},
        "tasks": [{"path": "tasks/a", "name": "acme/a", "valid": True, "issues": []}],
    }


def test_a_broken_package_among_good_ones_is_reported_with_its_issues(bench, make_package):
    make_package("tasks/a")
    broken = make_package("tasks/b")
    (broken / "task.md").write_text((broken / "task.md").read_text().replace("workdir", "workdirr"))
    (make_package("tasks/c") / "task.md").write_bytes(b"\xff\xfe not text")
    make_package("tasks/d")
    result = bench("tasks", "check", "tasks", "--json")
    assert result.returncode == 1
    document = parsed(result)
    assert document["summary"] == {"total": 4, "valid": 2, "invalid": 2}
    a, b, c, d = document["tasks"]
    assert [a["valid"], b["valid"], c["valid"], d["valid"]] == [True, False, False, True]
    assert b["issues"] == [
        {
            "code": "unknown-key",
            "severity": "error",
            "path": "environment.workdirr",
            "message": b["issues"][0]["message"],
            "file": "task.md",
            "line": 6,
        }
    ]
    assert codes(c) == ["not-utf8"]
    assert (b["name"], c["name"]) == ("acme/b", "c")
    assert c["digest"].startswith("sha256:")


def test_text_names_file_line_and_key(bench, make_package):
    broken = make_package("tasks/b")
    (broken / "task.md").write_text((broken / "task.md").read_text().replace("workdir", "workdirr"))
    result = bench("tasks", "check", "tasks")
    assert result.returncode == 1
    assert "FAIL tasks/b (acme/b)" in result.stdout
    assert "tasks/b/task.md:6: error: environment.workdirr" in result.stdout
    assert "[unknown-key]" in result.stdout
    assert "1 package checked (structural): 0 valid, 1 invalid (1 error)" in result.stdout
    assert "\x1b" not in result.stdout


def test_quiet_lists_only_what_has_something_to_report(bench, make_package):
    make_package("tasks/a")
    make_package("tasks/b", **{"verifier/test.sh": "[REPLACE: this]"})
    result = bench("tasks", "check", "tasks", "-q")
    assert "tasks/a" not in result.stdout
    assert "tasks/b" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("missing",),
        ("empty",),
        ("file",),
        ("tasks", "empty"),
        ("tasks", "--level", "nonsense"),
        ("tasks", "--sandbox", "nonsense"),
        ("tasks", "--level", "runtime-capability"),
        ("tasks", "--level", "runtime-capability", "--sandbox", "nonsense"),
    ],
)
def test_wrong_usage_ends_with_2_and_prints_no_json(bench, make_package, tmp_path, arguments):
    make_package()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    result = bench("tasks", "check", *arguments, "--json")
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.strip().splitlines()) <= 2


@pytest.mark.parametrize("level", ["schema", "structural", "publication-grade", "acceptance"])
def test_each_level_asks_more(bench, make_package, level):
    folder = make_package()
    result = bench("tasks", "check", folder, "--level", level, "--json")
    assert result.returncode == (0 if level in ("schema", "structural") else 1)
    assert parsed(result)["level"] == level


def test_a_sandbox_is_asked_about_at_every_level(bench, make_package):
    folder = make_package()
    document = (folder / "task.md").read_text().replace("workdir: /app", "os: windows")
    (folder / "task.md").write_text(document)
    assert bench("tasks", "check", folder).returncode == 0
    for level in ("schema", "structural", "runtime-capability"):
        result = bench("tasks", "check", folder, "--level", level, "--sandbox", "docker", "--json")
        assert result.returncode == 1
        document = parsed(result)
        assert document["sandbox"] == "docker"
        assert [(issue["code"], issue["path"], issue["line"]) for issue in document["tasks"][0]["issues"]] == [
            ("unsupported-feature", "environment.os", 6)
        ]


def test_a_package_is_reported_once(bench, make_package, tmp_path):
    folder = make_package()
    (tmp_path / "alias").symlink_to(folder)
    result = bench("tasks", "check", "tasks", "tasks/a", "alias", "--json")
    assert [task["path"] for task in parsed(result)["tasks"]] == ["tasks/a"]


def test_hostile_folders_are_reported_and_never_hang(bench, make_package, tmp_path):
    make_package("tasks/good")
    os.mkfifo(make_package("tasks/pipe") / "verifier" / "pipe")
    for name in ("fifo-task", "folder-task", "linked-task", "dangling-task", "loop-task"):
        (make_package(f"tasks/{name}") / "task.md").unlink()
    os.mkfifo(tmp_path / "tasks/fifo-task/task.md")
    (tmp_path / "tasks/folder-task/task.md").mkdir()
    (tmp_path / "tasks/linked-task/task.md").symlink_to("../good/task.md")
    (tmp_path / "tasks/dangling-task/task.md").symlink_to("nowhere")
    (tmp_path / "tasks/loop-task/task.md").symlink_to("task.md")
    (make_package("tasks/escape") / "environment" / "passwd").symlink_to("/etc/passwd")
    (make_package("tasks/loop") / "environment" / "again").symlink_to("..")
    (make_package("tasks/nul") / "task.md").write_bytes(b"---\n\0\n---\n")
    sparse = make_package("tasks/sparse") / "task.md"
    with sparse.open("wb") as stream:
        stream.truncate(64 << 20)
    listener = socket.socket(socket.AF_UNIX)
    here = os.open(make_package("tasks/socket") / "oracle", os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{here}/sock")
    result = bench("tasks", "check", "tasks", "--json")
    listener.close()
    os.close(here)
    assert (result.returncode, result.stderr) == (1, "")
    reports = {task["path"].removeprefix("tasks/"): task for task in parsed(result)["tasks"]}
    assert len(reports) == 12
    assert {name for name, report in reports.items() if report["valid"]} == {"good", "loop"}
    assert codes(reports["pipe"]) == ["special-file"]
    assert codes(reports["socket"]) == ["special-file"]
    assert codes(reports["escape"]) == ["link-escape"]
    assert all(report["digest"].startswith("sha256:") for report in reports.values())
    schema = parsed(bench("tasks", "check", "tasks", "--level", "schema", "--json"))
    odd = {"fifo-task", "folder-task", "linked-task", "dangling-task", "loop-task", "nul", "sparse"}
    assert {task["path"].removeprefix("tasks/") for task in schema["tasks"] if not task["valid"]} == odd


def test_names_that_are_no_unicode_and_control_characters_are_shown_safely(bench, make_package, tmp_path):
    make_package("tasks/a\x1b[31m")
    odd = os.fsencode(tmp_path) + b"/tasks/\xff"
    Path(os.fsdecode(odd)).mkdir()
    with open(odd + b"/task.md", "wb") as stream:  # noqa: PTH123 - a name that is no text
        stream.write(b"")
    text = bench("tasks", "check", "tasks", text=False)
    assert text.returncode == 1
    assert b"\x1b" not in text.stdout
    document = parsed(bench("tasks", "check", "tasks", "--json"))
    assert document["summary"]["total"] == 2
    digests = bench("tasks", "digest", "tasks", text=False)
    assert (digests.returncode, len(digests.stdout.splitlines())) == (1, 1)
    assert b"is not UTF-8" in digests.stderr


def test_an_unreadable_folder_is_reported_as_a_broken_package(make_package, tmp_path, monkeypatch, capsys):
    from benchflow.cli import main

    make_package("tasks/a")
    (tmp_path / "tasks/locked").mkdir()
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.chdir(tmp_path)
    assert main(["tasks", "check", "tasks", "--json"]) == 1
    reports = json.loads(capsys.readouterr().out)["tasks"]
    assert [(task["path"], task["valid"], codes(task)) for task in reports] == [
        ("tasks/a", True, []),
        ("tasks/locked", False, ["unreadable-folder"]),
    ]


def test_many_packages_are_checked_in_processes_with_the_same_result(bench, make_package):
    for index in range(150):
        folder = make_package(f"many/t{index:03}")
        if index % 10 == 3:
            (folder / "task.md").write_text("---\nnope: 1\n---\n")
    result = bench("tasks", "check", "many", "--json")
    assert result.returncode == 1
    document = parsed(result)
    assert document["summary"] == {"total": 150, "valid": 135, "invalid": 15}
    assert [task["path"] for task in document["tasks"]] == [f"many/t{index:03}" for index in range(150)]
    assert [index for index, task in enumerate(document["tasks"]) if not task["valid"]] == list(range(3, 150, 10))


@pytest.fixture
def many(make_package):
    """40 packages: a warning in each, two unknown keys in twelve, one broken document."""
    for index in range(40):
        folder = make_package(f"many/t{index:02}")
        (folder / "environment/test.sh").write_bytes((folder / "verifier/test.sh").read_bytes())
        if index < 12:
            text = (folder / "task.md").read_text().replace("  workdir", "  cpuz: 1\n  diskk: 1\n  workdir")
            (folder / "task.md").write_text(text)
    (folder / "task.md").write_text("no frontmatter")


def test_problems_of_many_packages_are_grouped_by_code(bench, many):
    result = bench("tasks", "check", "many")
    copy = "environment/test.sh"
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        "error unknown-key: 24 in 12 packages",
        "     many/t00/task.md:6: environment.cpuz is not a known key; did you mean 'cpus'?",
        "     … and 23 more",
        "     keys: environment.cpuz (12), environment.diskk (12)",
        "error missing-frontmatter: 1 package",
        "     many/t39/task.md:1: task.md must start with a '---' line that opens the frontmatter",
        "warning tests-exposed: 40 packages",
        f"     many/t00/{copy}: {copy} is a copy of verifier/test.sh: the agent can read a test that scores",
        "     … and 39 more",
        "Use --code CODE to list all problems of one kind, --verbose to list everything.",
        "40 packages checked (structural): 27 valid, 13 invalid (25 errors, 40 warnings)",
    ]


def test_all_problems_of_one_code_are_listed_on_request(bench, many):
    listed = bench("tasks", "check", "many", "--code", "missing-frontmatter").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["FAIL", "many/t39/task.md:1:", "40"]
    everything = bench("tasks", "check", "many", "--verbose").stdout
    assert everything.count("[unknown-key]") == 24
    assert everything.count("[tests-exposed]") == 40
    assert len(parsed(bench("tasks", "check", "many", "--json"))["tasks"]) == 40


@pytest.mark.parametrize("options", [("--code", "nonsense"), ("--code", "unknown-key", "--json")])
def test_a_code_that_would_list_nothing_is_refused(bench, make_package, options):
    make_package()
    result = bench("tasks", "check", "tasks", *options)
    assert (result.returncode, result.stdout) == (2, "")


def test_checking_imports_no_runtime_and_no_network_client(make_package, tmp_path):
    import subprocess
    import sys

    make_package()
    code = "from benchflow.cli import main; main(['tasks', 'check', 'tasks', '--sandbox', 'local'])"
    listed = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    loaded = {line.split("|")[-1].strip() for line in listed.stderr.splitlines()}
    heavy = {
        "asyncio",
        "anyio",
        "httpx",
        "rich",
        "pydantic",
        "litellm",
        "benchflow.sandbox",
        "multiprocessing",
    }
    assert loaded & heavy == set()
