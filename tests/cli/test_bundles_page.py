"""What the page about bundles shows is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/bundles.md").read_text()
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("jobs")]
CHANGING = re.compile(r"\d+\.\d s|__[0-9a-f]{8}|^\[\d/\d\]", re.MULTILINE)


def blocks(language):
    return [
        text for name, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if name == language
    ]


def plain(text):
    """Without times and names that differ from run to run; phases that took no time are not shown."""
    text = CHANGING.sub("#", re.sub(r"^  (\w+ [\d.]+ s, )*total", "  total", text, flags=re.MULTILINE))
    return sorted(line.rstrip() for line in text.splitlines())


def test_the_page_runs_as_it_is_written(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    bench = tmp_path / "bin/bench"
    bench.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from benchflow.cli import main; exit(main())" "$@"\n')
    bench.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}

    def run(*words):
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        return done.stderr + done.stdout

    assert run("sh", "-c", blocks("sh")[0]) == ""
    *sessions, listed, unpacked, dataset = blocks("")
    for session in (*sessions, unpacked, dataset):
        for part in session.split("$ ")[1:]:
            command, _, output = part.partition("\n")
            assert plain(run("sh", "-c", command)) == plain(output), command
    assert run(sys.executable, "-c", blocks("python")[0]) == listed
