"""Runs the code of a documentation page from top to bottom, as a reader would, and compares what it prints.

A fenced block is what its language says:

    sh          a script; it must succeed
    console     a session: `$ command` and what it prints
    python      code, all of a page in one interpreter
    text        what the script or code right above it prints; anywhere else a picture, which is not run
    yaml, toml, json, markdown    data; it must parse

`<!-- not run: REASON -->` above a block leaves it out. `<!-- run: COMMAND -->` is what a reader does by hand. In what
is printed, `…` stands for anything within a line, and alone on a line for any number of lines. A script
`tests/docs/before/PAGE.sh` prepares the folder of a page.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import loaded_commands

ROOT = Path(__file__).parents[1]
BEFORE = Path(__file__).parent / "docs" / "before"
RUN = frozenset({"sh", "console", "python"})
DATA = frozenset({"yaml", "toml", "json", "markdown"})
LIMIT_SEC = 600
"""For one block; generous, because other tests share the machine."""

_FENCE = re.compile(
    r"^<!-- run: (?P<hidden>[^\n]+) -->$"
    r"|^(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_SHELL = re.compile(r"[|&;<>$`*?#\\~(){}\n]")
_CHANGING = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|\b\d\d:\d\d:\d\d\b"  # when
    r"|\d+\.\d s\b|^ +[\d.]+ k?B\b"  # how long, how large
    r"|(?:__\d+)?__[0-9a-f]{8}|attempt \d|^\[\d+/\d+\]",  # which, in which order
    re.MULTILINE,
)
_PHASES = re.compile(r"^  (\w+ [\d.]+ s, )*total", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: where its text begins and ends in the page, and what printed it, if it is output."""

    language: str
    text: str
    start: int
    end: int
    line: int
    not_run: str | None = None
    output_of: str | None = None


def blocks(page: str) -> Iterator[Block]:
    """All fenced blocks of a page, in order."""
    above: Block | None = None
    for found in _FENCE.finditer(page):
        if found["hidden"]:
            above = Block("sh", found["hidden"], *found.span("hidden"), page.count("\n", 0, found.start()) + 1)
            yield above
            continue
        start, end = found.span("text")
        right_above = above is not None and not page[above.end + 3 : found.start()].strip()
        is_output = found["language"] == "text" and right_above and above is not None and above.language in RUN
        above = Block(
            found["language"],
            found["text"],
            start,
            end,
            page.count("\n", 0, start) + 1,
            found["reason"],
            above.language if is_output and above is not None else None,
        )
        yield above


def commands(session: str) -> Iterator[tuple[str, str]]:
    """The commands of a session, each with what it prints."""
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\") or re.search(r"<<'?(\w+)'?$", command.partition("\n")[0]):
            line, _, output = output.partition("\n")
            command += "\n" + line
            word = re.search(r"<<'?(\w+)'?$", command.partition("\n")[0])
            if word and line == word[1]:
                break
        yield command, output


def matches(expected: str, printed: str) -> bool:
    """Whether a command printed what a page shows, apart from times, random names and the order of progress."""
    pattern = ""
    for line in _plain(expected):
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(map(re.escape, line.split("…"))) + "\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _plain(printed))) is not None


def _plain(text: str) -> list[str]:
    """The lines of a text without what differs from run to run; phases that took no time are not shown."""
    lines = [line.rstrip() for line in _CHANGING.sub("#", _PHASES.sub("  total", text)).splitlines()]
    progress: list[str] = []
    plain: list[str] = []
    for line in lines:
        if line.startswith("# "):
            progress.append(line)
        else:
            plain += [*sorted(progress), line]
            progress = []
    return [*plain, *sorted(progress)]


class PageRun:
    """One run of a page in an empty folder."""

    def __init__(self, page: Path, folder: Path) -> None:
        self._page = page
        self._folder = folder
        programs = Path(sys.executable).parent
        self._environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "ROOT": str(ROOT)}
        for name in ("COLUMNS", "BENCHCUBE_JOBS_DIR"):
            self._environment.pop(name, None)
        self._interpreter: Interpreter | None = None
        self.text = page.read_text()
        self.problems: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._interpreter is not None:
            self._interpreter.close()

    def run(self) -> str:
        """Run every block; returns the page with what was printed in place of what it shows."""
        before = BEFORE / f"{self._page.stem}.sh"
        if before.is_file():
            code, printed = self._shell(before.read_text(), "-e")
            assert code == 0, printed
        printed = ""
        pieces: list[str] = []
        done = 0
        for block in blocks(self.text):
            shown = block.text
            if block.output_of and block.not_run is None:
                shown = self._settled(block, block.text, printed)
            elif block.not_run is None and block.language in RUN:
                printed, shown = self._run_block(block)
            pieces += [self.text[done : block.start], shown]
            done = block.end
        return "".join([*pieces, self.text[done:]])

    def _run_block(self, block: Block) -> tuple[str, str]:
        if block.language == "console":
            return "", "".join(self._session(block))
        if block.language == "python":
            self._interpreter = self._interpreter or Interpreter(self._folder, self._environment)
            code, printed = self._interpreter.run("\n" * (block.line - 1) + block.text)
        else:
            code, printed = self._shell(block.text, "-e")
        if code != 0:
            self._complain(block, f"failed:\n{printed}")
        return printed, block.text

    def _session(self, block: Block) -> Iterator[str]:
        for command, expected in commands(block.text):
            _, printed = self._command(command)
            yield f"$ {command}\n{self._settled(block, expected, printed, command)}"

    def _settled(self, block: Block, expected: str, printed: str, command: str = "") -> str:
        """What the page should show: what it does, where that is what was printed."""
        if matches(expected, printed):
            return expected
        self._complain(block, f"{command}\nprinted\n{printed}\nand the page shows\n{expected}")
        return printed

    def _complain(self, block: Block, problem: str) -> None:
        self.problems.append(f"{self._page.name}:{block.line}: {problem}")

    def _command(self, command: str) -> tuple[int, str]:
        """Run a command of a session; `bench` without the shell's help is not loaded anew."""
        words = [] if _SHELL.search(command) else shlex.split(command)
        if words[:1] != ["bench"]:
            return self._shell(command)
        done = loaded_commands.bench(*words[1:], cwd=self._folder, env=self._environment, timeout=LIMIT_SEC)
        return done.returncode, done.stderr + done.stdout

    def _shell(self, script: str, *options: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", *options, "-c", script],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SEC,
        )
        return done.returncode, done.stderr + done.stdout


_LOOP = """
def _serve():
    import contextlib, io, json, sys, traceback
    replies = sys.stdout
    for line in sys.stdin:
        printed, code = io.StringIO(), 0
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(json.loads(line), "page", "exec"), globals())
            except BaseException:
                code = 1
                print(traceback.format_exc())
        replies.write(json.dumps([code, printed.getvalue()]) + "\\n")
        replies.flush()
_serve()
"""


class Interpreter:
    """A Python process that runs the code of a page, piece by piece."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOOP],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str) -> tuple[int, str]:
        """Whether the code failed (1), and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        assert reply, "the interpreter of the page has ended"
        done, printed = json.loads(reply)
        return done, printed

    def close(self) -> None:
        """End the process, and what its code left running with it."""
        self._process.communicate(timeout=LIMIT_SEC)
