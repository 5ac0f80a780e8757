"""`summary.json`: the summary of a job, from its results."""

from __future__ import annotations

from typing import Any

from benchflow.evaluation.statistics import Sample, summarise
from benchflow.record import Job, Result


def sample(result: Result) -> Sample:
    """What statistics need of a result."""
    metrics = {name: value for name, value in result.rewards.items() if name != "reward"}
    category = result.error.category if result.error else None
    return Sample(result.task.id, result.reward, metrics, category, result.usage)


def job_summary(job: Job) -> dict[str, Any]:
    """The summary of a job: statistics over the results that count, and those results."""
    counted = list(job.results)
    statistics = summarise([sample(result) for _, result in counted])
    damaged = [{"line": line.number, "reason": line.reason} for line in job.results.damaged]
    results = [item.to_dict() for item in counted]
    return {"job": job.folder.name, **statistics, "damaged_lines": damaged, "results": results}
