"""Level `runtime-capability`: whether the named sandbox can honour everything the package declares."""

from __future__ import annotations

from collections.abc import Iterator

from benchflow.errors import Issue
from benchflow.task.package import TaskPackage


def check_capabilities(package: TaskPackage, sandbox: str) -> Iterator[Issue]:
    """What the sandbox cannot honour. A package whose definition cannot be read has been reported already."""
    from benchflow.task.runtime_capabilities import validate_task_runtime_support

    if package.config is None:
        return
    file = "task.md" if package.entrypoint == "task.md" else "task.toml"
    for feature in validate_task_runtime_support(package, sandbox=sandbox):
        yield feature.issue(definition=file)
