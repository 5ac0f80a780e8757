"""`bench tasks check`: checks packages and prints one report each, as text or as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import click

from benchflow.cli.arguments import json_option, package_paths, sandbox_option
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.progress import Progress
from benchflow.cli.tasks.rendering import counted, issue_lines
from benchflow.cli.terminal import emit, emit_json_text, is_terminal, printable, style
from benchflow.task.checks import DEFAULT_LEVEL, LEVELS, CheckReport, check_found, require_level
from benchflow.task.discovery import find_packages
from benchflow.task.workers import ordered_map

_FOLD_FROM: Final = 40
"""On a terminal, valid packages are listed one by one only up to this many packages."""


@click.command()
@package_paths
@click.option(
    "--level", type=click.Choice(list(LEVELS)), default=DEFAULT_LEVEL, show_default=True, help="How much to check."
)
@sandbox_option
@click.option("--quiet", "-q", is_flag=True, help="List only packages with problems.")
@json_option
def check(paths: tuple[Path, ...], level: str, sandbox: str | None, quiet: bool, as_json: bool) -> int:
    """Check packages and report problems.

    Each PATH is a package or a folder above packages. Exits with 0 if every package is valid, otherwise with 1.
    """
    require_level(level, sandbox)
    found = find_packages(paths)
    progress = Progress("Checking packages:", len(found))
    reports = progress.over(ordered_map(partial(check_found, level=level, sandbox=sandbox), found))
    if as_json:
        return _print_json(reports, level, sandbox)
    return _print_text(reports, level, quiet=quiet or _folds(len(found)))


def _folds(total: int) -> bool:
    import sys

    return total > _FOLD_FROM and is_terminal(sys.stdout)


def _print_json(reports: Iterator[CheckReport], level: str, sandbox: str | None) -> int:
    """Reports are kept as text, which takes little memory even for ten thousand of them."""
    valid = 0
    entries: list[str] = []
    for report in reports:
        valid += report.valid
        entries.append(json.dumps(report.to_dict(), ensure_ascii=False))
    summary = {"total": len(entries), "valid": valid, "invalid": len(entries) - valid}
    head = json.dumps({"level": level, "sandbox": sandbox, "summary": summary})
    emit_json_text(f'{head[:-1]}, "tasks": [\n' + ",\n".join(entries) + "\n]}")
    return GOOD if valid == len(entries) else FAILED


def _print_text(reports: Iterator[CheckReport], level: str, *, quiet: bool) -> int:
    total = invalid = errors = warnings = 0
    for report in reports:
        total += 1
        invalid += not report.valid
        errors += report.errors
        warnings += len(report.issues) - report.errors
        if report.issues or not quiet:
            emit("\n".join(_report_lines(report)))
    verdict = f"{counted(total, 'package')} checked ({level}): {total - invalid} valid, {invalid} invalid"
    details = [counted(number, noun) for number, noun in ((errors, "error"), (warnings, "warning")) if number]
    emit(style(verdict, "red" if invalid else "green") + (f" ({', '.join(details)})" if details else ""))
    return FAILED if invalid else GOOD


def _report_lines(report: CheckReport) -> Iterator[str]:
    word = style("ok  ", "green") if report.valid else style("FAIL", "red")
    yield f"{word} {printable(report.path)} {style(f'({printable(report.name)})', 'dim')}"
    yield from issue_lines(report.issues, report.path)
