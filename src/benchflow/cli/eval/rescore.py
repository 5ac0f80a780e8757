"""`bench eval rescore`: scores the rollouts of a job again with the current verifiers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import anyio
import click

from benchflow.cli.arguments import json_option
from benchflow.cli.eval.inspect import jobs_dir_option, readable
from benchflow.cli.eval.run import INTERRUPTED, concurrency_option
from benchflow.cli.eval.watching import Watching, attempt_name, in_short
from benchflow.cli.terminal import columns, emit, emit_json, note, printable
from benchflow.evaluation.reports.job_report import summary_lines
from benchflow.evaluation.rescore import RescoreItem, Rescorer, RescoreReport
from benchflow.evaluation.store import JobStore, job_argument
from benchflow.evaluation.summary import job_summary
from benchflow.evaluation.work import WorkItem
from benchflow.record import Result, TaskId
from benchflow.rollout.drivers.replay import counts

_LISTED: Final = 20


@click.command("rescore")
@click.argument("job")
@concurrency_option
@jobs_dir_option
@json_option
def rescore_command(job: str, concurrency: int, jobs_dir: Path, as_json: bool) -> int:
    """Rescore the rollouts of a job with the current verifiers of their packages, without running any agent.

    Earlier verdicts are kept; the newest counts. A rollout whose workspace was not kept keeps its verdict, and the
    reason is shown. Exits with 0 if every rollout was scored, otherwise with 1.
    """
    store = JobStore.open(jobs_dir, job)
    try:
        rescorer = Rescorer(readable(store))
        items = rescorer.plan()
        watching = _Changes(len(items), rescorer.labels)
        try:
            report = anyio.run(lambda: rescorer.run(items, concurrency=concurrency, observer=watching))
        finally:
            watching.close()
    finally:
        store.close()
    summary = rescorer.summary or job_summary(store)
    if as_json:
        emit_json({"job": summary.job, **report.to_dict(), "summary": summary.to_dict()})
    else:
        for line in (
            *summary_lines(summary, store.places, width=columns()),
            "",
            *_report_lines(report, rescorer.labels_of_rollouts()),
        ):
            emit(printable(line))
        emit(f"results are in {store.folder}")
    if not report.completed:
        note(f"Interrupted. To continue: bench eval rescore {job_argument(store.folder)}")
        return INTERRUPTED
    return 0 if not report.not_rescored and summary.statistics.unscored == 0 else 1


class _Changes(Watching):
    """Shows the previous score of every rollout."""

    def task(self, item: WorkItem) -> TaskId:
        return item.result.task.id if isinstance(item, RescoreItem) else item.task.id

    def describe(self, item: WorkItem, result: Result) -> str:
        if not isinstance(item, RescoreItem) or not counts(result):
            reason = result.error.message if result.error is not None else ""
            return f"keeps its verdict: {in_short(reason)}"
        return f"{_score(item.result)} → {_score(result)}"


def _score(result: Result) -> str:
    if result.error is not None:
        return f"unscored ({result.error.category}/{result.error.code})"
    return f"{result.reward:g}"


def _report_lines(report: RescoreReport, names: Mapping[str, str]) -> list[str]:
    different = sum(item["before"] != item["after"] for item in report.rescored)
    scored = len(report.rescored) + report.already
    rollouts = "1 rollout" if scored == 1 else f"{scored} rollouts"
    lines = [f"{rollouts} rescored, {different} with a different score"]
    if report.already:
        lines[0] += f"; {report.already} were already done before the interruption"
    for task, parts in sorted(report.changed_packages.items()):
        lines.append(f"{task} has also changed in {', '.join(parts)} since its rollouts")
    lines += [
        f"{attempt_name(names[item.rollout], item.attempt)} keeps its verdict: {in_short(item.reason)}"
        for item in report.not_rescored[:_LISTED]
    ]
    if len(report.not_rescored) > _LISTED:
        lines.append(f"{len(report.not_rescored) - _LISTED} more keep their verdict; --json lists all")
    return lines
