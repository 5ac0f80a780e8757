"""Starts a server in its own process, which ends when this process does.

The job goes in as one line of JSON on the server's standard input, which then stays open: the server
ends when it closes. The server prints its address as one line of JSON on its standard output once it listens.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Address:
    """Where the harness and the agent reach a server, and with which tokens."""

    url: str
    token: str | None = field(repr=False)
    agent_url: str
    agent_token: str | None = field(repr=False)


class ServerProcess:
    """A running server; it ends with `stop` or with this process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._address: Address | None = None

    @property
    def address(self) -> Address:
        """Its URLs and tokens."""
        if self._address is None:
            raise RuntimeError("The server has not started.")
        return self._address

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def stop(self, timeout: float = 10) -> None:
        """Close it, and kill it if that takes too long; safe to call again."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_server(job: Mapping[str, Any], host: str, port: int, agent_port: int) -> tuple[ServerProcess, str]:
    """Start a server for `job`, wait until it listens, and return the process and the harness's URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cube.serving", host, str(port), str(agent_port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    server = ServerProcess(process)
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("The server has no pipes to this process.")
    with suppress(BrokenPipeError):  # it has already ended; its exit code says more than the pipe
        process.stdin.write(f"{json.dumps(job)}\n")
        process.stdin.flush()
    answer = process.stdout.readline().strip()
    if not answer.startswith("{"):
        server.stop()
        raise RuntimeError(f"The server did not start: {answer or f'exit code {process.returncode}'}")
    server._address = Address(**json.loads(answer))
    return server, server.address.url
