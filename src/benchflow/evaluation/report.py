"""A job in words: tables and lines for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchflow.evaluation.summary import JobSummary
from benchflow.record import Counted, Result, TaskId, labels


def summary_lines(job: JobSummary) -> Iterator[str]:
    """The result table of a job and its totals."""
    summary = job.statistics
    yield from table(("task", "attempts", "mean", "rewards", "unscored"), _task_rows(job.counted))
    yield ""
    rollouts = _count(summary["total"], "rollout")
    yield f"{summary['scored']} of {rollouts} scored, {_count(summary['tasks'], 'task')}"
    reward, bounds = summary["mean_reward"], summary["mean_reward_bounds"]
    if reward["value"] is not None:
        yield f"mean reward {_estimate(reward)}"
        yield f"pass rate   {_estimate(summary['pass_rate'])}  (reward >= {summary['pass_threshold']:g})"
    for k, estimate in summary["pass_at_k"].items():
        if k != "1" and estimate["value"] is not None:
            hat = summary["pass_hat_k"][k]["value"]
            yield f"pass@{k} {estimate['value']:.3f}   pass^{k} {hat:.3f}  ({_count(estimate['tasks'], 'task')})"
    if summary["unscored"]:
        by = ", ".join(f"{count} {category}" for category, count in summary["unscored_by"].items())
        yield f"unscored {summary['unscored']}: {by}; with them the mean would be between {_bound(bounds)}"
    if job.superseded == 1:
        yield "1 result is of a package that has changed or is gone, and is left out"
    elif job.superseded:
        yield f"{job.superseded} results are of packages that have changed or are gone, and are left out"
    if summary["usage"]:
        yield "usage " + ", ".join(f"{name} {value:,.6g}" for name, value in summary["usage"].items())


def comparison_lines(comparison: Mapping[str, Any]) -> Iterator[str]:
    """Two jobs by task, and the significance of their difference."""
    first, second = comparison["first"], comparison["second"]
    rows = [
        (
            row["task"],
            f"{row['first']:.3f}",
            f"{row['second']:.3f}",
            f"{row['second'] - row['first']:+.3f}",
            "changed" if row["changed"] else "",
        )
        for row in comparison["tasks"]
    ]
    yield from table(("task", first, second, "difference", ""), rows)
    yield ""
    if comparison["difference"]["value"] is None:
        yield "No task was scored in both jobs."
    else:
        yield f"{second} − {first}: {_estimate(comparison['difference'], sign='+')}: {comparison['verdict']}"
    for name, key in ((first, "only_first"), (second, "only_second")):
        if comparison[key]:
            yield f"scored only in {name}: {', '.join(comparison[key])}"
    if comparison["dropped"]:
        yield f"left out, because their content differs: {', '.join(comparison['dropped'])}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as they need to be, separated by two spaces."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _task_rows(counted: Sequence[Counted]) -> list[tuple[str, ...]]:
    grouped: dict[TaskId, list[Result]] = defaultdict(list)
    for _, result in counted:
        grouped[result.task.id].append(result)
    rows: list[tuple[str, ...]] = []
    for task_id, name in sorted(labels(grouped).items(), key=lambda item: item[1]):
        attempts = grouped[task_id]
        rewards = [r.reward for r in sorted(attempts, key=lambda r: r.attempt) if r.reward is not None]
        problems = sorted({f"{r.error.category}/{r.error.code}" for r in attempts if r.error is not None})
        mean = f"{sum(rewards) / len(rewards):.3f}" if rewards else "–"
        shown = " ".join(f"{reward:g}" for reward in rewards[:8]) + (" …" if len(rewards) > 8 else "")
        rows.append((name, str(len(attempts)), mean, shown, ", ".join(problems)))
    return rows


def _estimate(estimate: Mapping[str, Any], sign: str = "") -> str:
    value = f"{estimate['value']:{sign}.3f}"
    counts = f"{_count(estimate['tasks'], 'task')}, {_count(estimate['results'], 'result')}"
    if estimate["low"] is None:
        return f"{value}  (interval not known: {counts})"
    return f"{value}  95 % [{estimate['low']:{sign}.3f}, {estimate['high']:{sign}.3f}], {counts}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bound(bounds: Mapping[str, Any]) -> str:
    return f"{bounds['low']:.3f} and {bounds['high']:.3f}"
