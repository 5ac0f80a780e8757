"""`bench eval watch`: what each running rollout of a job does now, read from its folder, until the job ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import json_option
from benchflow.cli.eval.inspect import jobs_dir_option, readable
from benchflow.cli.eval.node_lines import node_lines
from benchflow.cli.eval.watching import attempt_name, live_lines
from benchflow.cli.terminal import LiveBlock, columns, emit, emit_json, is_terminal, note, printable
from benchflow.evaluation.reports.job_report import summary_lines
from benchflow.evaluation.store import job_argument
from benchflow.evaluation.summary import job_summary
from benchflow.record import Job, JobNode, JobNodes
from benchflow.record.reading.live_rollouts import LiveResults, LiveRollout, LiveRollouts


@click.command("watch")
@click.argument("job")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    metavar="SEC",
    default=1.0,
    show_default=True,
    help="Time between two updates.",
)
@click.option("--once", is_flag=True, help="Print the current state once, and exit.")
@jobs_dir_option
@json_option
def watch_command(job: str, interval: float, once: bool, jobs_dir: Path, as_json: bool) -> int:
    """Follow a running job until it ends; works from any terminal.

    Shows the phase and the last action of each running rollout, and the tokens and cost that its agent has reported;
    for a job on a cluster, also the nodes. With --json, prints the state once. Changes nothing.
    """
    found = Job.find(jobs_dir, job)
    live = LiveRollouts(found.folder)
    if as_json:
        emit_json(_document(found, live))
        return 0
    if once:
        results = LiveResults(found.folder)
        results.look()
        for line in state_lines(found, results, live):
            emit(line)
        return 0
    _follow(found, live, interval)
    ended = readable(Job(found.folder))
    summary = job_summary(ended)
    for line in summary_lines(summary, ended.places, width=columns()):
        emit(printable(line))
    missing = ended.record.planned - len(summary.counted)
    if missing > 0:
        emit(printable(f"{missing} more planned; to continue: bench eval resume {job_argument(ended.folder)}"))
    return 0


def _follow(job: Job, live: LiveRollouts, interval: float) -> None:
    """Show the state of a job until no process runs it; without a terminal only the results as they come."""
    block = LiveBlock(sys.stdout) if is_terminal(sys.stdout) else None
    results = LiveResults(job.folder)
    while True:
        running = job.running  # asked first: what was written before the end is still shown below
        for _, result in results.look():
            told = f"{result.reward:g}" if result.error is None else f"unscored ({result.error.category})"
            line = printable(f"{attempt_name(result.task.name, result.attempt)}: {told}")
            block.above(line) if block is not None else emit(line)
        if not running:
            break
        if block is not None:
            block.draw(state_lines(job, results, live))
        time.sleep(interval)
    if block is not None:
        block.draw([])
    note("The job is not running.")


def state_lines(job: Job, results: LiveResults, live: LiveRollouts) -> list[str]:
    """One line for the job, one for each node of its cluster, and one for each running rollout."""
    done, unscored = _counts(job, results)
    failed = f", {unscored} unscored" if unscored else ""
    running, nodes = _now(job, live)
    lines = [*node_lines(nodes, columns()), *live_lines(running, columns())]
    shard = job.record.request.shard
    part = "" if shard is None else f" of shard {shard}"
    return [f"{done} of {job.record.planned}{part} done{failed}, {len(running)} running", *lines]


def _now(job: Job, live: LiveRollouts) -> tuple[Sequence[LiveRollout], JobNodes | None]:
    """What runs, and where; nothing, whatever files say, once no process runs the job: it may have been killed."""
    return (live.look(), live.nodes()) if job.running else ((), None)


def _counts(job: Job, results: LiveResults) -> tuple[int, int]:
    """How many rollouts have ended, and how many of them without a score."""
    superseded = frozenset(job.record.superseded)
    counted = [each for each in results.results if each.result.key not in superseded]
    return len(counted), sum(each.result.error is not None for each in counted)


def _document(job: Job, live: LiveRollouts) -> dict[str, Any]:
    from benchflow.record.codec import plain

    results = LiveResults(job.folder)
    results.look()
    done, unscored = _counts(job, results)
    running, nodes = _now(job, live)
    return {
        "job": job.folder.name,
        "shard": plain(job.record.request.shard),
        "running": job.running,
        "planned": job.record.planned,
        "done": done,
        "unscored": unscored,
        "rollouts": [plain(rollout) for rollout in running],
        **(_cluster(nodes) if nodes is not None else {}),
    }


def _cluster(nodes: JobNodes) -> dict[str, Any]:
    return {"nodes": [_node(node) for node in nodes.nodes], "waiting": nodes.waiting, "message": nodes.message}


def _node(node: JobNode) -> dict[str, Any]:
    """A node, with the number of its rollouts: what they do is shown among all rollouts."""
    from benchflow.record.codec import plain

    return {**plain(replace(node, rollouts=())), "running": len(node.rollouts)}
