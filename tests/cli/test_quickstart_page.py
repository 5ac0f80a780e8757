"""What the quickstart shows is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "quickstart.md").read_text()
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("jobs")]
CHANGING = re.compile(r"\d+\.\d s|__[0-9a-f]{8}|attempt \d|^\[\d/\d\]|plan #T, ", re.MULTILINE)


def blocks(language, page=PAGE):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


def plain(text):
    """Without times and names that differ from run to run; phases that took no time are not shown."""
    text = CHANGING.sub("#", re.sub(r"^  (\w+ [\d.]+ s, )*total", "  total", text, flags=re.MULTILINE))
    return sorted(line.rstrip() for line in text.splitlines())


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "bin").mkdir()
    bench = tmp_path / "bin" / "bench"
    bench.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from benchflow.cli import main; exit(main())" "$@"\n')
    bench.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}

    def run(command):
        done = subprocess.run(
            ["sh", "-c", f"{command}\n"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.stderr + done.stdout

    return run


def test_the_page_runs_as_it_is_written(shell, tmp_path):
    [files] = blocks("sh")
    assert shell(files) == ""
    told = blocks("")
    for session in told[:-1]:
        for part in session.split("$ ")[1:]:
            command, _, output = part.partition("\n")
            assert plain(shell(command)) == plain(output), command
    [code] = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == told[-1]


def test_the_page_about_training_runs_as_it_is_written(shell, tmp_path):
    [files] = blocks("sh")
    shell(files)
    page = (DOCS / "training.md").read_text()
    first, fork, _, worker = blocks("python", page)
    told, _ = blocks("", page)
    code = f"{first.removesuffix('task.close()' + chr(10))}{fork}task.close()\n{worker}task.close()\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == f"{told}0.0 1.0\n", done.stderr


def test_the_steps_on_the_page_about_training_go_as_they_are_written():
    page = (DOCS / "training.md").read_text()
    first, _, steps, _ = blocks("python", page)
    imports = "".join(line for line in first.splitlines(keepends=True) if line.startswith("from "))
    done = subprocess.run(
        [sys.executable, "-c", imports + steps],
        cwd=DOCS.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == blocks("", page)[1], done.stderr
