"""`bench eval merge`: the shards of a plan as one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from benchflow.cli.arguments import json_option
from benchflow.cli.eval.inspect import jobs_dir_option, readable
from benchflow.cli.terminal import columns, emit, emit_json, note, printable
from benchflow.evaluation.reports.job_report import summary_lines
from benchflow.evaluation.shards.merge import MergeReport, merge_jobs
from benchflow.evaluation.store import job_argument
from benchflow.record import Job, JobPlaces
from benchflow.record.codec import plain

_LISTED: Final = 5


@click.command("merge")
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--name", required=True, metavar="NEW", help="Name of the merged job.")
@jobs_dir_option
@json_option
def merge_command(names: tuple[str, ...], name: str, jobs_dir: Path, as_json: bool) -> int:
    """Merge jobs of one plan, such as its shards, into a new job. The source jobs are not changed.

    JOB is a name in the jobs folder, or a path. Packages, agents, models and settings must be the same. Paths of
    packages may differ; the merged job uses those of the first JOB. If shards are missing, `bench eval resume` runs
    the rest. Exits with 0 if every planned rollout was scored, otherwise with 1.
    """
    jobs = [Job.find(jobs_dir, each) for each in names]
    report = merge_jobs([readable(job) for job in jobs], jobs_dir, name)
    for sentence in _notes(report):
        note(printable(sentence))
    if as_json:
        emit_json(_document(report))
    else:
        for line in summary_lines(report.summary, JobPlaces(report.folder), width=columns()):
            emit(printable(line))
        emit(f"\nresults are in {report.folder}")
    complete = report.summary.statistics.scored == report.record.planned and not report.without_folder
    return 0 if complete else 1


def _notes(report: MergeReport) -> list[str]:
    """What the sources lack."""
    told = [f"The last line of the results of {name} is incomplete and left out." for name in report.torn]
    if report.without_folder:
        count = len(report.without_folder)
        shown = ", ".join(report.without_folder[:_LISTED]) + (" …" if count > _LISTED else "")
        results = "1 result is" if count == 1 else f"{count} results are"
        told.append(f"{results} without the folder of a rollout, which no job has: {shown}")
    if report.missing > 0:
        resume = f"bench eval resume {job_argument(report.folder)}"
        shards = _few(missing_shards(report))
        which = f" (not merged: shard {', '.join(shards)})" if shards else ""
        are, them = ("is", "it") if report.missing == 1 else ("are", "them")
        missing = f"{report.missing} of {report.record.planned} rollouts {are} missing{which}"
        told.append(f"{missing}; to run {them}: {resume}")
    return told


def _few(shards: list[str]) -> list[str]:
    return [*shards[:_LISTED], "…"] if len(shards) > _LISTED else shards


def missing_shards(report: MergeReport) -> list[str]:
    """The shards that were not merged, where all jobs are shards of equally many."""
    shards = [part.shard for part in report.record.merged]
    counts = {shard.count if shard is not None else 0 for shard in shards}
    if len(counts) != 1 or 0 in counts:
        return []
    count = counts.pop()
    found = {shard.index for shard in shards if shard is not None}
    return [f"{index}/{count}" for index in range(1, count + 1) if index not in found]


def _document(report: MergeReport) -> dict[str, Any]:
    return {
        "job": report.folder.name,
        "merged": plain(report.record.merged),
        "planned": report.record.planned,
        "missing": report.missing,
        "missing_shards": missing_shards(report),
        "without_folder": list(report.without_folder),
        "torn": list(report.torn),
        "summary": report.summary.to_dict(),
    }
