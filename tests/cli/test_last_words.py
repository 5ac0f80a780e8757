"""What is said of a command that was ended from outside."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from benchflow.cli.eval.last_words import last_words
with last_words("It was ended; 100 % 'sure'."):
    {}
"""


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_process_that_is_ended_from_outside_leaves_a_sentence(end: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(end)], capture_output=True, text=True, check=False)
    assert (done.returncode != 0, done.stderr) == (True, "It was ended; 100 % 'sure'.\n")


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)"])
def test_a_process_that_ends_by_itself_says_nothing(end: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(end)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")
