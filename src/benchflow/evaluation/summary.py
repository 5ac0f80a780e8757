"""`summary.json`: the summary of a job, from its results."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchflow.evaluation.statistics import Sample, summarise
from benchflow.record import Counted, DamagedLine, Job, Result, WorkKey


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Statistics over the results of a job that count, and those results."""

    job: str
    statistics: Mapping[str, Any]
    """As JSON has them."""
    damaged: tuple[DamagedLine, ...]
    """Lines of `results.jsonl` that are left out."""
    counted: tuple[Counted, ...]
    superseded: int = 0
    """Results that are left out because their packages have changed or are gone; known only where there is a plan."""

    def to_dict(self) -> dict[str, Any]:
        damaged = [{"line": line.number, "reason": line.reason} for line in self.damaged]
        results = [item.to_dict() for item in self.counted]
        superseded = {"superseded": self.superseded} if self.superseded else {}
        return {"job": self.job, **self.statistics, **superseded, "damaged_lines": damaged, "results": results}


def job_summary(job: Job, planned: Collection[WorkKey] | None = None) -> JobSummary:
    """The summary of a job as its results are now; with a plan, of the planned work only."""
    everything = tuple(job.results)
    counted = everything if planned is None else tuple(_planned_results(everything, planned))
    statistics = summarise([sample(result) for _, result in counted])
    return JobSummary(job.folder.name, statistics, tuple(job.results.damaged), counted, len(everything) - len(counted))


def _planned_results(results: Sequence[Counted], planned: Collection[WorkKey]) -> Iterator[Counted]:
    """One result per planned key: its own, or else one that was rescored and would have this key now."""
    own = {counted.result.key for counted in results} & set(planned)
    taken = set(own)
    for counted in results:
        rescore = counted.result.notes.rescore
        now = rescore.key if rescore is not None else None
        if counted.result.key in own:
            yield counted
        elif now is not None and now in planned and now not in taken:
            taken.add(now)
            yield counted


def sample(result: Result) -> Sample:
    """What statistics need of a result."""
    metrics = {name: value for name, value in result.rewards.items() if name != "reward"}
    category = result.error.category if result.error else None
    return Sample(result.task.id, result.reward, metrics, category, result.usage)
