"""Writes the evidence of a package: all files and the pins at once, so that a kill leaves the old evidence whole.

A new `evidence/` is made beside the old one, with everything that is not replaced, and then exchanged with it. The
block in `task.md` follows; if the process ends between the two, the pins say that `task.md` differs, and the next run
writes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from benchflow.errors import Issue
from benchflow.evidence.standard_files import PROOF, evidence_block, review_of, standard_files
from benchflow.files.atomic import copy_file, exchange, write_atomic
from benchflow.record.evidence import ProofReport
from benchflow.task.checks.pins import build_pins, pinnable_hashes, pins_file, render_pins
from benchflow.task.config.evidence_config import Evidence
from benchflow.task.config.parsed_record import IssueLog
from benchflow.task.document.evidence_block import NotDeclarableError, with_evidence
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.package import TaskPackage

EVIDENCE: Final = "evidence"


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, and what could not be."""

    files: tuple[str, ...] = ()
    issues: tuple[Issue, ...] = ()


def write_evidence(package: TaskPackage, report: ProofReport, *, declare: bool = False) -> Written:
    """Write the files of a report into its package, and with `declare` the block in `task.md`.

    Files that are there with the same content are not touched. A folder that cannot be written is an issue.
    """
    review = review_of(package)
    files = standard_files(report, review)
    document = package.document
    before = (document.namespace.evidence if document is not None else None) or Evidence()
    block = evidence_block(report, files, review, before)
    issues: list[Issue] = []
    task_md = package.files.read(TASK_MD) if document is not None else None
    if declare and task_md is not None:
        try:
            task_md = with_evidence(task_md, block)
        except NotDeclarableError as error:
            issues.append(Issue(error.code, "warning", "benchflow.evidence", f"task.md {error}.", TASK_MD))
    elif declare:
        message = "The package has no task.md to declare evidence in; convert it with `bench tasks migrate`."
        issues.append(Issue("evidence-not-declarable", "warning", "benchflow.evidence", message))
    if task_md is not None:
        files = {**files, **_pins(package, files, task_md, Evidence.parse(block, "", IssueLog("")) or before)}
    changed = {path: text for path, text in files.items() if _differs(package, path, text.encode())}
    try:
        with _locked(package.path):
            if changed:
                _replace(package.path, changed)
            if task_md is not None and _differs(package, TASK_MD, task_md):
                write_atomic(package.path / TASK_MD, task_md)
                changed[TASK_MD] = ""
    except OSError as error:
        message = f"The evidence could not be written ({error.strerror or error}), so this is a report only."
        return Written((), (*issues, Issue("evidence-not-written", "warning", "", message)))
    return Written(tuple(sorted(changed)), tuple(issues))


def _pins(package: TaskPackage, files: Mapping[str, str], task_md: bytes, evidence: Evidence) -> dict[str, str]:
    hashes = pinnable_hashes(package)
    hashes |= {path: sha256(text.encode()).hexdigest() for path, text in files.items() if path != PROOF}
    hashes[TASK_MD] = sha256(task_md).hexdigest()
    return {pins_file(evidence): render_pins(build_pins(evidence, hashes))}


def _differs(package: TaskPackage, path: str, content: bytes) -> bool:
    entry = package.files.files.get(path)
    return entry is None or entry.sha256 != sha256(content).hexdigest()


def _replace(root: Path, changed: Mapping[str, str]) -> None:
    """Put the new texts into the evidence folder, all of them in one step."""
    outside = [path for path in changed if not path.startswith(f"{EVIDENCE}/")]
    folder = root / EVIDENCE
    staging = _staging(root)
    shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed
    try:
        staging.mkdir()
        if folder.is_dir() and not folder.is_symlink():
            _copy(folder, staging)
        for path, text in changed.items():
            if path not in outside:
                target = staging / path.removeprefix(f"{EVIDENCE}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(target, text)
        if folder.is_dir() and not folder.is_symlink():
            exchange(staging, folder)
        else:
            staging.rename(folder)
        for path in outside:  # a pins file that the author keeps elsewhere
            write_atomic(root / path, changed[path])
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Only one process writes into a package at a time; the lock of a process that is killed ends with it."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _staging(root: Path) -> Path:
    """A hidden place beside the package, where it belongs to no digest, or in it if nothing can be written there.

    It is the same for every process, so that the next one removes what a killed one leaves.
    """
    actual = root.resolve()
    name = f".benchflow-{sha256(os.fsencode(actual.name)).hexdigest()[:16]}.tmp"
    outside = actual.parent
    beside = os.access(outside, os.W_OK) and outside.stat().st_dev == actual.stat().st_dev
    return (outside if beside else actual) / name


def _copy(source: Path, target: Path) -> None:
    """Everything below a folder; links stay links."""
    for entry in sorted(source.iterdir()):
        copy = target / entry.name
        if entry.is_symlink():
            copy.symlink_to(entry.readlink())
        elif entry.is_dir():
            copy.mkdir()
            _copy(entry, copy)
            copy.chmod(entry.stat().st_mode & 0o7777)
        else:
            copy_file(entry, copy)
