"""Level `publication-grade`: fully native, with an oracle and a documented verifier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchflow.errors import Issue
from benchflow.task.package import TaskPackage
from benchflow.task.package_layout import INSTRUCTION, TASK_TOML
from benchflow.task.verifier.verifier_document import VERIFIER_MD

_RUBRIC_SUFFIXES: Final = (".md", ".toml", ".yaml", ".yml", ".json")
_SPEC: Final = f"verifier/{VERIFIER_MD}"


def check_publication(package: TaskPackage) -> Iterator[Issue]:
    """What prevents publication of a package."""
    yield from _check_native(package)
    yield from _check_verifier_document(package)


def _check_native(package: TaskPackage) -> Iterator[Issue]:
    if package.entrypoint != "task.md":
        yield Issue("not-native", "error", "", "there is no task.md; create it with 'bench tasks migrate'", "task.md")
    for name in (TASK_TOML, INSTRUCTION):
        if name in package.files:
            yield Issue("legacy-file", "error", name, f"{name} belongs to the split layout; remove it", name)
    for native, legacy in (("oracle", "solution"), ("verifier", "tests")):
        if legacy in package.files.folders or legacy in package.files.links:
            yield Issue(
                "legacy-file", "error", legacy, f"{legacy}/ belongs to the split layout; rename it to {native}/"
            )
    if not package.files.below("oracle"):
        yield Issue("oracle-missing", "error", "oracle", "there is no reference solution in oracle/")
    if "verifier" not in package.files.folders and package.verifier_dir is not None:
        yield Issue("verifier-missing", "error", "verifier", "there is no verifier/, only a split-layout folder")


def _check_verifier_document(package: TaskPackage) -> Iterator[Issue]:
    if _SPEC not in package.files:
        if "verifier" in package.files.folders:
            yield Issue("verifier-document-missing", "error", "verifier", f"there is no {_SPEC}", _SPEC)
        return
    document = package.verifier_document
    if document is None:
        return
    if not document.rubric.dimensions:
        path = "verifier.rubric.dimensions"
        yield Issue(
            "rubric-missing", "error", path, f"{path} is empty, so the meaning of the score is not documented", _SPEC
        )
    if not any(name.endswith(_RUBRIC_SUFFIXES) for name in package.files.below("verifier/rubrics")):
        yield Issue("rubric-missing", "error", "verifier/rubrics", "verifier/rubrics/ contains no rubric file")
    if "reward_json" not in document.outputs.declared:
        path = "verifier.outputs.reward_json"
        yield Issue("reward-json-undeclared", "error", path, f"{path} must be declared", _SPEC)
