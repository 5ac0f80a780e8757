"""What holds for every command: help, version, wrong usage, error boundary, broken pipes, weight."""

import errno
import os
import subprocess
import sys

import click
import pytest

from benchflow import cli
from benchflow.cli import failures, terminal
from benchflow.cli import tasks as tasks_group
from benchflow.cli.failures import guarded
from benchflow.cli.lazy import Lazy
from benchflow.errors import InfrastructureFailure, PackageError, UnsupportedError, UsageError


def test_help_lists_every_group_and_command(bench):
    shown = bench("--help")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in cli.COMMANDS)
    assert all(name in bench("tasks", "-h").stdout for name in tasks_group.COMMANDS)


def test_version_is_one_line(bench):
    shown = bench("--version")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("bench ")
    assert shown.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("tasks",),
        ("nonsense",),
        ("tasks", "chek"),
        ("--nope",),
        ("tasks", "check"),
        ("tasks", "check", ""),
    ],
)
def test_wrong_usage_ends_with_2_and_an_empty_stdout(bench, arguments):
    refused = bench(*arguments)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.strip()


def test_a_misspelt_command_is_answered_with_the_nearest(bench):
    assert "Did you mean 'check'?" in bench("tasks", "chek").stderr


def test_help_imports_nothing_heavy(bench):
    listed = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "from benchflow.cli import main; main(['--help'])"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.split("|")[-1].strip() for line in listed.stderr.splitlines()}
    assert not loaded & {"pydantic", "rich", "yaml", "asyncio", "anyio", "httpx", "benchflow.task"}


@pytest.mark.parametrize("table", [cli.COMMANDS, tasks_group.COMMANDS])
def test_every_entry_of_a_table_loads(table):
    for name, entry in table.items():
        assert entry.load().name == name


def test_an_entry_that_is_no_command_is_refused():
    with pytest.raises(TypeError, match="not a click command"):
        Lazy("os:path", "").load()


def failing(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("nothing here"), 2, "nothing here"),
        (UnsupportedError("no GPUs here"), 2, "no GPUs here"),
        (PackageError("bad key", file="task.md", line=3), 1, "task.md:3: bad key"),
        (InfrastructureFailure("disk is full"), 1, "disk is full"),
        (click.ClickException("odd"), 1, "odd"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "/x: Permission denied"),
        (ZeroDivisionError("oh"), 1, "internal error: ZeroDivisionError: oh"),
        (RecursionError("deep"), 1, "internal error: RecursionError"),
        (MemoryError(), 1, "internal error: MemoryError"),
    ],
)
def test_every_error_is_one_sentence_and_an_exit_code(capsys, error, code, said):
    assert guarded(failing(error), []) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert "Traceback" not in printed.err


def test_a_traceback_is_shown_only_on_request(capsys, monkeypatch):
    monkeypatch.setenv(failures.DEBUG_VARIABLE, "1")
    assert guarded(failing(ZeroDivisionError("oh")), []) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path, make_package):
    make_package()
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        ended = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; from benchflow.cli import main; sys.exit(main())",
                "tasks",
                "--help",
            ],
            stdout=pipe,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_a_reader_that_leaves_in_the_middle_ends_the_command_quietly(tmp_path, make_package):
    for index in range(200):
        make_package(f"tasks/t{index}", **{"verifier/test.sh": "# [REPLACE: something here]\n" * 10})
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from benchflow.cli import main; sys.exit(main())",
            "tasks",
            "check",
            "tasks",
            "--verbose",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"FAIL")
    process.stdout.close()
    assert (process.wait(timeout=30), process.stderr.read()) == (1, b"")
    process.stderr.close()


def test_a_full_disk_is_reported(bench):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        ended = bench("--help", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 1
    assert "No space left" in ended.stderr


def test_closed_streams_do_no_harm(tmp_path):
    command = f"{sys.executable} -c 'import sys; from benchflow.cli import main; sys.exit(main())' --help >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False).returncode == 0


def test_control_characters_never_reach_the_terminal():
    assert terminal.printable("a\x1b[31m\n\u202eb\tc") == "a\\x1b[31m\\x0a\\u202eb\tc"


def test_colours_need_a_terminal_that_wants_them(monkeypatch):
    class Terminal:
        closed = False

        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert terminal.style("x", "red", screen) == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.style("x", "red", screen) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert terminal.style("x", "red", screen) == "x"
