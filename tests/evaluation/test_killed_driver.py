"""A driver that is killed while a model answers: nothing runs on, the record is readable, and the job resumes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from benchflow.record import CallParts, RolloutFolder, read_model_calls
from raw_upstream import CHAT_STREAM, KEY, OPENAI, Stream, Upstream, answer

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

BENCH = str(Path(sys.executable).with_name("bench"))
PACKAGE = {
    "task.md": "---\ntask: {name: acme/asks}\nenvironment: {network_mode: no-network}\n---\nAsk a model.\n",
    "verifier/test.sh": "grep -q hello /app/answer.txt && echo 1 > /logs/verifier/reward.txt\n",
}
ASK = """\
import json, os, sys, urllib.request
body = {"model": "gpt-4o", "stream": sys.argv[1] == "stream", "messages": [{"role": "user", "content": "hi"}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
print(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read().decode())
"""


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def running(mark: str) -> list[str]:
    """Processes with a word in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_a_driver_that_is_killed_in_a_stream_leaves_a_readable_record_and_its_job_resumes(tmp_path: Path) -> None:
    for name, text in PACKAGE.items():
        (tmp_path / "asks" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "asks" / name).write_text(text)
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    agent = tmp_path / "agent.sh"
    ask = f"python3 ask.py whole {mark} > answer.txt && python3 ask.py stream {mark}"
    agent.write_text(f"cat > ask.py <<'EOF'\n{ASK}EOF\n{ask}\n")
    upstream = Upstream([answer(OPENAI), Stream(CHAT_STREAM[:1], hang=True), answer(OPENAI), Stream(CHAT_STREAM)])
    with start_blocking_portal() as portal:
        server = portal.call(asyncio.start_server, upstream.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        env = {**os.environ, "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url}
        job = tmp_path / "jobs" / "killed"
        settings = [
            "--agent",
            f"script:{agent}",
            "--sandbox",
            "local",
            "--jobs-dir",
            str(job.parent),
            "--name",
            job.name,
        ]
        with subprocess.Popen([BENCH, "eval", "run", str(tmp_path / "asks"), *settings], env=env) as driver:
            until(lambda: len(upstream.asked) == 2)
            assert running(mark)
            driver.send_signal(signal.SIGKILL)
        until(upstream.left.is_set)
        until(lambda: not running(mark))

        (written,) = job.rglob("model_calls.jsonl")
        assert written.read_bytes().endswith(b"\n")
        (call,) = read_model_calls(written)
        assert (call.outcome, call.usage["input_tokens"]) == ("answered", 10)
        assert CallParts(RolloutFolder(written.parent)).answer(call) == answer(OPENAI).partition(b"\r\n\r\n")[2]

        subprocess.run([BENCH, "eval", "resume", str(job)], env=env, check=True)
        portal.call(server.close)
    (resumed,) = set(job.rglob("model_calls.jsonl")) - {written}
    assert [call.outcome for call in read_model_calls(resumed)] == ["answered"] * 2
    assert '"reward":1' in (job / "results.jsonl").read_text().replace(" ", "")
    assert not [path for path in job.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
