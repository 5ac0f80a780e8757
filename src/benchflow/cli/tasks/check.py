"""`bench tasks check`: checks packages and prints their problems as text or as one JSON document.

The text lists every problem of a few packages, and groups those of many. Only the level `acceptance-live` runs
anything, and only for it is more imported than the checks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from benchflow.cli.arguments import PATH, json_option, package_paths, sandbox_option
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.machine_settings import machine_settings_option
from benchflow.cli.preflight import require_base_image
from benchflow.cli.progress import Progress
from benchflow.cli.pull_lines import pull_option
from benchflow.cli.tasks.bulk import MANY, Groups, finding_of
from benchflow.cli.tasks.rendering import counted, issue_lines
from benchflow.cli.terminal import emit, emit_json_text, printable, style
from benchflow.errors import UsageError
from benchflow.task.checks import (
    DEFAULT_LEVEL,
    LEVELS,
    LIVE_LEVEL,
    CheckReport,
    check_found,
    require_level,
    require_sandbox,
)
from benchflow.task.discovery import FoundPackage, find_packages
from benchflow.task.workers import ordered_map

_LIVE_OPTIONS = {
    "base_image": "--base-image",
    "pull": "--pull",
    "machine_settings": "--machine-settings",
    "report_output": "--report-output",
    "no_report_write": "--no-report-write",
}


@click.command()
@package_paths
@click.option(
    "--level",
    type=click.Choice([*LEVELS, LIVE_LEVEL]),
    default=DEFAULT_LEVEL,
    show_default=True,
    help="How much to check.",
)
@sandbox_option
@click.option("--quiet", "-q", is_flag=True, help="List only packages with problems.")
@click.option(
    "--verbose", "-v", is_flag=True, help=f"List every package and problem, even of more than {MANY} packages."
)
@click.option("--code", "codes", multiple=True, metavar="CODE", help="List only problems with this code; repeatable.")
@click.option(
    "--report-output", type=PATH, metavar="FILE", help=f"{LIVE_LEVEL}: write the report here, not into the package."
)
@click.option("--no-report-write", is_flag=True, help=f"{LIVE_LEVEL}: write no report.")
@click.option("--base-image", metavar="host|NAME", help=f"{LIVE_LEVEL}: substitute for a base image.")
@pull_option
@machine_settings_option
@json_option
def check(
    paths: tuple[Path, ...],
    level: str,
    sandbox: str | None,
    quiet: bool,
    verbose: bool,
    codes: tuple[str, ...],
    as_json: bool,
    **live: Any,
) -> int:
    """Check packages and report problems.

    Each PATH is a package or a folder above packages. Problems of more than 30 packages are grouped by their code. The
    level acceptance-live also runs the live cases of packages in the sandbox and writes a report; the other levels run
    nothing. Exits with 0 if every package is valid, otherwise with 1.
    """
    if level == LIVE_LEVEL:
        if sandbox is None:
            raise UsageError(f"the level {LIVE_LEVEL} needs a sandbox: add --sandbox NAME", code="sandbox-missing")
        require_sandbox(sandbox)
    else:
        require_level(level, sandbox)
        _refuse_live_options(level)
    _require_codes(codes, as_json=as_json)
    found = find_packages(paths)
    if level == LIVE_LEVEL and sandbox is not None:
        require_base_image(live["base_image"], sandbox, live["pull"])
        checked = _checked_live(found, sandbox, **live)
    else:
        checked = ordered_map(partial(check_found, level=level, sandbox=sandbox), found)
    reports = Progress("Checking packages:", len(found)).over(checked)
    if as_json:
        return _print_json(reports, level, sandbox)
    if codes:
        return _print_text(reports, level, partial(_list, quiet=True, codes=codes))
    if len(found) <= MANY or verbose:
        return _print_text(reports, level, partial(_list, quiet=quiet))
    groups = Groups("Use --code CODE to list all problems of one kind, --verbose to list everything.")
    return _print_text(reports, level, partial(_group, groups), groups.emit)


def _refuse_live_options(level: str) -> None:
    context = click.get_current_context()
    for name, option in _LIVE_OPTIONS.items():
        if context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT):
            message = f"{option} is for the level {LIVE_LEVEL}; the level {level} runs nothing"
            raise UsageError(message, code="options-contradict")


def _checked_live(
    found: list[FoundPackage],
    sandbox: str,
    *,
    base_image: str | None,
    pull: Any,
    report_output: Path | None,
    no_report_write: bool,
) -> Iterator[CheckReport]:
    from benchflow.cli.pull_lines import PullLines
    from benchflow.evidence.live_check import LiveOptions, require_output
    from benchflow.evidence.trial_stage import StageOptions
    from benchflow.sandbox.pulling import PullSettings

    if report_output is not None:
        if no_report_write:
            raise UsageError("--report-output and --no-report-write contradict each other", code="options-contradict")
        if len(found) != 1:
            raise UsageError(
                f"--report-output takes the report of one package, and {len(found)} were found",
                code="options-contradict",
            )
        require_output(report_output)
    stage = StageOptions(sandbox, base_image, PullSettings(pull, on_progress=PullLines().show))
    options = LiveOptions(sandbox, stage, report_output, write_report=not no_report_write)
    return (_live(item, options) for item in found)


def _live(item: FoundPackage, options: Any) -> CheckReport:
    import anyio

    from benchflow.cli.tasks.rendering import failure_issues
    from benchflow.evidence.live_check import check_live
    from benchflow.task.package import load_package

    if item.problem is not None:
        return CheckReport(item.shown, item.folder_name, None, (item.problem,))
    if item.inside is not None and options.report_output is None:
        options = replace(options, write_report=False)  # a package in a bundle has no folder to keep it
    try:
        return anyio.run(check_live, load_package(item.path), item.shown, options)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - one package must not prevent the reports of the others
        return CheckReport(item.shown, item.folder_name, None, failure_issues(error))


def _require_codes(codes: tuple[str, ...], *, as_json: bool) -> None:
    """Refuse a code that no check reports: nothing would be listed, as if all were well."""
    if not codes:
        return
    from benchflow.task.checks.codes import CODES

    if as_json:
        raise UsageError("--json always contains every problem; leave out --code", code="options-contradict")
    for code in codes:
        if code not in CODES:
            raise UsageError(f"no check reports the code '{code}'; see 'Check codes' in the docs", code="unknown-code")


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


def _print_text(
    reports: Iterator[CheckReport],
    level: str,
    add: Callable[[CheckReport], None],
    finish: Callable[[], None] = lambda: None,
) -> int:
    total = invalid = errors = warnings = 0
    for report in reports:
        total += 1
        invalid += not report.valid
        errors += report.errors
        warnings += len(report.issues) - report.errors
        add(report)
    finish()
    verdict = f"{counted(total, 'package')} checked ({level}): {total - invalid:,} valid, {invalid:,} invalid"
    details = [counted(number, noun) for number, noun in ((errors, "error"), (warnings, "warning")) if number]
    emit(style(verdict, "red" if invalid else "green") + (f" ({', '.join(details)})" if details else ""))
    return FAILED if invalid else GOOD


def _list(report: CheckReport, *, quiet: bool, codes: tuple[str, ...] = ()) -> None:
    issues = [issue for issue in report.issues if not codes or issue.code in codes]
    if issues or not quiet:
        word = style("ok  ", "green") if report.valid else style("FAIL", "red")
        emit(f"{word} {printable(report.path)} {style(f'({printable(report.name)})', 'dim')}")
    for line in issue_lines(issues, report.path):
        emit(line)
    if report.live is not None and not codes:
        emit(f"     {style(_live_line(report.live), 'dim')}")


def _live_line(live: Mapping[str, Any]) -> str:
    summary, verdict = live["summary"], live["leaderboard_suitability"]
    runs = f"{summary['passed_runs']} of {counted(summary['total_runs'], 'live run')} passed"
    unchecked = f" (not examined: {', '.join(verdict['unchecked'])})" if verdict["unchecked"] else ""
    written = f"; report: {printable(live['report'])}" if live["report"] else "; no report was written"
    return f"{runs}; leaderboard: {verdict['status']}{unchecked}{written}"


def _group(groups: Groups, report: CheckReport) -> None:
    groups.add(finding_of(issue, report.path) for issue in report.issues)
