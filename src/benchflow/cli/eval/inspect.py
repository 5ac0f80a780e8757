"""Looking at jobs: `bench eval list`, `show` and `compare`. None of them changes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import PATH, json_option
from benchflow.cli.terminal import emit, emit_json, printable
from benchflow.errors import BenchflowError, UsageError
from benchflow.evaluation.compare import compare
from benchflow.evaluation.report import comparison_lines, summary_lines, table
from benchflow.evaluation.statistics import Outcome
from benchflow.evaluation.store import JobStore, is_running, list_jobs
from benchflow.evaluation.summary import job_summary, outcomes

jobs_dir_option = click.option(
    "--jobs-dir", type=PATH, default="jobs", show_default=True, help="The folder that holds the jobs."
)


@click.command("list")
@jobs_dir_option
@json_option
def list_command(jobs_dir: Path, as_json: bool) -> int:
    """Show the jobs of a folder."""
    if jobs_dir.exists() and not jobs_dir.is_dir():
        raise UsageError(f"{jobs_dir} is no folder.", code="not-a-folder")
    rows = [_row(jobs_dir, name) for name in list_jobs(jobs_dir)]
    if as_json:
        emit_json({"jobs": rows})
        return 0
    if not rows:
        emit(f"There are no jobs in {jobs_dir}. Start one: bench eval run PATH --agent oracle")
        return 0
    cells = [
        (
            row["job"],
            row["agent"] or "",
            row["state"],
            "–" if row["problem"] else f"{row['scored']}/{max(row['total'], row['planned'] or 0)}",
            _mean(row["mean_reward"]),
        )
        for row in rows
    ]
    for line in table(("job", "agent", "state", "scored", "mean reward"), cells):
        emit(printable(line))
    for row in rows:
        if row["problem"]:
            emit(printable(f"{row['job']} is damaged: {row['problem']}"))
    return 0


def _row(jobs_dir: Path, name: str) -> dict[str, Any]:
    try:
        return _sound_row(jobs_dir, name)
    except BenchflowError as error:
        problem = str(error)
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:  # a document of another shape
        problem = f"Its records cannot be read: {type(error).__name__}: {error}"
    nothing = dict.fromkeys(("agent", "model", "planned", "total", "scored", "mean_reward"))
    return {"job": name, **nothing, "state": "damaged", "problem": problem}


def _sound_row(jobs_dir: Path, name: str) -> dict[str, Any]:
    store = JobStore.read(jobs_dir, name)
    summary = job_summary(store)
    planned = store.job.get("planned")
    finished = planned is None or summary["total"] >= planned
    state = "running" if is_running(store.folder) else "finished" if finished else "unfinished"
    return {
        "job": name,
        "agent": store.job.get("agent"),
        "model": store.job.get("model"),
        "state": state,
        "planned": planned,
        "total": summary["total"],
        "scored": summary["scored"],
        "mean_reward": summary["mean_reward"]["value"],
        "problem": None,
    }


def _mean(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "–"


@click.command("show")
@click.argument("job")
@jobs_dir_option
@json_option
def show_command(job: str, jobs_dir: Path, as_json: bool) -> int:
    """Show what a job says; JOB is a name below the jobs folder, or a path."""
    store = JobStore.read(jobs_dir, job)
    summary = job_summary(store)
    if as_json:
        emit_json(summary)
        return 0
    description = store.job
    emit(printable(f"{summary['job']}: agent {description.get('agent')}, model {description.get('model') or '–'}"))
    for line in summary_lines(summary):
        emit(printable(line))
    missing = (description.get("planned") or 0) - summary["total"]
    if missing > 0 and not is_running(store.folder):
        emit(printable(f"{missing} more planned; go on with: bench eval resume {summary['job']}"))
    emit(f"\nresults are in {store.folder}")
    return 0


@click.command("compare")
@click.argument("first")
@click.argument("second")
@click.option("--fail-if-worse", is_flag=True, help="End with 1 when the second job is clearly worse.")
@jobs_dir_option
@json_option
def compare_command(first: str, second: str, fail_if_worse: bool, jobs_dir: Path, as_json: bool) -> int:
    """Compare two jobs over the tasks that both have scored; ends with 1 when there are none."""
    comparison = compare(first, _outcomes(jobs_dir, first), second, _outcomes(jobs_dir, second))
    if as_json:
        emit_json(comparison.to_dict())
    else:
        for line in comparison_lines(comparison.to_dict()):
            emit(printable(line))
    failed = not comparison.tasks or (fail_if_worse and comparison.verdict == "worse")
    return 1 if failed else 0


def _outcomes(jobs_dir: Path, job: str) -> list[Outcome]:
    return outcomes(JobStore.read(jobs_dir, job))
