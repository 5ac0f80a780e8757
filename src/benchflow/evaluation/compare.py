"""Two jobs side by side: by task, over the tasks that both have scored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchflow.evaluation.statistics import Estimate, Outcome, mean


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of mean rewards, paired by task."""

    first: str
    second: str
    difference: Estimate
    """Second minus first, over the tasks that both have scored."""
    tasks: dict[str, tuple[float, float]]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

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
            "difference": self.difference.to_dict(),
            "verdict": self.verdict,
            "tasks": [{"task": task, "first": a, "second": b} for task, (a, b) in self.tasks.items()],
            "only_first": list(self.only_first),
            "only_second": list(self.only_second),
        }


def compare(first_name: str, first: Iterable[Outcome], second_name: str, second: Iterable[Outcome]) -> Comparison:
    """Pair two sets of outcomes by task; tasks that one of them has not scored are named, not averaged."""
    left, right = _task_means(first), _task_means(second)
    common = [task for task in left if task in right]
    return Comparison(
        first_name,
        second_name,
        mean({task: [right[task] - left[task]] for task in common}),
        {task: (left[task], right[task]) for task in common},
        tuple(task for task in left if task not in right),
        tuple(task for task in right if task not in left),
    )


def _task_means(outcomes: Iterable[Outcome]) -> dict[str, float]:
    rewards: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.reward is not None and outcome.scored:
            rewards[outcome.task].append(outcome.reward)
    return {task: fmean(values) for task, values in sorted(rewards.items())}
