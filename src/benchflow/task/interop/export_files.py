"""Which files of a package go where in the split layout, and which have no place there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from benchflow.task.document.harbor_keys import ROOT_FILES, STEP_ENTRIES
from benchflow.task.filemap import FileMap
from benchflow.task.interop.export_report import CompatibilityExportLoss
from benchflow.task.layout import ALIASES, select
from benchflow.task.package import TaskPackage

_REWRITTEN: Final = frozenset({"task.md", "task.toml", "instruction.md", "compatibility/export-report.json"})
_PROMPTS: Final = "prompts"
_NATIVE_MOUNT: Final = re.compile(rb"(?<![\w./-])/(verifier|oracle)(?=[/\"'\s]|$)", re.MULTILINE)
_SCRIPTS: Final = (".sh", ".py", ".bash")


@dataclass(slots=True)
class FilePlan:
    """New path to the package's own path, for files, links and folders that may be empty."""

    copies: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    losses: list[CompatibilityExportLoss] = field(default_factory=list)


def plan_files(package: TaskPackage) -> FilePlan:
    """Plan the files of an export; definitions are written anew and are not part of it."""
    plan = FilePlan()
    files = package.files
    trees = dict(_trees(package))
    for path in (*files.files, *sorted(files.links)):
        tree = next((source for source in trees if path.startswith(f"{source}/")), None)
        if tree is None:
            continue
        new = trees[tree] + path.removeprefix(tree)
        if path in files.files:
            plan.copies[new] = path
        elif _stays_inside(path, files.links[path], tree):
            plan.links[new] = files.links[path]
        else:
            plan.losses.append(CompatibilityExportLoss(path, "a link out of its tree is not exported"))
    for folder in sorted(files.folders):
        tree = next((source for source in trees if folder == source or folder.startswith(f"{source}/")), None)
        if tree is not None:
            plan.folders.append(trees[tree] + folder.removeprefix(tree))
    plan.copies.update({name: name for name in (*ROOT_FILES, *_step_files(package)) if name in files})
    plan.losses += _left_behind(package, trees, plan)
    plan.losses += _native_mounts(files, plan)
    return plan


def _trees(package: TaskPackage) -> Iterator[tuple[str, str]]:
    """Tree of the package to its place in the split layout; of two aliases only the one that counts."""
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
    if target.startswith("/"):
        return False
    folder = path.rpartition("/")[0]
    return os.path.normpath(f"{folder}/{target}").startswith(f"{tree}/")


def _left_behind(package: TaskPackage, trees: Iterable[str], plan: FilePlan) -> Iterator[CompatibilityExportLoss]:
    """One entry per file or folder that has no place, as high up as possible."""
    carried = {*plan.copies.values(), *_REWRITTEN}
    twins = {holder + split for holder in ("", *(f"steps/{step}/" for step in _steps(package))) for _, split in ALIASES}
    reported: set[str] = set()
    for path in (*package.files.files, *sorted(package.files.links)):
        if path in carried or any(path.startswith(f"{tree}/") for tree in (*trees, *twins)) or path in twins:
            continue
        name = _nearest(path)
        if name not in reported:
            reported.add(name)
            yield _loss_of(name)


def _nearest(path: str) -> str:
    parts = path.split("/")
    depth = 3 if parts[0] == "steps" and len(parts) > 2 else 1
    return "/".join(parts[:depth]) + ("/" if len(parts) > depth else "")


def _loss_of(name: str) -> CompatibilityExportLoss:
    if name == f"{_PROMPTS}/":
        return CompatibilityExportLoss(name, "Harbor knows one instruction and no other prompts")
    if name == "evidence/":
        return CompatibilityExportLoss(name, "Harbor has no place for evidence", "warning")
    return CompatibilityExportLoss(name, "Harbor has no place for it; it is not exported", "warning")


def _native_mounts(files: FileMap, plan: FilePlan) -> Iterator[CompatibilityExportLoss]:
    """Scripts that name the native mount points, which are called otherwise there."""
    for new, path in plan.copies.items():
        data = files.files[path].data
        if new.endswith(_SCRIPTS) and data is not None:
            found = _NATIVE_MOUNT.search(data)
            if found:
                name = found[1].decode()
                there = dict(ALIASES)[name]
                reason = f"it names /{name}, which Harbor mounts at /{there}"
                yield CompatibilityExportLoss(path, reason, "warning")
