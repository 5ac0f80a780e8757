"""Selects the package for commands that take exactly one."""

from __future__ import annotations

from pathlib import Path

from benchflow.errors import PackageError, UsageError
from benchflow.task.discovery import FoundPackage, find_packages


def one_package(path: Path, *, to_change: bool = False) -> FoundPackage:
    """The package that the path names; raises `UsageError` for something above packages."""
    first = find_packages([path], to_change=to_change)[0]
    if first.problem is not None:
        raise PackageError(f"{path}: {first.problem.message}", code=first.problem.code)
    if not first.named:
        raise UsageError(
            f"{path}: {'several packages' if first.inside else 'a folder above packages'}; name one of them,"
            f" such as {first.shown}",
            code="not-a-package",
        )
    return first
