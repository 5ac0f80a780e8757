"""Where the files of a package go in the split layout, and what of files and document is lost there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from benchflow.task.config.task_config import VerifierConfig
from benchflow.task.document.harbor_keys import ROOT_FILES, STEP_ENTRIES
from benchflow.task.document.task_document import TaskDocument
from benchflow.task.filemap import FileMap
from benchflow.task.interop.export_report import CompatibilityExportLoss
from benchflow.task.package import TaskPackage
from benchflow.task.package_layout import ALIASES, select

_REWRITTEN: Final = frozenset({"task.md", "task.toml", "instruction.md", "compatibility/export-report.json"})
COMPATIBILITY: Final = "compatibility"
"""The folder of an export for what Harbor does not read."""
_PROMPTS: Final = "prompts"
_NATIVE_MOUNT: Final = re.compile(rb"(?<![\w./-])/(verifier|oracle)(?=[/\"'\s]|$)", re.MULTILINE)
_SCRIPTS: Final = (".sh", ".py", ".bash")


@dataclass(slots=True)
class FilePlan:
    """New path -> path in the package, for files and links; folders that may be empty."""

    copies: dict[str, str] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    """New path -> path relative to the package, of files that belong to it and may be beside it."""
    links: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    losses: list[CompatibilityExportLoss] = field(default_factory=list)


def plan_files(package: TaskPackage, *, everything: bool) -> FilePlan:
    """Plan the files of an export; definitions are rewritten and not included.

    `everything` also exports, as they are, the files that Harbor has no place for: those of a split package.
    """
    plan = FilePlan()
    files = package.files
    trees = dict(split_names(package))
    for path in (*files.files, *sorted(files.links)):
        tree = next((source for source in trees if path.startswith(f"{source}/")), None)
        if tree is None:
            continue
        new = trees[tree] + path.removeprefix(tree)
        if path in files.files:
            plan.copies[new] = path
        elif _stays_inside(path, files.links[path], "" if everything else f"{tree}/"):
            plan.links[new] = files.links[path]
        else:
            plan.losses.append(CompatibilityExportLoss(path, "a link that points out of its folder is not exported"))
    for folder in sorted(files.folders):
        tree = next((source for source in trees if folder == source or folder.startswith(f"{source}/")), None)
        if tree is not None:
            plan.folders.append(trees[tree] + folder.removeprefix(tree))
    plan.copies.update({name: name for name in (*ROOT_FILES, *_step_files(package)) if name in files})
    plan.beside = _manifest(package)
    plan.losses += _native_mounts(files, plan)
    if everything:
        _add_the_rest(package, trees, plan)
    else:
        plan.losses += _left_behind(package, trees, plan)
    return plan


def _add_the_rest(package: TaskPackage, trees: Iterable[str], plan: FilePlan) -> None:
    """The remaining files, links and folders of a package, except the second of two aliases."""
    files = package.files
    covered = (*trees, *_twins(package))

    def remains(path: str) -> bool:
        return path not in covered and not any(path.startswith(f"{tree}/") for tree in covered)

    for path in files.files:
        if path not in _REWRITTEN and remains(path):
            plan.copies[path] = path
    for path, target in files.links.items():
        if remains(path):
            plan.links[path] = target
    plan.folders += [folder for folder in sorted(files.folders) if remains(folder)]


def _manifest(package: TaskPackage) -> dict[str, str]:
    """The manifest of services goes along, although Harbor does not start them: what runs there must stay known."""
    wiring = package.document.namespace.environment if package.document is not None else None
    if package.manifest is None or wiring is None:
        return {}
    return {f"{COMPATIBILITY}/environment.toml": wiring.manifest}


def split_names(package: TaskPackage) -> Iterator[tuple[str, str]]:
    """Folder of the package -> folder in the split layout; of two aliases only the one that is used."""
    files = package.files
    if "environment" in files.folders:
        yield "environment", "environment"
    for holder in ("", *(f"steps/{step}/" for step in _steps(package))):
        for native, split in ALIASES:
            chosen = select(files, holder + native, holder + split)
            if chosen in files.folders and chosen is not None:
                yield chosen, holder + split
        if holder and f"{holder}workdir" in files.folders:
            yield f"{holder}workdir", f"{holder}workdir"


def _steps(package: TaskPackage) -> tuple[str, ...]:
    steps = package.config.steps if package.config is not None else None
    return tuple(step.name for step in steps or ())


def _step_files(package: TaskPackage) -> Iterator[str]:
    return (f"steps/{step}/{name}" for step in _steps(package) for name in STEP_ENTRIES)


def _stays_inside(path: str, target: str, tree: str) -> bool:
    """Whether a link points into a folder of the package, or into the package."""
    if target.startswith("/"):
        return False
    there = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120 - names, not files
    return there.startswith(tree) and there.split("/")[0] != ".."


def _left_behind(package: TaskPackage, trees: Iterable[str], plan: FilePlan) -> Iterator[CompatibilityExportLoss]:
    """One entry per file or folder that is not exported, at the highest level possible."""
    carried = {*plan.copies.values(), *plan.beside.values(), *_REWRITTEN}
    twins = _twins(package)
    reported: set[str] = set()
    for path in (*package.files.files, *sorted(package.files.links)):
        if path in carried or any(path.startswith(f"{tree}/") for tree in (*trees, *twins)) or path in twins:
            continue
        name = _nearest(path)
        if name not in reported:
            reported.add(name)
            yield _loss_of(name)


def _twins(package: TaskPackage) -> set[str]:
    """The folders that have another name natively."""
    return {holder + split for holder in ("", *(f"steps/{step}/" for step in _steps(package))) for _, split in ALIASES}


def _nearest(path: str) -> str:
    parts = path.split("/")
    depth = 3 if parts[0] == "steps" and len(parts) > 2 else 1
    return "/".join(parts[:depth]) + ("/" if len(parts) > depth else "")


def _loss_of(name: str) -> CompatibilityExportLoss:
    if name == f"{_PROMPTS}/":
        return CompatibilityExportLoss(name, "Harbor has one instruction and no other prompts")
    if name == "evidence/":
        return CompatibilityExportLoss(name, "Harbor has no place for evidence", "warning")
    return CompatibilityExportLoss(name, "Harbor has no place for it, so it is not exported", "warning")


def _native_mounts(files: FileMap, plan: FilePlan) -> Iterator[CompatibilityExportLoss]:
    """Scripts that use the native mount points, which have other names in Harbor."""
    for new, path in plan.copies.items():
        data = files.files[path].data
        if new.endswith(_SCRIPTS) and data is not None:
            found = _NATIVE_MOUNT.search(data)
            if found:
                name = found[1].decode()
                there = dict(ALIASES)[name]
                reason = f"it uses /{name}, which Harbor mounts at /{there}"
                yield CompatibilityExportLoss(path, reason, "warning")


_RECORDS: Final = frozenset(
    {"document_version", "provenance", "evidence", "assets", "secrets", "compatibility", "authoring", "compat"}
)
"""Keys of the namespace that are only information; the others change what runs."""


def document_losses(document: TaskDocument) -> Iterator[CompatibilityExportLoss]:
    """The concepts of the document itself, in the order of the standard."""
    one_prompt = "Harbor has one agent with one instruction"
    if document.roles:
        yield CompatibilityExportLoss("agents.roles", "Harbor has one agent, chosen when a job is started")
    if document.scenes:
        yield CompatibilityExportLoss("scenes", one_prompt)
    if document.role_prompts:
        yield CompatibilityExportLoss("## role:*", one_prompt)
    if document.scene_prompts:
        yield CompatibilityExportLoss("## scene:*", one_prompt)
    if document.user is not None:
        yield CompatibilityExportLoss("user", "Harbor tasks have no user")
    if document.persona is not None:
        yield CompatibilityExportLoss("## user-persona", "Harbor tasks have no user")
    if document.preamble:
        reason = "text before '## prompt' is not part of a prompt and is not exported"
        yield CompatibilityExportLoss("## prompt", reason, "warning")


def namespace_losses(document: TaskDocument) -> Iterator[CompatibilityExportLoss]:
    """One entry per key of the `benchflow:` namespace; preserved foreign keys are handled elsewhere."""
    for key in sorted(document.namespace.to_declared_dict()):
        if key == "compat":
            continue
        reason = "Harbor has no such concept"
        if key == "environment":
            reason = f"Harbor does not start services; their manifest is copied to {COMPATIBILITY}/"
        yield CompatibilityExportLoss(f"benchflow.{key}", reason, "warning" if key in _RECORDS else "loss")


def harbor_refusals(package: TaskPackage, plan: FilePlan, *, tests_refused: bool) -> Iterator[CompatibilityExportLoss]:
    """Why Harbor's loader refuses the export, by its files: no image, no test script, a step without its parts.

    Missing tests are not reported again if the strategy was refused, which is why there are none.
    """
    config = package.config
    if config is None:
        return
    if "environment" not in package.files.folders and config.environment.docker_image is None:
        reason = "Harbor needs an image: environment/ or environment.docker_image"
        yield CompatibilityExportLoss("environment", reason, "refusal")
    if not config.steps:
        if not tests_refused and not _has_tests(
            plan, "tests", config.environment.os, bundled=_own_environment(config.verifier)
        ):
            yield CompatibilityExportLoss("verifier", "Harbor needs tests/test.sh, which does not exist", "refusal")
        return
    for index, step in enumerate(config.steps):
        folder = f"steps/{step.name}"
        own = _own_environment(step.verifier) or _own_environment(config.verifier)
        if f"{folder}/instruction.md" not in plan.copies:
            reason = f"Harbor needs {folder}/instruction.md, which does not exist"
            yield CompatibilityExportLoss(f"steps[{index}]", reason, "refusal")
        if not any(
            _has_tests(plan, tests, config.environment.os, bundled=own) for tests in (f"{folder}/tests", "tests")
        ):
            reason = f"Harbor needs {folder}/tests/test.sh or tests/test.sh; neither exists"
            yield CompatibilityExportLoss(f"steps[{index}].verifier", reason, "refusal")


def _has_tests(plan: FilePlan, folder: str, os_name: str, *, bundled: bool) -> bool:
    """Whether Harbor finds a script for the operating system, or an image with the tests in it."""
    script = "test.bat" if os_name == "windows" else "test.sh"
    if f"{folder}/{script}" in plan.copies or f"{folder}/{script}" in plan.links:
        return True
    return bundled and any(f"{folder}/{name}" in plan.copies for name in ("Dockerfile", "docker-compose.yaml"))


def _own_environment(verifier: VerifierConfig) -> bool:
    return verifier.wanted_isolation == "separate"
