"""A job in words: tables and lines for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from benchflow.evaluation.compare import Compared, Comparison, Together
from benchflow.evaluation.reports.arena_report import arena_lines
from benchflow.evaluation.reports.text_table import estimate_cell, number, table
from benchflow.evaluation.statistics import average
from benchflow.record import Bounds, Counted, Estimate, JobPlaces, Statistics, Summary, TaskId, labels
from benchflow.record.outcome import FULL
from benchflow.record.reading.rollout_story import why_not_full

_LISTED: Final = 20
"""Tasks that a line names."""
_UNLIKELY: Final = 0.05
"""Chances below it are called so."""
_LONGEST: Final = 160
"""Characters of a reason in a table."""


def summary_lines(job: Summary, places: JobPlaces | None = None, *, width: int | None = None) -> Iterator[str]:
    """The result table of a job and its totals, no table row wider than `width`.

    Where the folder of the job is given, what verifiers left is asked why a reward is not 1.
    """
    summary = job.statistics
    rows = list(_task_rows(job.counted, places))
    yield from table(("task", "attempts", "mean", "rewards", "isolation", "why not 1"), rows, width=width)
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
    yield from _substitute_lines(job.counted)
    if job.superseded == 1:
        yield "1 result is left out, because its package has changed or is gone"
    elif job.superseded:
        yield f"{job.superseded} results are left out, because their packages have changed or are gone"
    if job.shard is not None:
        ratings = " and ratings" if summary.arena is not None else ""
        yield f"statistics{ratings} are of shard {job.shard} only; to join the shards of a plan: bench eval merge"
    if summary.usage:
        yield "usage " + ", ".join(f"{name} {value:,.6g}" for name, value in summary.usage.items())
    if summary.arena is not None:
        yield from arena_lines(summary.arena)


def _isolation_lines(summary: Statistics) -> Iterator[str]:
    """How many rollouts were verified at which rung, with what a reader has to know about some."""
    if summary.isolation:
        yield "isolation " + ", ".join(f"{rung} {count}" for rung, count in summary.isolation.items())
    if "open" in summary.isolation:
        count = _count(summary.isolation["open"], "rollout")
        yield f"OPEN: {count} verified in the agent's own sandbox, where its leftovers can affect the verifier"
    if summary.wider.checked:
        checked = _count(summary.wider.checked, "rollout")
        yield f"{checked} below full reward with changes withheld; {summary.wider.higher} would score more with them"


def _substitute_lines(counted: Sequence[Counted]) -> Iterator[str]:
    """Which rollouts ran on something else than their package names."""
    replaced = [each.result.sandbox for each in counted if each.result.sandbox.fidelity == "substituted"]
    if replaced:
        bases = ", ".join(sorted({str(sandbox.base) for sandbox in replaced}))
        yield f"* {_count(len(replaced), 'rollout')} ran on a substitute for the image of the package: {bases}"


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
    yield from _flip_lines(comparison)
    for name, only in ((first, comparison.only_first), (second, comparison.only_second)):
        if only:
            yield f"scored only in {name}: {', '.join(only)}"
    other = [f"{row.task} ({' and '.join(map('/'.join, row.isolation))})" for row in comparison.tasks if _apart(row)]
    if other:
        yield f"verified with different isolation: {', '.join(other)}"
    if comparison.dropped:
        yield f"left out, because their content differs: {', '.join(comparison.dropped)}"


def _flip_lines(comparison: Comparison) -> Iterator[str]:
    """Which tasks pass in one job only, and how likely that is by chance."""
    for name, tasks in ((comparison.second, comparison.gained), (comparison.first, comparison.lost)):
        if tasks:
            shown = ", ".join(tasks[:_LISTED]) + (f" and {len(tasks) - _LISTED} more" if len(tasks) > _LISTED else "")
            yield f"pass only in {name} ({len(tasks)}): {shown}"
    if comparison.flip_chance is not None:
        gained, lost = len(comparison.gained), len(comparison.lost)
        chance = "unlikely to be chance" if comparison.flip_chance < _UNLIKELY else "may be chance"
        yield f"{gained} gained, {lost} lost: {chance} (sign test, p = {comparison.flip_chance:.2g})"


def together_lines(together: Together) -> Iterator[str]:
    """Several jobs: a table of models and agents, each against the first, and the flips."""
    players = together.players
    shared = _count(together.shared, "task")
    if not together.shared:
        yield "No task was scored in all jobs."
    else:
        agents = list(dict.fromkeys(player.agent for player in players))
        models = list(dict.fromkeys(player.model or "–" for player in players))
        if len({(player.agent, player.model) for player in players}) == len(players):
            cells = {(player.model or "–", player.agent): estimate_cell(player.mean) for player in players}
            rows = [(model, *(cells.get((model, agent), "") for agent in agents)) for model in models]
            yield f"mean reward on the {shared} that all jobs have scored, 95 % intervals"
            yield from table(("model", *agents), rows, keep_last=True)
            yield ""
    rows = []
    against = (None, *together.against_first)
    for player, comparison in zip(players, against, strict=True):
        cost = "" if player.cost_usd is None else f"${player.cost_usd:,.4f}"
        difference = "" if comparison is None else estimate_cell(comparison.difference, "+")
        flips = "" if comparison is None else f"+{len(comparison.gained)} −{len(comparison.lost)}"
        verdict = "" if comparison is None else comparison.verdict
        rows.append(
            (player.job, estimate_cell(player.scored), str(player.scored.tasks), difference, flips, verdict, cost)
        )
    yield from table(("job", "mean reward", "tasks", f"− {players[0].job}", "flips", "", "cost"), rows)
    for comparison in together.against_first:
        if comparison.gained or comparison.lost:
            yield ""
            yield f"{comparison.second} against {comparison.first}:"
            yield from (f"  {line}" for line in _flip_lines(comparison))


def _apart(row: Compared) -> bool:
    """Whether a task was verified at other rungs in the second job, where both are known."""
    first, second = row.isolation
    return bool(first and second) and first != second


def _task_rows(counted: Sequence[Counted], places: JobPlaces | None) -> Iterator[tuple[str, ...]]:
    grouped: dict[TaskId, list[Counted]] = defaultdict(list)
    for each in counted:
        grouped[each.result.task.id].append(each)
    for task_id, name in sorted(labels(grouped).items(), key=lambda item: item[1]):
        attempts = sorted(grouped[task_id], key=lambda each: each.result.attempt)
        rewards = [each.result.reward for each in attempts if each.result.reward is not None]
        mean = number(average(rewards)) if rewards else number(None)
        shown = " ".join(f"{reward:g}" for reward in rewards[:8]) + (" …" if len(rewards) > 8 else "")
        yield name, str(len(attempts)), mean, shown, _verified(attempts), _why(attempts, places)


def _verified(attempts: Sequence[Counted]) -> str:
    """The rungs of the verifications of a task, and whether it ran on another image than it names."""
    rungs = sorted({each.result.rung for each in attempts if each.result.rung is not None})
    substituted = any(each.result.sandbox.fidelity == "substituted" for each in attempts)
    return "/".join(rungs) + ("*" if substituted else "")


def _why(attempts: Sequence[Counted], places: JobPlaces | None) -> str:
    """Why the first attempt without a full reward has none, and how many there are."""
    low = [each for each in attempts if (each.result.reward or 0.0) < FULL]
    if not low:
        return ""
    rollout, result = low[0]
    verdict = None if places is None else places.rollout(rollout).newest()
    text = " ".join(why_not_full(result, verdict)[0].text.split())
    count = f"{len(low)} of {len(attempts)}: " if len(attempts) > 1 else ""
    return count + (text if len(text) <= _LONGEST else text[: _LONGEST - 2].rstrip() + " …")


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
