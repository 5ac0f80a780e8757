"""Pins: the SHA-256 of each file at the time the evidence was collected.

`bench tasks pin` writes them to one JSON file; checks only compare. They cover `task.md`, prompts, files beside it,
environment, oracle, verifier, steps and every declared evidence file, so that evidence becomes invalid when any of them
changes. A digest that `task.md` declares for an evidence file also counts as a pin of that file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchflow.errors import Issue, Severity
from benchflow.task.checks.evidence_files import EvidenceReader
from benchflow.task.config.evidence_config import Evidence
from benchflow.task.package import TaskPackage

DEFAULT_PINS: Final = "evidence/pins.json"
PINS_KIND: Final = "evidence-pins"
_COVERED_FILES: Final = frozenset({"task.md", "environment.toml"})
_COVERED_FOLDERS: Final = ("prompts/", "environment/", "oracle/", "verifier/", "steps/", "../")


def pins_file(evidence: Evidence) -> str:
    """The path of the pins file."""
    return evidence.pins or DEFAULT_PINS


def pinnable_hashes(package: TaskPackage) -> dict[str, str]:
    """SHA-256 of everything that can be pinned: the files of a package and what it shares with others (`../…`)."""
    return {**package.files.hashes(), **package.shared}


def primary_files(evidence: Evidence) -> dict[str, str]:
    """Every file that evidence depends on, with the dotted path that names it."""
    base = "benchflow.evidence"
    named: list[tuple[str | None, str]] = []
    if evidence.oracle_runs is not None:
        named.append((evidence.oracle_runs.artifact, f"{base}.oracle_runs.artifact"))
    if evidence.verifier is not None:
        named.append((evidence.verifier.report, f"{base}.verifier.report"))
    if evidence.review is not None:
        named.append((evidence.review.artifact, f"{base}.review.artifact"))
    if evidence.calibration is not None:
        named.append((evidence.calibration.report, f"{base}.calibration.report"))
        for index, example in enumerate(evidence.calibration.human_or_reference_examples):
            named.append((example.artifact, f"{base}.calibration.human_or_reference_examples[{index}].artifact"))
    return {file: path for file, path in named if file is not None}


def build_pins(evidence: Evidence, files: Mapping[str, str]) -> dict[str, Any]:
    """The document that `bench tasks pin` writes, from the hashes of the package's files."""
    wanted = set(primary_files(evidence)) | {pin.path for pin in (*evidence.artifacts, *evidence.trajectories)}
    wanted.discard(pins_file(evidence))
    covered = {name: digest for name, digest in files.items() if _is_covered(name) or name in wanted}
    return {"kind": PINS_KIND, "files": dict(sorted(covered.items()))}


def render_pins(pins: Mapping[str, Any]) -> str:
    """The text of a pins file."""
    return json.dumps(pins, indent=2, ensure_ascii=False) + "\n"


def check_declared_pins(reader: EvidenceReader, evidence: Evidence) -> None:
    """Compare the digests declared in `task.md` with the files."""
    for section in ("artifacts", "trajectories"):
        for index, pin in enumerate(getattr(evidence, section)):
            path = f"benchflow.evidence.{section}[{index}]"
            found = reader.files.get(pin.path)
            if found is None:
                message = f"{path}.path names {pin.path}, which is not a file of the package"
                reader.report("evidence-file-missing", f"{path}.path", message)
            elif pin.sha256 is not None and pin.sha256 != found:
                message = f"{pin.path} has changed since it was pinned: its SHA-256 is {found}"
                reader.report("pin-mismatch", f"{path}.sha256", message)


def check_pins_file(reader: EvidenceReader, evidence: Evidence) -> frozenset[str]:
    """Compare the pins file with the package; returns the names it pins."""
    name = pins_file(evidence)
    if name not in reader.files:
        message = f"{name} is missing: nothing shows that the evidence applies to this task.md and verifier"
        # The standard demands pins of evidence files only, and task.md can hold those; a declared file must be there.
        severity: Severity = "warning" if evidence.pins is None else "error"
        reader.issues.append(Issue("pins-missing", severity, "benchflow.evidence.pins", message, "task.md"))
        return frozenset()
    found = reader.read(name, "benchflow.evidence.pins", kind=PINS_KIND)
    pinned = None if found is None else found.get("files")
    if found is None:
        return frozenset()
    if not isinstance(pinned, dict):
        reader.wrong(name, "files", f"{name}: files must map each file to its SHA-256")
        return frozenset()
    for file, message in _differences(pinned, reader.files):
        reader.issues.append(Issue("pin-mismatch", "error", f"files.{file}", message, name))
    return frozenset(pinned)


def _differences(pinned: Mapping[str, Any], files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, digest in pinned.items():
        if name not in files:
            yield name, f"{name} is pinned but no longer exists"
        elif files[name] != digest:
            yield name, f"{name} has changed since it was pinned"
    for name in files:
        if _is_covered(name) and name not in pinned:
            yield name, f"{name} was added after the pins were written"


def _is_covered(name: str) -> bool:
    return name in _COVERED_FILES or name.startswith(_COVERED_FOLDERS)
