"""`summary.json`: the summary of a job, from its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchflow.evaluation.statistics import Sample, summarise
from benchflow.record import Counted, DamagedLine, Job, Result


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Statistics over the results of a job that count, and those results."""

    job: str
    statistics: Mapping[str, Any]
    """As JSON has them."""
    damaged: tuple[DamagedLine, ...]
    """Lines of `results.jsonl` that are left out."""
    counted: tuple[Counted, ...]

    def to_dict(self) -> dict[str, Any]:
        damaged = [{"line": line.number, "reason": line.reason} for line in self.damaged]
        results = [item.to_dict() for item in self.counted]
        return {"job": self.job, **self.statistics, "damaged_lines": damaged, "results": results}


def job_summary(job: Job) -> JobSummary:
    """The summary of a job as its results are now."""
    counted = tuple(job.results)
    statistics = summarise([sample(result) for _, result in counted])
    return JobSummary(job.folder.name, statistics, tuple(job.results.damaged), counted)


def sample(result: Result) -> Sample:
    """What statistics need of a result."""
    metrics = {name: value for name, value in result.rewards.items() if name != "reward"}
    category = result.error.category if result.error else None
    return Sample(result.task.id, result.reward, metrics, category, result.usage)
