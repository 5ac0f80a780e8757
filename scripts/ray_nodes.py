"""Starts a real Ray cluster on this machine for tests and benchmarks: a head without processors, and nodes beside it.

Each node has its own temporary folder, which its processes can be told by, and is a group of processes that can be
killed. Nothing listens outside this machine, and everything ends with the process that started it.
"""

from __future__ import annotations

import compileall
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

START_SEC = 90.0
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
_ALWAYS = ("--node-ip-address=127.0.0.1", "--disable-usage-stats", "--block", "--include-log-monitor=false")
_LIBRARIES = re.compile("/ray/(air|data|llm|rllib|serve|train|tune)/")
"""Two thirds of Ray, which nodes do not import."""
TRIES = 3
"""On a loaded machine Ray gives up on its own processes after 30 s."""


class RayUnavailable(Exception):
    """A node did not start; the message has the end of what it printed."""


class RayNode:
    """One node, as a group of processes."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        """Its temporary folder."""
        self._process = process

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> list[int]:
        """All processes of the node, with those of rollouts: they have its folder in their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"TMPDIR={self.folder}\0".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """As when the machine dies, but for what rollouts have started: that must end by itself."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class RayNodes:
    """A cluster that needs a token; `environ` has what a process needs to connect to it."""

    def __init__(self) -> None:
        import ray

        compileall.compile_dir(Path(ray.__file__).parent, quiet=2, workers=2, rx=_LIBRARIES)
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets need short paths
        self.token = secrets.token_hex(16)
        self.nodes: dict[str, RayNode] = {}
        port = _free_port()
        self.address = f"127.0.0.1:{port}"
        head = ["--head", f"--port={port}", "--num-cpus=0", f"--temp-dir={self.folder}/r", "--include-dashboard=false"]
        try:
            self._head = self._start("head", head, {})
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def environ(self) -> dict[str, str]:
        settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "RAY_USAGE_STATS_ENABLED": "0"}
        return {**os.environ, **settings, "RAY_ADDRESS": self.address}

    @property
    def session(self) -> Path:
        """What Ray writes: logs and sockets of all nodes."""
        return self.folder / "r"

    def add(self, name: str, *, processors: int = 2, environ: Mapping[str, str] | None = None) -> RayNode:
        """Join a node and wait until it has."""
        return self.join([name], processors=processors, environ=environ)[0]

    def join(self, names: list[str], *, processors: int = 2, environ: Mapping[str, str] | None = None) -> list[RayNode]:
        """Join several nodes."""
        command = [f"--address={self.address}", f"--num-cpus={processors}"]
        for name in names:  # one after the other: beside each other they take longer, and Ray does not wait
            self.nodes[name] = self._start(name, command, environ or {})
        return [self.nodes[name] for name in names]

    def stop(self) -> None:
        for node in (*self.nodes.values(), self._head):
            node.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, name: str, command: list[str], environ: Mapping[str, str]) -> RayNode:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        with self._log(name).open("wb") as log:
            started = subprocess.Popen(
                [*_DIES_WITH_US, Path(sys.executable).with_name("ray"), "start", *command, *_ALWAYS],
                env={**self.environ, **environ, "TMPDIR": str(folder), "RAY_ADDRESS": ""},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return RayNode(folder, started)

    def _start(self, name: str, command: list[str], environ: Mapping[str, str]) -> RayNode:
        for _ in range(TRIES):
            node = self._begin(name, command, environ)
            until = time.monotonic() + START_SEC
            while time.monotonic() < until and node.is_running:
                if b"Ray runtime started" in self._log(name).read_bytes():
                    return node
                time.sleep(0.1)
            node.stop()
        said = self._log(name).read_text(errors="replace")[-2000:]
        raise RayUnavailable(f"The Ray node '{name}' did not start: {said}")

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
