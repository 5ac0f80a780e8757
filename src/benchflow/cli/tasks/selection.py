"""Selects the package for commands that take exactly one."""

from __future__ import annotations

from pathlib import Path

from benchflow.errors import PackageError, UsageError
from benchflow.task.discovery import find_packages


def one_package(path: Path) -> Path:
    """The path, which must itself be a package; raises `UsageError` for a folder above packages."""
    first = find_packages([path])[0]
    if first.problem is not None:
        raise PackageError(f"{path}: {first.problem.message}", code=first.problem.code)
    if not first.named:
        raise UsageError(
            f"{path}: a folder above packages; name one of them, such as {first.path}", code="not-a-package"
        )
    return path
