"""A job in words: tables and lines for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from benchflow.evaluation.compare import Compared, Comparison
from benchflow.evaluation.statistics import average
from benchflow.record import Bounds, Counted, Estimate, Result, Statistics, Summary, TaskId, labels

_LARGE: Final = 1e9


def summary_lines(job: Summary) -> Iterator[str]:
    """The result table of a job and its totals."""
    summary = job.statistics
    yield from table(("task", "attempts", "mean", "rewards", "unscored"), _task_rows(job.counted))
    yield ""
    yield f"{summary.scored} of {_count(summary.total, 'rollout')} scored, {_count(summary.tasks, 'task')}"
    if summary.mean_reward.value is not None:
        yield f"mean reward {_estimate(summary.mean_reward)}"
        yield f"pass rate   {_estimate(summary.pass_rate)}  (reward >= {summary.pass_threshold:g})"
    for k, at in summary.pass_at_k.items():
        if k != "1" and at.value is not None:
            hat = number(summary.pass_hat_k[k].value)
            yield f"pass@{k} {number(at.value)}   pass^{k} {hat}  ({_count(at.tasks, 'task')})"
    if summary.unscored:
        by = ", ".join(f"{count} {category}" for category, count in summary.unscored_by.items())
        between = _bound(summary.mean_reward_bounds)
        yield f"unscored {summary.unscored}: {by}; with them the mean would be between {between}"
    yield from _isolation_lines(summary)
    if job.superseded == 1:
        yield "1 result is of a package that has changed or is gone, and is left out"
    elif job.superseded:
        yield f"{job.superseded} results are of packages that have changed or are gone, and are left out"
    if summary.usage:
        yield "usage " + ", ".join(f"{name} {value:,.6g}" for name, value in summary.usage.items())


def _isolation_lines(summary: Statistics) -> Iterator[str]:
    """How many rollouts were verified at which rung, with what a reader has to know about some."""
    if summary.isolation:
        yield "isolation " + ", ".join(f"{rung} {count}" for rung, count in summary.isolation.items())
    if "open" in summary.isolation:
        count = _count(summary.isolation["open"], "rollout")
        yield f"OPEN: {count} verified in the agent's own box, where what the agent left can act on the verifier"
    if summary.wider.checked:
        checked = _count(summary.wider.checked, "rollout")
        yield f"{checked} scored below full with changes withheld; {summary.wider.higher} would score more with them"


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Two jobs by task, and the significance of their difference."""
    first, second = comparison.first, comparison.second
    rows = [
        (
            row.task,
            number(row.first),
            number(row.second),
            number(row.difference, "+"),
            "changed" if row.changed else "",
        )
        for row in comparison.tasks
    ]
    yield from table(("task", first, second, "difference", ""), rows)
    yield ""
    if comparison.difference.value is None:
        yield "No task was scored in both jobs."
    else:
        yield f"{second} − {first}: {_estimate(comparison.difference, '+')}: {comparison.verdict}"
    for name, only in ((first, comparison.only_first), (second, comparison.only_second)):
        if only:
            yield f"scored only in {name}: {', '.join(only)}"
    other = [f"{row.task} ({' and '.join(map('/'.join, row.isolation))})" for row in comparison.tasks if _apart(row)]
    if other:
        yield f"verified with different isolation: {', '.join(other)}"
    if comparison.dropped:
        yield f"left out, because their content differs: {', '.join(comparison.dropped)}"


def _apart(row: Compared) -> bool:
    """Whether a task was verified at other rungs in the second job, where both are known."""
    first, second = row.isolation
    return bool(first and second) and first != second


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
        mean = number(average(rewards)) if rewards else number(None)
        shown = " ".join(f"{reward:g}" for reward in rewards[:8]) + (" …" if len(rewards) > 8 else "")
        rows.append((name, str(len(attempts)), mean, shown, ", ".join(problems)))
    return rows


def number(value: float | None, sign: str = "") -> str:
    """A reward or mean for people: three decimals, a power of ten if it is very large, a dash if it is not known."""
    if value is None:
        return "–"
    return f"{value:{sign}.3f}" if abs(value) < _LARGE else f"{value:{sign}.3e}"


def _estimate(estimate: Estimate, sign: str = "") -> str:
    value = number(estimate.value, sign)
    counts = f"{_count(estimate.tasks, 'task')}, {_count(estimate.results, 'result')}"
    if estimate.low is None:
        return f"{value}  (interval not known: {counts})"
    return f"{value}  95 % [{number(estimate.low, sign)}, {number(estimate.high, sign)}], {counts}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bound(bounds: Bounds) -> str:
    return f"{number(bounds.low)} and {number(bounds.high)}"
