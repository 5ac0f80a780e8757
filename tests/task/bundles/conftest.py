"""Packages to bundle, and a cache of their own for every test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.task.bundles.bundle_index import Benchmark
from benchflow.task.bundles.bundle_writing import Contents, gather, make_index

TASK_MD = """---
schema_version: "1.3"
task: {{name: acme/{name}}}
{extra}---
Write /app/out.txt.
"""


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def make(tmp_path) -> Callable[..., Path]:
    """Write a package below the test's folder."""

    def make(where: str = "tasks/a", extra: str = "", **files: str) -> Path:
        folder = tmp_path / where
        texts = {
            "task.md": TASK_MD.format(name=folder.name, extra=extra),
            "environment/Dockerfile": "FROM debian:bookworm-slim\n",
            "verifier/test.sh": "#!/bin/sh\necho 1.0 > /logs/verifier/reward.txt\n",
            **files,
        }
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return make


@pytest.fixture
def gathered(tmp_path) -> Callable[..., Contents]:
    """The contents of a bundle of all folders below `tasks`, or of those named."""

    def gathered(*folders: Path, benchmark: Benchmark | None = None) -> Contents:
        chosen = folders or sorted(path for path in (tmp_path / "tasks").iterdir() if (path / "task.md").exists())
        packages = [gather(folder, folder.name, str(folder)) for folder in chosen]
        assert [package.problem for package in packages if package.problem] == []
        return make_index(packages, benchmark or Benchmark())

    return gathered
