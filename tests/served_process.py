"""`bench serve` in a process of its own, for tests that ask it as other programs do, and the processes it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCAL = ("--sandbox", "local", "--base-image", "host")


@dataclass(frozen=True)
class Running:
    """A server that listens."""

    process: subprocess.Popen[str]
    said: dict[str, Any]
    """Its announcement."""

    @property
    def url(self) -> str:
        return str(self.said["url"])

    @property
    def headers(self) -> dict[str, str]:
        token = self.said["token"]
        return {} if token is None else {"Authorization": f"Bearer {token}"}


@contextmanager
def served(protocol: str, *arguments: str | Path) -> Iterator[Running]:
    """A server; at the end it gets SIGTERM and must end by itself."""
    command = [sys.executable, "-c", "import sys; from benchflow.cli import main; sys.exit(main())", "serve", protocol]
    process = subprocess.Popen(
        [*command, *map(str, arguments), "--json"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"the server ended with {process.wait(60)}"
        yield Running(process, json.loads(line))
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(60)
        process.stdout.close()


def eventually(holds: Callable[[], object], seconds: float = 60.0) -> bool:
    """Whether it holds before that time is over."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if holds():
            return True
        time.sleep(0.05)
    return bool(holds())


def processes(mark: str) -> list[str]:
    """The processes of this machine whose name is `mark`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(os.fsencode(mark) + b"\0"):
                found.append(folder.name)
        except OSError:
            continue
    return found
