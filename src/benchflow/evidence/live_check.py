"""The level `acceptance-live`: everything static first, then the live cases, then the report with its sidecar.

Cases are run only for a package without an error. The report replaces the last one when it is complete: a run that is
killed leaves the old one as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from benchflow.errors import BenchflowError, Issue, UsageError
from benchflow.evidence.live_acceptance import run_live
from benchflow.evidence.live_cases import LIVE, LiveSpec, live_spec
from benchflow.evidence.trial_stage import StageOptions
from benchflow.files.atomic import write_atomic
from benchflow.record.codec import plain
from benchflow.record.live_report import LIVE_REPORT_KIND, LiveReport
from benchflow.task.checks import CheckReport, check_package
from benchflow.task.checks.conventional_evidence import effective_evidence
from benchflow.task.checks.live_report_file import SIDECAR, is_about_report
from benchflow.task.package import TaskPackage

STATIC_LEVEL: Final = "acceptance"


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How live cases run, and where the report goes."""

    sandbox: str
    """The name that the sandbox is asked for by."""
    stage: StageOptions = field(default_factory=StageOptions)
    report_output: Path | None = None
    """Instead of the path that the package declares."""
    write_report: bool = True
    worktree: Path | None = None
    """What a declared workspace holds; None: the current folder."""


async def check_live(package: TaskPackage, path: str, options: LiveOptions) -> CheckReport:
    """The report of one package; refused and failed runs are issues."""
    static = check_package(package, level=STATIC_LEVEL, sandbox=options.sandbox)
    evidence = effective_evidence(package)
    issues = [issue for issue in static if not is_about_report(issue, evidence)]
    done: LiveReport | None = None
    written: str | None = None
    if not any(issue.severity == "error" for issue in issues):
        spec, problems = live_spec(package, evidence)
        problems += () if spec is None else _report_path_missing(spec, options)
        issues += problems
        if spec is not None and not problems:
            try:
                done, found = await run_live(package, spec, options.stage, worktree=options.worktree)
            except UsageError:
                raise
            except BenchflowError as error:
                issues += getattr(error, "issues", ()) or (error.issue(),)
            else:
                written, problem = _written(package, spec, done, options)
                issues += (*found, *problem)
    live = None if done is None else _live(done, written)
    return CheckReport(path, package.name, package.digest, tuple(issues), package.content_digest, live)


def require_output(path: Path) -> None:
    """Raise `UsageError` for a report that could not be written, before anything is run.

    An older report is replaced; any other file is not.
    """
    if not path.parent.is_dir():
        raise UsageError(f"The folder {path.parent} does not exist.", code="output-folder-missing")
    if not path.exists():
        return
    try:
        kind = json.loads(path.read_bytes()).get("kind")
    except (OSError, ValueError, AttributeError):
        kind = None
    if kind != LIVE_REPORT_KIND:
        raise UsageError(f"{path} already exists and is not an older report.", code="output-exists")


def _report_path_missing(spec: LiveSpec, options: LiveOptions) -> tuple[Issue, ...]:
    if not spec.leaderboard.required or spec.report is not None or options.report_output is not None:
        return ()
    path = f"{LIVE}.report"
    message = f"{path} is missing: a package that is required to suit a leaderboard needs a report"
    return (Issue("evidence-missing", "error", path, message, "task.md"),)


def _written(
    package: TaskPackage, spec: LiveSpec, report: LiveReport, options: LiveOptions
) -> tuple[str | None, tuple[Issue, ...]]:
    """Write the report and its sidecar; where to, or what prevented it."""
    if not options.write_report or (options.report_output is None and spec.report is None):
        return None, ()
    if options.report_output is not None:
        target, shown = options.report_output, options.report_output.name
    else:
        shown = spec.report or ""
        target = package.path / shown
    text = report.to_text().encode()
    try:
        if options.report_output is None:
            _require_inside(package.path, target)
            target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, text)
        write_atomic(target.with_name(target.name + SIDECAR), f"{sha256(text).hexdigest()}  {shown}\n")
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"The report could not be written to {target}: {reason}; name another file with --report-output"
        return None, (Issue("report-not-written", "warning", f"{LIVE}.report", message, "task.md"),)
    return str(target), ()


def _require_inside(root: Path, target: Path) -> None:
    """A link in the package must not lead the report to another place."""
    if target.is_symlink() or not target.parent.resolve().is_relative_to(root.resolve()):
        raise OSError("a link leads out of the package")


def _live(report: LiveReport, written: str | None) -> Mapping[str, Any]:
    return {
        "summary": plain(report.summary),
        "case_summaries": plain(report.case_summaries),
        "leaderboard_suitability": plain(report.leaderboard_suitability),
        "report": written,
    }
