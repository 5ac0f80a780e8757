"""The summary of a job, from its results; and which of them a new plan leaves out."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from benchflow.evaluation.statistics import Sample, summarise
from benchflow.record import Counted, Job, Result, Summary, WorkKey


def job_summary(job: Job) -> Summary:
    """The summary of a job as its results are now."""
    counted = job.counted
    statistics = summarise([sample(result) for _, result in counted])
    superseded = len(job.results.latest) - len(counted)
    return Summary(job.folder.name, statistics, tuple(job.results.damaged), counted, superseded)


def superseded_keys(results: Iterable[Counted], planned: Collection[WorkKey]) -> tuple[WorkKey, ...]:
    """The keys of results without a place in the plan.

    One result per planned key has one: its own, or else one that was rescored and would have this key now.
    """
    found = list(results)
    taken = {counted.result.key for counted in found} & set(planned)
    left_out = []
    for _, result in found:
        rescore = result.notes.rescore
        now = rescore.key if rescore is not None else None
        if result.key in planned:
            continue
        if now is not None and now in planned and now not in taken:
            taken.add(now)
        else:
            left_out.append(result.key)
    return tuple(left_out)


def sample(result: Result) -> Sample:
    """What statistics need of a result."""
    metrics = {name: value for name, value in result.rewards.items() if name != "reward"}
    category = result.error.category if result.error else None
    higher = [check.reward is not None and check.reward > (reward or 0.0) for reward, check in result.wider]
    return Sample(result.task.id, result.reward, metrics, category, result.usage, result.rung, tuple(higher))
