"""The real command as a process, and small packages to run it on."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import loaded_commands

TASK_MD = """---
schema_version: "1.3"
task:
  name: acme/{name}
environment:
  workdir: /app
---
Write /app/out.txt.
"""

Bench = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bench(tmp_path) -> Bench:
    """Run `bench` in a new folder, without a terminal, and give back what it printed."""

    def run(*arguments: str | Path, cwd: Path = tmp_path, env: dict[str, str] | None = None, **options):
        environ = {**os.environ, **(env or {})}
        if not options and "PYTHONPATH" not in (env or {}):
            return loaded_commands.bench(*arguments, cwd=cwd, env=environ)
        return subprocess.run(
            [*loaded_commands.BENCH, *map(str, arguments)],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
            **{"capture_output": True, "text": True, **options},
        )

    return run


@pytest.fixture
def make_package(tmp_path) -> Callable[..., Path]:
    """Write a valid native package below the test's folder."""

    def make(where: str = "tasks/a", **files: str) -> Path:
        folder = tmp_path / where
        defaults = {
            "task.md": TASK_MD.format(name=folder.name),
            "environment/Dockerfile": "FROM debian:bookworm-slim\n",
            "verifier/test.sh": "#!/bin/sh\necho 1.0 > /logs/verifier/reward.txt\n",
            "oracle/solve.sh": "#!/bin/sh\necho done > /app/out.txt\n",
        }
        for name, text in {**defaults, **files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return make


@pytest.fixture
def make_split(tmp_path) -> Callable[..., Path]:
    """Write a valid package in the split layout below the test's folder."""

    def make(where: str = "split/a", **files: str) -> Path:
        folder = tmp_path / where
        defaults = {
            "task.toml": f'version = "1.0"\n[task]\nname = "acme/{folder.name}"\n[environment]\ncpus = 2\n',
            "instruction.md": "Write /app/out.txt.\n",
            "environment/Dockerfile": "FROM debian:bookworm-slim\n",
            "tests/test.sh": "#!/bin/sh\necho 1.0 > /logs/verifier/reward.txt\n",
            "solution/solve.sh": "#!/bin/sh\necho done > /app/out.txt\n",
        }
        for name, text in {**defaults, **files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return make


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, bytes | None]]:
    """Everything below a folder, to prove that a refused command changed nothing."""

    def take(root: Path) -> dict[str, bytes | None]:
        return {
            path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else None
            for path in sorted(root.rglob("*"))
        }

    return take


@pytest.fixture
def in_terminal(tmp_path):
    """Run `bench` in a terminal; gives its exit code and what it showed. `keys` are typed when `until` was shown."""

    def run(arguments, *, environ=None, keys=b"", until=b"", columns=80, limit=120):
        process, terminal = pty.fork()
        if process == 0:
            try:
                os.chdir(tmp_path)
                os.environ.update({**(environ or {}), "TERM": "xterm", "COLUMNS": str(columns), "LINES": "24"})
                os.execv(sys.executable, [*loaded_commands.BENCH, *map(str, arguments)])
            finally:
                os._exit(127)
        shown, deadline = b"", time.monotonic() + limit
        try:
            while time.monotonic() < deadline:
                if not select.select([terminal], [], [], 1)[0]:
                    continue
                try:
                    chunk = os.read(terminal, 65536)
                except OSError:  # the last process has closed it
                    break
                if not chunk:
                    break
                shown += chunk
                if keys and until in shown:
                    os.write(terminal, keys)
                    keys = b""
        finally:
            os.close(terminal)
            _, status = os.waitpid(process, 0)
        return os.waitstatus_to_exitcode(status), shown.decode(errors="replace")

    return run
