"""A process that is killed from outside its sandbox is trouble of the sandbox, one killed inside is a result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.sandbox

REWARD = "if grep -q done /app/answer.txt 2>/dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def run(package: Path, agent: Path, word: str | None = None) -> dict[str, Any]:
    """The record of a rollout; the shell whose script holds `word` is killed from outside."""
    command = [
        str(Path(sys.executable).with_name("bench")),
        "run",
        str(package),
        "--agent",
        f"script:{agent}",
        "--json",
    ]
    command += ["--sandbox", "local", "--out", str(package.parent / "jobs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if word is not None:
            os.kill(parent_of(word), signal.SIGKILL)
        record: dict[str, Any] = json.loads(process.communicate()[0])
    return record


def parent_of(word: str) -> int:
    """The parent of the process that was started with a word."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and (folder / "cmdline").read_bytes() == f"sleep\0{word}\0".encode():
                    return int((folder / "status").read_text().split("PPid:")[1].split()[0])
            except OSError:
                continue
        time.sleep(0.02)
    raise AssertionError("the process did not appear")


@pytest.fixture
def agent(tmp_path: Path) -> Callable[[str], Path]:
    def write(script: str) -> Path:
        (tmp_path / "agent.sh").write_text(script)
        return tmp_path / "agent.sh"

    return write


def test_an_agent_that_is_killed_from_outside_is_not_scored(make_package: Any, agent: Callable[[str], Path]) -> None:
    record = run(make_package(), agent("sleep 71.25; echo done > answer.txt"), "71.25")
    assert (record["status"], record["reward"]) == ("unscored", None)
    assert (record["error"]["category"], record["error"]["code"]) == ("sandbox", "killed-from-outside")
    assert record["error"]["phase"] == "agent"
    assert "killed from outside" in record["error"]["message"]


def test_a_verifier_that_is_killed_from_outside_is_not_scored(make_package: Any, agent: Callable[[str], Path]) -> None:
    record = run(make_package(verifier=f"sleep 72.5\n{REWARD}"), agent("true"), "72.5")
    assert (record["status"], record["reward"]) == ("unscored", None)
    assert (record["error"]["category"], record["error"]["code"]) == ("sandbox", "killed-from-outside")
    assert record["error"]["phase"] == "verify"


@pytest.mark.parametrize("script", ["kill -9 $$", "(sleep 0.2; kill -9 $$) & sleep 9", "kill -9 -1; kill -9 0"])
def test_an_agent_that_kills_itself_is_scored(script: str, make_package: Any, agent: Callable[[str], Path]) -> None:
    record = run(make_package(), agent(script))
    assert (record["status"], record["reward"]) == ("scored", 0.0)
    assert record["agent"]["exit_code"] == 137
