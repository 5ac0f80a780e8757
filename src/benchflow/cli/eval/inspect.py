"""Reading jobs: `bench eval list` and `compare`. None of them changes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import click

from benchflow.cli.arguments import PATH, json_option
from benchflow.cli.terminal import emit, emit_json, note, printable
from benchflow.errors import BenchflowError, UsageError
from benchflow.evaluation.compare import compare
from benchflow.evaluation.report import comparison_lines, number, table
from benchflow.evaluation.store import DEFAULT_JOBS_DIR
from benchflow.evaluation.summary import job_summary
from benchflow.record import Job, list_jobs

AnyJob = TypeVar("AnyJob", bound=Job)

jobs_dir_option = click.option(
    "--jobs-dir", type=PATH, metavar="DIR", default=DEFAULT_JOBS_DIR, show_default=True, help="Folder of the jobs."
)


def readable(job: AnyJob) -> AnyJob:
    """The job, after lines of its results that are damaged were named on stderr."""
    for line in job.results.damaged:
        note(printable(f"{job.places.results}, line {line.number} is damaged and left out: {line.reason}"))
    return job


@click.command("list")
@jobs_dir_option
@json_option
def list_command(jobs_dir: Path, as_json: bool) -> int:
    """List the jobs of a folder."""
    if jobs_dir.exists() and not jobs_dir.is_dir():
        raise UsageError(f"{jobs_dir} is not a folder.", code="not-a-folder")
    rows = [_row(jobs_dir, name) for name in list_jobs(jobs_dir)]
    if as_json:
        emit_json({"jobs": rows})
        return 0
    if not rows:
        emit(f"{jobs_dir} has no jobs. To start one, run: bench eval run PATH --agent oracle")
        return 0
    cells = [
        (
            row["job"],
            row["agent"] or "",
            row["state"],
            "–" if row["problem"] else f"{row['scored']}/{max(row['total'], row['planned'] or 0)}",
            number(row["mean_reward"]),
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
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OSError,
        ArithmeticError,
    ) as error:  # a document of another shape
        problem = f"Its records cannot be read: {type(error).__name__}: {error}"
    nothing = dict.fromkeys(("agent", "model", "planned", "total", "scored", "mean_reward"))
    return {"job": name, **nothing, "state": "damaged", "problem": problem}


def _sound_row(jobs_dir: Path, name: str) -> dict[str, Any]:
    job = Job.find(jobs_dir, name)
    record = job.record
    summary = job_summary(readable(job)).statistics
    finished = summary.total >= record.planned
    state = "running" if job.running else "finished" if finished else "unfinished"
    return {
        "job": name,
        "agent": record.request.agent,
        "model": record.request.model,
        "state": state,
        "planned": record.planned,
        "total": summary.total,
        "scored": summary.scored,
        "mean_reward": summary.mean_reward.value,
        "problem": None,
    }


@click.command("compare")
@click.argument("first")
@click.argument("second")
@click.option("--fail-if-worse", is_flag=True, help="Exit with 1 if the second job is clearly worse.")
@click.option("--same-digest", is_flag=True, help="Leave out tasks whose content differs between the jobs.")
@jobs_dir_option
@json_option
def compare_command(
    first: str, second: str, fail_if_worse: bool, same_digest: bool, jobs_dir: Path, as_json: bool
) -> int:
    """Compare two jobs on the tasks that both have scored; exits with 1 if there are none.

    Tasks pair by name. One whose content differs between the jobs is marked `changed`.
    """
    jobs = [readable(Job.find(jobs_dir, name)) for name in (first, second)]
    comparison = compare(first, jobs[0], second, jobs[1], same_digest=same_digest)
    if as_json:
        emit_json(comparison.to_dict())
    else:
        for line in comparison_lines(comparison):
            emit(printable(line))
    failed = not comparison.tasks or (fail_if_worse and comparison.verdict == "worse")
    return 1 if failed else 0
