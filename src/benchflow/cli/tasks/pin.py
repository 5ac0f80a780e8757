"""`bench tasks pin`: records the SHA-256 of every file that evidence depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import json_option, package_paths
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.tasks.rendering import counted, issue_lines
from benchflow.cli.terminal import emit, emit_json, printable
from benchflow.errors import Issue
from benchflow.task.discovery import FoundPackage, find_packages


@click.command()
@package_paths
@json_option
def pin(paths: tuple[Path, ...], as_json: bool) -> int:
    """Write the SHA-256 pins of packages: task.md, verifier, oracle, environment and evidence.

    A package is pinned only if its evidence is complete and consistent; otherwise nothing is written.
    """
    results = [_pin(found) for found in find_packages(paths, to_change=True)]
    pinned = sum("pins" in result for result in results)
    if as_json:
        plain = [{**result, "issues": [issue.to_dict() for issue in result["issues"]]} for result in results]
        emit_json({"summary": {"total": len(results), "pinned": pinned}, "tasks": plain})
    else:
        for result in results:
            _print(result)
    return GOOD if pinned == len(results) else FAILED


def _pin(found: FoundPackage) -> dict[str, Any]:
    from benchflow.files.atomic import write_atomic
    from benchflow.task.checks import check_package
    from benchflow.task.checks.acceptance_level import check_evidence
    from benchflow.task.checks.conventional_evidence import effective_evidence
    from benchflow.task.checks.pins import build_pins, pinnable_hashes, pins_file, render_pins
    from benchflow.task.package import load_package

    if found.problem is not None:
        return {"path": found.shown, "issues": [found.problem]}
    package = load_package(found.path)
    evidence = effective_evidence(package)
    hashes = pinnable_hashes(package)
    issues: list[Issue] = [
        *check_package(package, level="publication-grade"),
        *check_evidence(package.path, evidence, hashes, with_pins_file=False),
    ]
    result: dict[str, Any] = {"path": found.shown, "issues": issues}
    if evidence is None or any(issue.severity == "error" for issue in issues):
        return result
    name = pins_file(evidence)
    pins = build_pins(evidence, hashes)
    target = found.path / name
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, render_pins(pins))
    return {**result, "pins": name, "files": len(pins["files"])}


def _print(result: dict[str, Any]) -> None:
    path = printable(result["path"])
    if "pins" in result:
        emit(f"Pinned {counted(result['files'], 'file')} in {path}/{result['pins']}")
    else:
        emit(f"Not pinned: {path}")
    for line in issue_lines(result["issues"], result["path"]):
        emit(line)
