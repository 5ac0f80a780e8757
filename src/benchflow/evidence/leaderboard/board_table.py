"""A leaderboard in words: one row per agent and model, the paired differences, and what a reader has to know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchflow.evaluation.reports.arena_report import arena_lines
from benchflow.evaluation.reports.text_table import number, table
from benchflow.evidence.leaderboard.verdicts_again import VerdictReport
from benchflow.record import Estimate
from benchflow.record.leaderboard_index import Leaderboard, ListedJob

_LISTED: Final = 20
"""Verdicts that were not computed again and are shown one by one."""


def board_lines(board: Leaderboard) -> Iterator[str]:
    """The table, best first. Jobs are ranked with unscored results taken as 0, so that failing never pays."""
    jobs = sorted(board.jobs, key=_rank, reverse=True)
    yield from table(
        ("model", "agent", "tasks", "attempts", "scored", "mean reward", "unscored as 0"), [*map(_row, jobs)]
    )
    if board.comparisons:
        names = {job.name: f"{job.agent} {job.model or ''}".strip() for job in jobs}
        yield ""
        yield "differences of mean reward, paired by task"
        for one in board.comparisons:
            between = f"{names[one.second]} − {names[one.first]}"
            yield f"  {between}: {_estimate(one.difference, '+')}: {one.verdict}"
    for job in jobs:
        if job.marks:
            yield ""
            yield f"{job.name} ({job.agent})"
            yield from (f"  {mark}" for mark in job.marks)
        if job.statistics.arena is not None:
            yield from arena_lines(job.statistics.arena)


def _rank(job: ListedJob) -> tuple[bool, float]:
    low = job.statistics.mean_reward_bounds.low
    return low is not None, low or 0.0


def _row(job: ListedJob) -> tuple[str, ...]:
    statistics = job.statistics
    return (
        job.model or "–",
        job.agent,
        str(statistics.tasks),
        str(job.attempts),
        f"{statistics.scored}/{statistics.total}",
        _estimate(statistics.mean_reward),
        number(statistics.mean_reward_bounds.low),
    )


def _estimate(estimate: Estimate, sign: str = "") -> str:
    if estimate.low is None or estimate.high is None:
        return number(estimate.value, sign)
    return f"{number(estimate.value, sign)} [{number(estimate.low, sign)}, {number(estimate.high, sign)}]"


def verdict_lines(report: VerdictReport) -> Iterator[str]:
    """How many verdicts were confirmed, and why the others were not."""
    total = report.confirmed + len(report.not_recomputed) + len(report.problems)
    yield f"{report.confirmed} of {total} verdicts recomputed and confirmed"
    for one in report.not_recomputed[:_LISTED]:
        yield f"  {one.job}: {one.task}, attempt {one.attempt} was not: {one.reason}"
    if len(report.not_recomputed) > _LISTED:
        yield f"  {len(report.not_recomputed) - _LISTED} more were not; --json lists all"
