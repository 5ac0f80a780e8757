"""The output of `cube test`: each check with its status, the findings, and the tasks that were played."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from cube.conformance import CHECKS
from cube.findings import Findings


def report(findings: Findings) -> dict[str, Any]:
    """As one document."""
    checks = [{"id": check, "status": _status(check, findings), "rule": rule} for check, rule in CHECKS.items()]
    rows = [{"check": f.check, "task_id": f.task_id, "also": list(f.also), "message": f.message} for f in findings]
    played = [dataclasses.asdict(each) for each in findings.played]
    return {"passed": not findings, "tasks": findings.tasks, "played": played, "checks": checks, "findings": rows}


def _status(check: str, findings: Findings) -> str:
    if any(finding.check == check for finding in findings):
        return "failed"
    return "passed" if check in findings.checked else "not run"


def print_findings(name: str, findings: Findings) -> None:
    """As a table of the checks, with each finding below."""
    colours = {"failed": "red", "passed": "green", "not run": "yellow"}
    for check, rule in CHECKS.items():
        status = _status(check, findings)
        click.echo(f"{click.style(f'{status:8}', fg=colours[status])} {check:13} {rule}")
    for finding in findings:
        click.echo(f"\n{finding}")
    click.echo()
    if findings.played:
        for played in findings.played:
            steps = "1 step" if played.steps == 1 else f"{played.steps} steps"
            click.echo(f"played {played.task_id}: reward {played.reward:g} in {steps}")
        click.echo()
    count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
    click.echo(f"{name}: {count if findings else 'all checks passed'}{_how_many(findings)}")


def _how_many(findings: Findings) -> str:
    """How many of the tasks were played, so that nobody takes some for all."""
    played = len(findings.played)
    if not findings.tasks or (findings and not played):
        return ""
    return f"; {played} of {findings.tasks} {'task was' if findings.tasks == 1 else 'tasks were'} played"
