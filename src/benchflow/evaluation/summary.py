"""`summary.json`: what a job says, from its results as they are on disk."""

from __future__ import annotations

from typing import Any

from benchflow.evaluation.engine import last_results
from benchflow.evaluation.statistics import Outcome, summarise
from benchflow.evaluation.store import JobStore
from benchflow.rollout.record import Result


def outcome(result: Result) -> Outcome:
    """What statistics need of a result."""
    metrics = {name: value for name, value in result.rewards.items() if name != "reward"}
    category = result.error.category if result.error else None
    return Outcome(str(result.task["name"]), result.status, result.reward, metrics, category, result.usage)


def outcomes(store: JobStore) -> list[Outcome]:
    """The outcomes that count in a job."""
    return [outcome(result) for _, result in last_results(store).values()]


def job_summary(store: JobStore) -> dict[str, Any]:
    """The summary of a job: statistics over the results that count, and those results."""
    counted = last_results(store).values()
    statistics = summarise([outcome(result) for _, result in counted])
    results = [{**result.to_dict(), "rollout": rollout} for rollout, result in counted]
    return {"job": store.folder.name, **statistics, "results": results}
