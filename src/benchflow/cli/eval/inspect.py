"""Reading jobs: `bench eval list` and `compare`. None of them changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from benchflow.cli.arguments import PATH, json_option
from benchflow.cli.terminal import emit, emit_json, note, printable
from benchflow.errors import BenchflowError, UsageError
from benchflow.evaluation.compare import Comparison, compare, compare_all
from benchflow.evaluation.reports.job_report import comparison_lines, together_lines
from benchflow.evaluation.reports.text_table import number, table
from benchflow.evaluation.store import DEFAULT_JOBS_DIR
from benchflow.evaluation.summary import job_summary
from benchflow.record import Job, list_jobs
from benchflow.record.codec import plain

AnyJob = TypeVar("AnyJob", bound=Job)

jobs_dir_option = click.option(
    "--jobs-dir", type=PATH, metavar="DIR", default=DEFAULT_JOBS_DIR, show_default=True, help="Folder with the jobs."
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
    """List the jobs in a folder."""
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
            row["state"] + (f", shard {row['shard']['index']}/{row['shard']['count']}" if row["shard"] else ""),
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
    nothing = dict.fromkeys(("agent", "model", "shard", "planned", "total", "scored", "mean_reward"))
    return {"job": name, **nothing, "state": "damaged", "problem": problem}


def _sound_row(jobs_dir: Path, name: str) -> dict[str, Any]:
    job = Job.find(jobs_dir, name)
    record = job.record
    request = record.request
    summary = job_summary(readable(job)).statistics
    finished = summary.total >= record.planned
    state = "running" if job.running else "finished" if finished else "unfinished"
    return {
        "job": name,
        "agent": ", ".join(map(str, request.rotation)) or request.agent,
        "model": None if request.rotation else request.model,
        "shard": plain(request.shard),
        "state": state,
        "planned": record.planned,
        "total": summary.total,
        "scored": summary.scored,
        "mean_reward": summary.mean_reward.value,
        "problem": None,
    }


@click.command("compare")
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--fail-if-worse", is_flag=True, help="Exit with 1 if a later job is clearly worse than the first.")
@click.option("--same-digest", is_flag=True, help="Skip tasks whose content differs between the jobs.")
@click.option(
    "--plot", type=PATH, metavar="FILE.svg", help="Also write a figure; one job is enough. Needs the extra `plots`."
)
@jobs_dir_option
@json_option
def compare_command(
    names: tuple[str, ...],
    fail_if_worse: bool,
    same_digest: bool,
    plot: Path | None,
    jobs_dir: Path,
    as_json: bool,
) -> int:
    """Compare jobs on the tasks that all of them have scored.

    Two jobs are compared task by task; more are shown as a table of models and agents, each with its paired
    difference from the first. Tasks are paired by name, and marked `changed` if their content differs between the
    jobs. Exits with 1 if the jobs have no scored task in common.
    """
    jobs = [(name, readable(Job.find(jobs_dir, name))) for name in names]
    if plot is not None:
        from benchflow.cli.eval.plots import write_plot

        write_plot(jobs, plot)
        note(printable(f"Wrote {plot}"))
        if len(jobs) == 1:
            return 0
    if len(jobs) < 2:
        raise UsageError("Name at least two jobs to compare, or one with --plot FILE.svg.", code="one-job")
    if len(jobs) == 2:
        (first, one), (second, two) = jobs
        comparison = compare(first, one, second, two, same_digest=same_digest)
        _show(comparison.to_dict, comparison_lines(comparison), as_json=as_json)
        comparisons: tuple[Comparison, ...] = (comparison,)
    else:
        together = compare_all(jobs, same_digest=same_digest)
        _show(together.to_dict, together_lines(together), as_json=as_json)
        comparisons = together.against_first
    nothing = not any(comparison.tasks for comparison in comparisons)
    worse = fail_if_worse and any(comparison.verdict == "worse" for comparison in comparisons)
    return 1 if nothing or worse else 0


def _show(document: Callable[[], Any], lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        emit_json(document())
        return
    for line in lines:
        emit(printable(line))
