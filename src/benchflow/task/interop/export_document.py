"""What a document and a verifier say that a split layout cannot: one loss per native concept."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from benchflow.task.document.task_document import TaskDocument
from benchflow.task.interop.export_report import CompatibilityExportLoss
from benchflow.task.package import TaskPackage
from benchflow.task.verifier.declared_strategies import ScriptStrategy

_RECORDS: Final = frozenset(
    {
        "document_version",
        "provenance",
        "evidence",
        "assets",
        "secrets",
        "compatibility",
        "authoring",
        "compat",
    }
)
"""Keys of the namespace that record or promise something; the others change what runs."""


def document_losses(document: TaskDocument) -> Iterator[CompatibilityExportLoss]:
    """The concepts of the document itself, in the order of the standard."""
    one_prompt = "Harbor gives one agent one instruction"
    if document.roles:
        yield CompatibilityExportLoss("agents.roles", "Harbor has one agent, chosen when a job is run")
    if document.scenes:
        yield CompatibilityExportLoss("scenes", one_prompt)
    if document.role_prompts:
        yield CompatibilityExportLoss("## role:*", one_prompt)
    if document.scene_prompts:
        yield CompatibilityExportLoss("## scene:*", one_prompt)
    if document.user is not None:
        yield CompatibilityExportLoss("user", "Harbor's tasks have no user")
    if document.persona is not None:
        yield CompatibilityExportLoss("## user-persona", "Harbor's tasks have no user")
    if document.preamble:
        reason = "text before '## prompt' belongs to no prompt and is not exported"
        yield CompatibilityExportLoss("## prompt", reason, "warning")


def namespace_losses(document: TaskDocument) -> Iterator[CompatibilityExportLoss]:
    """One entry per key of the `benchflow:` namespace; preserved foreign keys are accounted for elsewhere."""
    for key in sorted(document.namespace.to_declared_dict()):
        if key == "compat":
            continue
        reason = "Harbor has no such concept"
        yield CompatibilityExportLoss(f"benchflow.{key}", reason, "warning" if key in _RECORDS else "loss")


def verifier_losses(package: TaskPackage, *, runs_strategy: bool) -> Iterator[CompatibilityExportLoss]:
    """What the verifier declares; `runs_strategy` says that `tests/test.sh` does what the strategy does."""
    document = package.verifier_document
    if document is not None:
        own = f"{package.verifier_dir}/verifier.md" in package.files
        reason = "Harbor runs tests/test.sh and does not read the verifier document"
        yield CompatibilityExportLoss("verifier.verifier_md" if own else "verifier-profile", reason)
        if not runs_strategy:
            path = f"verifier.strategies.{document.default_strategy}"
            yield CompatibilityExportLoss(path, f"Harbor cannot run the {document.selected.type} strategy")
    elif not runs_strategy and package.config is not None and not package.config.steps:
        yield CompatibilityExportLoss("verifier", "Harbor needs tests/test.sh, and there is none")


def environment_losses(package: TaskPackage) -> Iterator[CompatibilityExportLoss]:
    """A task that runs in the machine's own userland has no counterpart."""
    config = package.config
    image = config.environment.docker_image if config is not None else None
    if "environment" not in package.files.folders and image is None:
        reason = "Harbor needs an image: environment/ or environment.docker_image"
        yield CompatibilityExportLoss("environment", reason)


def harbor_test_script(package: TaskPackage) -> tuple[bool, str | None]:
    """Whether `tests/test.sh` will do what the selected strategy does, and its text if it must be written."""
    folder = package.verifier_dir
    present = folder is not None and f"{folder}/test.sh" in package.files
    document = package.verifier_document
    if document is None:
        windows = package.config is not None and package.config.environment.os == "windows"
        bundled = folder is not None and f"{folder}/Dockerfile" in package.files
        return present or windows or bundled, None
    strategy = document.selected
    if not isinstance(strategy, ScriptStrategy):
        return False, None
    if present:
        return _runs_test_sh(strategy.command), None
    return True, f'#!/bin/bash\ncd "$(dirname "${{BASH_SOURCE[0]}}")" || exit 1\n{strategy.command}\n'


def _runs_test_sh(command: str) -> bool:
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    if words and words[0] in {"bash", "sh"}:
        words = words[1:]
    return words in (["./test.sh"], ["test.sh"])
