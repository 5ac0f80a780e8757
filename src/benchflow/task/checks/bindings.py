"""Whether evidence that `bench tasks prove` wrote is about this package, and agrees with itself.

Each of its files holds the digests of the parts that it is about (`benchcube`). The report on the whole holds the
SHA-256 of the others, and its verdicts must follow from the rewards it lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchflow.errors import Issue
from benchflow.task.checks.evidence_files import TOLERANCE, EvidenceReader, within_bounds
from benchflow.task.checks.pins import primary_files
from benchflow.task.config.evidence_config import Evidence
from benchflow.task.package import TaskPackage, package_parts

FOLDER: Final = "evidence/acceptance/"
PROOF_REPORT: Final = f"{FOLDER}proof-report.json"
_BOUND: Final = "benchcube"


def check_bindings(package: TaskPackage) -> Iterator[Issue]:
    """Every problem of generated evidence; files that an author wrote by hand are bound by their pins only."""
    files = package.files
    evidence = package.document.namespace.evidence if package.document is not None else None
    declared = primary_files(evidence or Evidence())
    names = [name for name in files.files if name in declared or (name.startswith(FOLDER) and name.endswith(".json"))]
    if not names or package.config is None:
        return
    reader = EvidenceReader(package.path, files.hashes())
    for name in names:
        found = reader.read(name, declared.get(name, "")) if name in declared or name == PROOF_REPORT else None
        if found is None:
            continue
        bound = found.get("bound" if name == PROOF_REPORT else _BOUND)
        if isinstance(bound, Mapping):
            _check_planes(reader, package, name, bound)
        if name == PROOF_REPORT:
            _check_report(reader, name, found)
    yield from (issue for issue in reader.issues if issue.code != "evidence-file-missing")


def _check_planes(reader: EvidenceReader, package: TaskPackage, name: str, bound: Mapping[str, Any]) -> None:
    planes = bound.get("planes")
    known = planes if isinstance(planes, Mapping) else {}
    changed = [part for part, digest in package_parts(package).items() if known.get(part) != digest]
    if changed:
        what = f"{name} describes another state of the package: {', '.join(changed)} changed since"
        reader.report("evidence-stale", f"{_BOUND}.planes", f"{what}; run `bench tasks prove` again", file=name)


def _check_report(reader: EvidenceReader, name: str, found: Mapping[str, Any]) -> None:
    written = found.get("files")
    for file, digest in written.items() if isinstance(written, Mapping) else ():
        actual = reader.files.get(f"{FOLDER}{file}")
        if actual is not None and actual != digest:
            message = f"{FOLDER}{file} is not the file that was written with {name}"
            reader.disagrees(name, f"files.{file}", message)
    cases = found.get("cases")
    for index, case in enumerate(cases if isinstance(cases, list) else ()):
        if isinstance(case, Mapping):
            for message in _contradictions(case):
                reader.disagrees(name, f"cases[{index}]", f"{name}: the case '{case.get('name')}' {message}")
    if found.get("proven") is True and not _may_be_proven(found):
        reader.disagrees(
            name, "proven", f"{name}: it states that the package is proven, but its cases do not show that"
        )


def _contradictions(case: Mapping[str, Any]) -> Iterator[str]:
    rewards, expect = case.get("rewards"), case.get("expect")
    if not isinstance(rewards, list) or not isinstance(expect, Mapping):
        yield "has no list of rewards"
        return
    if case.get("runs") != len(rewards):
        yield f"has {len(rewards)} rewards, but states that it was run {case.get('runs')} times"
    if case.get("passed") is not True:
        return
    failures = sum(not within_bounds(reward, expect) for reward in rewards)
    allowed = expect.get("flake_rate_max")
    rate = float(allowed) if isinstance(allowed, int | float) else 0.0
    if not rewards or failures > rate * len(rewards) + TOLERANCE:
        yield f"is recorded as passed, but {failures} of its {len(rewards)} runs are not as expected"


def _may_be_proven(found: Mapping[str, Any]) -> bool:
    cases, audit = found.get("cases"), found.get("audit")
    families = audit.get("families") if isinstance(audit, Mapping) else None
    broken = any(isinstance(family, Mapping) and family.get("verdict") == "broken" for family in families or ())
    listed = [case for case in cases if isinstance(case, Mapping)] if isinstance(cases, list) else []
    solved = any(case.get("type") == "oracle" for case in listed)
    return solved and not broken and all(case.get("passed") is True for case in listed)
