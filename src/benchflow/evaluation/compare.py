"""Jobs side by side: two by task, over the tasks that both have scored; several also by agent and model.

Differences are paired by task. A task flips when all its attempts pass in one job and not in the other.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchflow.evaluation.statistics import PASS_THRESHOLD, average, mean, sign_test, span_of, summarise
from benchflow.evaluation.summary import sample
from benchflow.record import Counted, Estimate, Job, TaskId, labels, pair
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
    def gained(self) -> tuple[str, ...]:
        """Tasks that pass in the second job only."""
        return tuple(item.task for item in self.tasks if item.second >= PASS_THRESHOLD > item.first)

    @property
    def lost(self) -> tuple[str, ...]:
        """Tasks that pass in the first job only."""
        return tuple(item.task for item in self.tasks if item.first >= PASS_THRESHOLD > item.second)

    @property
    def flip_chance(self) -> float | None:
        """How likely so uneven flips are if neither job is better; None without flips."""
        return sign_test(len(self.gained), len(self.lost))

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
            "flips": {"gained": list(self.gained), "lost": list(self.lost), "chance": self.flip_chance},
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


@dataclass(frozen=True, slots=True)
class Player:
    """One job of several: who played, and what came out."""

    job: str
    agent: str
    model: str | None
    mean: Estimate
    """Over the tasks that all jobs have scored."""
    scored: Estimate
    """Over all tasks that this job has scored."""
    cost_usd: float | None
    """What its rollouts cost, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Together:
    """Several jobs: each on its own and on what they share, and each against the first."""

    players: tuple[Player, ...]
    shared: int
    """How many tasks all of them have scored."""
    against_first: tuple[Comparison, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "shared_tasks": self.shared,
            "jobs": [plain(player) for player in self.players],
            "against_first": [comparison.to_dict() for comparison in self.against_first],
        }


def compare_all(jobs: Sequence[tuple[str, Job]], *, same_digest: bool = False) -> Together:
    """Several jobs at once; means are over the tasks that all of them have scored, paired with the first job's."""
    first_name, first = jobs[0]
    comparisons = tuple(compare(first_name, first, name, job, same_digest=same_digest) for name, job in jobs[1:])
    means = [_own_means(first), *({item.task: item.second for item in found.tasks} for found in comparisons)]
    shared = set(means[0]).intersection(*means[1:])
    span = span_of(value for found in means for task, value in found.items() if task in shared)
    players = []
    for (name, job), found in zip(jobs, means, strict=True):
        request = job.record.request
        common = mean({task: [found[task]] for task in sorted(shared)}, span)
        costs = [result.usage["cost_usd"] for _, result in job.counted if "cost_usd" in result.usage]
        own = summarise([sample(result) for _, result in job.counted]).mean_reward
        agent, model = ", ".join(map(str, request.rotation)), request.model
        if not request.rotation:
            agent = request.agent
        players.append(Player(name, agent, model, common, own, sum(costs) if costs else None))
    return Together(tuple(players), len(shared), comparisons)


def _own_means(job: Results) -> dict[str, float]:
    """The mean reward of each task by its label."""
    found = _task_means(job)
    return {name: found[task] for task, name in labels(_in_order_of_path(job)).items() if task in found}


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
