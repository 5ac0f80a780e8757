"""`bench view`: what it refuses, what it says, how it ends, and the file that it exports."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from benchflow.cli import main
from made_jobs import rich_job


def test_a_port_in_use_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["view", str(tmp_path), "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"Port {port} of 127.0.0.1 is in use" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "does not exist"),
        (["{jobs}", "--job", "first"], "belong to --export"),
        (["{jobs}", "--export", "{out}"], "needs either --job"),
        (["{jobs}", "--export", "{out}", "--job", "none"], "has no job none"),
        (["{jobs}", "--export", "{out}", "--rollout", "first/none"], "does not exist"),
        (["{jobs}/first/job.json"], "is not a trajectory"),
    ],
)
def test_wrong_usage_is_refused_and_writes_nothing(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, out = tmp_path / "jobs", tmp_path / "out.html"
    jobs.mkdir()
    rich_job(jobs, "first")
    assert main(["view", *(text.format(jobs=jobs, out=out) for text in arguments)]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()


def test_an_export_is_one_file_that_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rich_job(tmp_path, "first")
    out = tmp_path / "out.html"
    export = ["view", str(tmp_path), "--export", str(out), "--rollout", "first/parser__2__b"]
    assert main(export) == 0
    text = out.read_text()
    assert "<script" not in text
    assert "http-equiv" in text
    assert 'src="/' not in text
    assert 'href="/' not in text
    assert main(export) == 2
    assert out.read_text() == text


@pytest.mark.slow
def test_it_says_where_it_listens_and_ends_cleanly_on_a_signal(tmp_path: Path) -> None:
    rich_job(tmp_path, "first")
    command = [sys.executable, "-m", "benchflow.cli", "view", str(tmp_path), "--port", "0", "--json"]
    script = "import sys; from benchflow.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, *command[3:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as viewer:
        assert viewer.stdout is not None
        said = b""
        while not said.rstrip().endswith(b"}"):
            line = viewer.stdout.readline()
            assert line, viewer.stderr.read() if viewer.stderr else b""
            said += line
        url = json.loads(said)["url"]
        assert url.startswith("http://127.0.0.1:")
        with urlopen(url, timeout=60) as answer:
            assert b"first" in answer.read()
        viewer.send_signal(signal.SIGINT)
        _, error = viewer.communicate(timeout=60)
    assert (viewer.returncode, error) == (0, b"")
