"""Level `structural`: the package is complete and in one piece.

A verifier that could run, steps with their parts, nothing that points out of the folder, aliases that agree.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from benchflow.errors import Issue
from benchflow.task.checks.markers import marker_issues
from benchflow.task.checks.schema_level import is_about_definition
from benchflow.task.checks.secret_references import check_secrets
from benchflow.task.checks.verifier_files import DEFAULT_SCRIPTS, missing_files
from benchflow.task.config.task_config import TaskConfig
from benchflow.task.layout import ALIASES
from benchflow.task.package import TaskPackage
from benchflow.task.verifier.verifier_document import VERIFIER_MD, VerifierDocument

_MARKED_FOLDERS: Final = ("verifier/", "tests/", "steps/")
_MARKED_FILES: Final = frozenset({"oracle/solve.sh", "solution/solve.sh", "environment/Dockerfile"})
_CTRF: Final = re.compile(rb"^[^#\n]*--ctrf[= ]+['\"]?([^\s'\"$][^\s'\"]*)", re.MULTILINE)
_CTRF_PATH: Final = b"/logs/verifier/ctrf.json"


def check_structure(package: TaskPackage) -> Iterator[Issue]:
    """Problems of everything but the definition."""
    yield from (issue for issue in package.layout_issues if not is_about_definition(issue))
    names = [name for name in package.files.files if name in _MARKED_FILES or name.startswith(_MARKED_FOLDERS)]
    yield from marker_issues(package.files, names)
    config = package.config
    if config is not None and config.steps:
        yield from _check_steps(package, config)
    else:
        yield from _check_verifier(package, "", package.verifier_document)
    yield from _check_report_path(package)
    yield from check_secrets(package)


def _check_steps(package: TaskPackage, config: TaskConfig) -> Iterator[Issue]:
    """Each step has its folder, an instruction, and a verifier of its own or the package's."""
    shared = package.verifier_dir is not None
    for index, step in enumerate(config.steps or ()):
        folder = f"steps/{step.name}"
        if folder not in package.files.folders:
            message = f"the step '{step.name}' has no folder {folder}/"
            yield Issue("step-incomplete", "error", f"steps[{index}].name", message, _definition(package))
            continue
        instruction = f"{folder}/instruction.md"
        data = package.files.files[instruction].data if instruction in package.files else b""
        if data is not None and not data.strip():
            yield Issue(
                "step-incomplete",
                "error",
                f"steps[{index}]",
                f"{instruction} is missing or empty",
                instruction,
            )
        own = [name for name in ALIASES[0] if f"{folder}/{name}" in package.files.folders]
        if own or not shared:
            yield from _check_verifier(package, f"{folder}/", package.step_verifiers.get(step.name))
    if shared:
        yield from _check_verifier(package, "", package.verifier_document)


def _check_verifier(package: TaskPackage, base: str, document: VerifierDocument | None) -> Iterator[Issue]:
    """The selected verifier folder holds something that scores; a profile may stand in for its document."""
    native, legacy = (f"{base}{name}" for name in ALIASES[0])
    folder = next((name for name in (native, legacy) if name in package.files.folders), None)
    if folder is None:
        if not base and package.verifier_dir is not None:
            return  # a link or a file in its place, reported with the layout
        yield Issue("verifier-missing", "error", native, f"there is no {native}/: nothing scores the work")
        return
    files = package.files.below(folder)
    if not files:
        yield Issue("verifier-empty", "error", folder, f"{folder}/ holds no file: nothing scores the work")
        return
    if document is not None:
        own = f"{folder}/{VERIFIER_MD}"
        file = own if own in package.files else package.profiles["verifier-profile"].path
        for missing in missing_files(document, files):
            message = f"{missing.path} names {missing.name}, which is not in {folder}/"
            yield Issue("verifier-file-missing", "error", missing.path, message, file)
    elif VERIFIER_MD not in files and not _has_default_entrypoint(package, files):
        message = f"{folder}/ has neither {VERIFIER_MD} nor {DEFAULT_SCRIPTS[0]}: nothing scores the work"
        yield Issue("verifier-entrypoint-missing", "error", folder, message)


def _has_default_entrypoint(package: TaskPackage, files: Collection[str]) -> bool:
    config = package.config
    if config is None or any(script in files for script in DEFAULT_SCRIPTS):
        return True
    if config.verifier.type == "llm-judge":
        return config.verifier.judge.rubric_path in package.files
    # A separate verifier image may bring its own entry point.
    return config.verifier.isolation == "separate" and ("Dockerfile" in files or _has_own_image(config))


def _has_own_image(config: TaskConfig) -> bool:
    environment = config.verifier.environment
    return environment is not None and environment.docker_image is not None


def _check_report_path(package: TaskPackage) -> Iterator[Issue]:
    """A test report is collected from one place; written elsewhere it is lost."""
    for name in DEFAULT_SCRIPTS:
        path = f"{package.verifier_dir}/{name}"
        data = package.files.files[path].data if path in package.files else None
        if data is None or b"--ctrf" not in data:
            continue
        for found in _CTRF.finditer(data):
            if found[1] != _CTRF_PATH:
                shown = found[1].decode("utf-8", "replace")
                line = data[: found.start(1)].count(b"\n") + 1
                message = f"the test report goes to {shown}; only {_CTRF_PATH.decode()} is kept"
                yield Issue("report-path", "warning", "", message, path, line)


def _definition(package: TaskPackage) -> str:
    return "task.md" if package.entrypoint == "task.md" else "task.toml"
