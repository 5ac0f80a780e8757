"""Two jobs side by side: by task, over the tasks that both have scored."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchflow.evaluation.statistics import average, mean, span_of
from benchflow.record import Counted, Estimate, TaskId, labels, pair
from benchflow.record.codec import plain


class Results(Protocol):
    """A job, or what was published of one."""

    @property
    def counted(self) -> tuple[Counted, ...]:
        """The results that count."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One task that both jobs have scored."""

    task: str
    """Its label in the first job."""
    first: float
    second: float
    changed: bool
    """Whether its content differs between the jobs."""
    isolation: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """The rungs of its verifications in each job."""

    @property
    def difference(self) -> float:
        """Second minus first."""
        return _representable(self.second - self.first)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of mean rewards, paired by task."""

    first: str
    second: str
    difference: Estimate
    """Second minus first, over the tasks that both have scored."""
    tasks: tuple[Compared, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    """Tasks left out because their content differs."""

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or `no clear difference` of the second job."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None or low <= 0 <= high:
            return "no clear difference"
        return "better" if low > 0 else "worse"

    def to_dict(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "second": self.second,
            "difference": plain(self.difference),
            "verdict": self.verdict,
            "tasks": [
                {
                    "task": item.task,
                    "first": item.first,
                    "second": item.second,
                    "changed": item.changed,
                    "isolation": {"first": list(item.isolation[0]), "second": list(item.isolation[1])},
                }
                for item in self.tasks
            ],
            "only_first": list(self.only_first),
            "only_second": list(self.only_second),
            "dropped": list(self.dropped),
        }


def compare(
    first_name: str, first: Results, second_name: str, second: Results, *, same_digest: bool = False
) -> Comparison:
    """Pair two jobs by task; tasks that one of them has not scored are named, not averaged.

    A task whose content differs is kept and marked, or dropped with `same_digest`.
    """
    left, right = _task_means(first), _task_means(second)
    rungs_left, rungs_right = _rungs(first), _rungs(second)
    order_left, order_right = _in_order_of_path(first), _in_order_of_path(second)
    pairs, alone_left, alone_right = pair(order_left, order_right)
    names_left, names_right = labels(order_left), labels(order_right)
    dropped = [both for both in pairs if same_digest and both.changed]
    kept = [both for both in pairs if both not in dropped]
    tasks = []
    for both in kept:
        if both.first in left and both.second in right:
            name = names_left[both.first]
            rungs = rungs_left.get(both.first, ()), rungs_right.get(both.second, ())
            tasks.append(Compared(name, left[both.first], right[both.second], both.changed, rungs))
    only_first = [*(both.first for both in kept if both.second not in right), *alone_left]
    only_second = [*(both.second for both in kept if both.first not in left), *alone_right]
    return Comparison(
        first_name,
        second_name,
        _difference(tasks),
        tuple(tasks),
        tuple(names_left[task] for task in only_first if task in left),
        tuple(names_right[task] for task in only_second if task in right),
        tuple(names_left[both.first] for both in dropped),
    )


def _difference(tasks: Sequence[Compared]) -> Estimate:
    """The mean difference; its interval has no impossible values."""
    low, high = span_of(reward for item in tasks for reward in (item.first, item.second))
    most = _representable(high - low)
    return mean({item.task: [item.difference] for item in tasks}, (-most, most))


def _representable(number: float) -> float:
    """The number, or the nearest one that is not infinite."""
    return max(-sys.float_info.max, min(sys.float_info.max, number))


def _in_order_of_path(job: Results) -> list[TaskId]:
    parts = sorted((result.task for _, result in job.counted), key=lambda part: part.path)
    return list(dict.fromkeys(part.id for part in parts))


def _rungs(job: Results) -> dict[TaskId, tuple[str, ...]]:
    found: dict[TaskId, set[str]] = defaultdict(set)
    for _, result in job.counted:
        if result.rung is not None:
            found[result.task.id].add(result.rung)
    return {task: tuple(sorted(rungs)) for task, rungs in found.items()}


def _task_means(job: Results) -> dict[TaskId, float]:
    rewards: dict[TaskId, list[float]] = defaultdict(list)
    for _, result in job.counted:
        if result.reward is not None:
            rewards[result.task.id].append(result.reward)
    return {task: average(values) for task, values in rewards.items()}
