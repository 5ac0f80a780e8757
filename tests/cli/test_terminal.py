"""What a person sees: progress, colours, folding, and a quick end when they interrupt."""

import os
import pty
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchflow.cli import progress
from benchflow.task.filemap import MAX_FILE_BYTES

BENCH = [sys.executable, "-c", "import sys; from benchflow.cli import main; sys.exit(main())"]


def on_terminal(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run `bench` with a terminal as stdout and stderr."""
    master, slave = pty.openpty()
    base = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    process = subprocess.Popen(
        [*BENCH, *arguments],
        cwd=cwd,
        stdout=slave,
        stderr=slave,
        env={**base, "TERM": "xterm", **(env or {})},
    )
    os.close(slave)
    printed = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other side is gone
            break
        if not part:
            break
        printed += part
    os.close(master)
    return process.wait(), printed.decode()


def test_a_terminal_gets_colours_unless_it_asks_for_none(make_package, tmp_path):
    make_package()
    code, printed = on_terminal("tasks", "check", "tasks", cwd=tmp_path)
    assert code == 0
    assert "\x1b[32m" in printed
    assert "\x1b" not in on_terminal("tasks", "check", "tasks", cwd=tmp_path, env={"NO_COLOR": "1"})[1]


def test_on_a_terminal_many_valid_packages_are_folded_into_the_count(make_package, tmp_path, bench):
    for index in range(50):
        make_package(f"tasks/t{index}")
    code, printed = on_terminal("tasks", "check", "tasks", cwd=tmp_path)
    assert code == 0
    assert "50 packages checked" in printed
    assert "tasks/t7" not in printed
    assert "tasks/t7 " in bench("tasks", "check", "tasks", "--verbose").stdout


class Screen:
    closed = False

    def __init__(self, *, terminal: bool = True) -> None:
        self.terminal = terminal
        self.text = ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when told."""
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))  # not that of servers in threads
    return now


def work(screen: Screen, clock: list[float], monkeypatch, *, step: float, total: int = 20) -> None:
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    for _ in progress.Progress("Working:", total).over(range(total)):
        clock[0] += step


def test_progress_is_shown_when_it_takes_longer_than_a_second_and_is_cleaned_up(clock, monkeypatch):
    screen = Screen()
    work(screen, clock, monkeypatch, step=0.2)
    assert "Working: 5 of 20" in screen.text
    assert "Working: 4 of 20" not in screen.text
    assert screen.text.endswith("\r\x1b[2K")


def test_quick_work_and_pipes_show_no_progress(clock, monkeypatch):
    quick, pipe = Screen(), Screen(terminal=False)
    work(quick, clock, monkeypatch, step=0.01)
    work(pipe, clock, monkeypatch, step=1.0)
    assert quick.text == pipe.text == ""


def test_progress_is_cleaned_up_when_the_work_fails(clock, monkeypatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    bar = progress.Progress("Working:", 20)

    def interrupted() -> None:
        for item in bar.over(range(20)):
            clock[0] += 0.5
            if item == 10:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    bar.hide()
    assert screen.text.endswith("\r\x1b[2K")


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 100])
def test_an_interrupt_ends_with_130_at_once_and_leaves_no_process(make_package, tmp_path, count):
    for index in range(count):
        make_package(f"tasks/t{index:03}")
    for index, part in product(range(0, count, 10), range(4)):
        with (tmp_path / f"tasks/t{index:03}/environment/part-{part}").open("wb") as stream:
            stream.truncate(MAX_FILE_BYTES)
    process = subprocess.Popen(
        [*BENCH, "tasks", "check", "tasks", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, b"")
    assert err.strip() == b"bench: interrupted"
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
