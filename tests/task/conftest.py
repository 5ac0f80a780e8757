"""Real package folders for tests of the task model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

TASK_MD = """---
schema_version: "1.3"
task: {name: acme/rotate-logs, description: Rotate a log directory}
environment: {cpus: 1, memory_mb: 512, network_mode: no-network, workdir: /app}
---
Write /app/rotate.sh so that old logs are moved away.
"""
VERIFIER_MD = """---
document_version: "0.3"
verifier:
  name: rotate
  strategies:
    exact: {type: script, command: ./test.sh}
---
"""
BASE: Mapping[str, str | bytes] = {
    "task.md": TASK_MD,
    "environment/Dockerfile": "FROM debian\n",
    "verifier/verifier.md": VERIFIER_MD,
    "verifier/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "true\n",
}

MakePackage = Callable[..., Path]


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


@pytest.fixture
def make_package(tmp_path: Path) -> MakePackage:
    """Write a package below a folder of its own; keyword `drop` names files of the base to leave out."""

    def make(files: Mapping[str, str | bytes] | None = None, *, name: str = "pkg", drop: tuple[str, ...] = ()) -> Path:
        chosen = {key: value for key, value in BASE.items() if key not in drop}
        return write_files(tmp_path / "tasks" / name, {**chosen, **(files or {})})

    return make


@pytest.fixture
def make_files(tmp_path: Path) -> MakePackage:
    """Write exactly the files given."""

    def make(files: Mapping[str, str | bytes], *, name: str = "pkg") -> Path:
        folder = tmp_path / "tasks" / name
        folder.mkdir(parents=True, exist_ok=True)
        return write_files(folder, files)

    return make
