"""Servers as processes, packages of a few lines, and a small client of the wire."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

import loaded_commands

TESTS = """#!/bin/sh
answer=$(cat /app/answer.txt 2>/dev/null)
case "$answer" in done) echo 1;; half) echo 0.5;; *) echo 0;; esac > /logs/verifier/reward.txt
"""
"""A verifier that the in-memory sandbox can run too."""
FRONT = "task: {{name: {name}}}\nenvironment: {{workdir: /app, network_mode: no-network}}\n"


def write_package(folder, name, *, front="", prompt="Write done to /app/answer.txt.", tests=TESTS, files=None):
    """A package of one step."""
    texts = {
        "task.md": f"---\n{FRONT.format(name=name)}{front}---\n{prompt}\n",
        "verifier/test.sh": tests,
        "oracle/solve.sh": "#!/bin/sh\necho done > /app/answer.txt\n",
        **(files or {}),
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        (folder / path).chmod(0o755 if path.endswith(".sh") else 0o644)
    return folder


def plugins(folder):
    """A folder for PYTHONPATH with which commands find the doubles of `benchflow.testing` as sandboxes."""
    info = folder / "doubles-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doubles\nVersion: 1\n")
    names = "null = benchflow.testing:NullBackend\nmemory = benchflow.testing:InMemoryBackend\n"
    (info / "entry_points.txt").write_text(f"[benchflow.sandboxes]\n{names}")
    return folder


class Server:
    """A running server, and short ways to talk to it."""

    def __init__(self, process, address, log):
        self.process, self.address, self.log = process, address, log
        self.url = address["url"]
        headers = {"Authorization": f"Bearer {address['token']}"} if address["token"] else {}
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=120, verify=False)  # plain HTTP

    def events(self):
        """What the log says."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def metrics(self):
        lines = [line.split() for line in self.http.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def session(self, *, sid=None, **asked):
        """A session that was created; its id."""
        if sid is None:
            sid = sse(self.http.post("/create_session", json={}))[0][1]
        answer = self.http.post("/create", json=asked or {"split": "test", "index": 0}, headers={"X-Session-ID": sid})
        assert answer.status_code == 200, answer.text
        return sid

    def get(self, path, sid):
        return self.http.get(path, headers={"X-Session-ID": sid})

    def post(self, path, sid, body=None):
        return self.http.post(path, json=body or {}, headers={"X-Session-ID": sid})

    def call(self, sid, name, **arguments):
        """The answer to a call, as the wire has it."""
        return answered(self.post("/call", sid, {"name": name, "input": arguments}))

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(60)


def sse(response):
    """The events of a stream, as stock clients read them."""
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.split("\n\n"):
        lines = [line.split(":", 1) for line in block.splitlines() if not line.startswith(":")]
        if lines:
            events.append((lines[0][1].strip(), "".join(value.lstrip() for field, value in lines if field == "data")))
    return events


def answered(response):
    """The answer of a call; an `event: error` is returned as its text."""
    events = sse(response)
    if events[-1][0] == "error":
        return events[-1][1]
    return json.loads("".join(data for name, data in events if name in ("chunk", "end")))


@contextmanager
def serving(tmp, *arguments, wire="ors", no_token=True, load=None, **more_env):
    """A server on a free port; it is killed at the end if it still runs.

    With `load` the process is not started anew: those modules are there already.
    """
    log = tmp / f"server-{len(list(tmp.glob('server-*')))}.log"
    env = {**os.environ, "PYTHONPATH": str(plugins(tmp / "plugins")), **more_env}
    words = ["serve", wire, *map(str, arguments), "--json", *(["--no-token"] if no_token else [])]
    reading, writing = os.pipe()
    with log.open("w") as stream, os.fdopen(reading) as output:
        if load is None:
            command = [str(Path(sys.executable).with_name("bench")), *words]
            process = subprocess.Popen(command, stdout=writing, stderr=stream, env=env)
        else:
            process = loaded_commands.Running(words, Path.cwd(), env, (writing, stream.fileno()), load)
        os.close(writing)
        try:
            line = output.readline()
            assert line, log.read_text()
            server = Server(process, json.loads(line), log)
            with server.http:
                yield server
        finally:
            process.kill()
            process.wait(60)


def solve(server, sid):
    return server.call(sid, "bash", command="echo done > /app/answer.txt")


def until(condition, seconds=60):
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def processes(mark):
    """Processes whose command line has the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and mark in (entry / "cmdline").read_bytes().decode(errors="replace").split("\0"):
                found.append(int(entry.name))
    return found
