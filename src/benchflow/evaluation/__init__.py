"""Many rollouts: jobs, their store on disk, resume, rescore, statistics, comparison.

The types of results are in `benchflow.record`. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchflow.evaluation.compare import Compared, Comparison, compare
    from benchflow.evaluation.engine import Engine, Observer, remaining
    from benchflow.evaluation.job import create_job, default_name, plan_job, run_job, work_left, write_summary
    from benchflow.evaluation.reports.job_report import comparison_lines, summary_lines
    from benchflow.evaluation.rescore import NotRescored, Rescorer, RescoreReport
    from benchflow.evaluation.sources import Sources
    from benchflow.evaluation.statistics import Sample, summarise
    from benchflow.evaluation.store import JobStore
    from benchflow.evaluation.summary import job_summary
    from benchflow.evaluation.work import Runner, TaskRef, WorkItem, plan_items

__all__ = [
    "Compared",
    "Comparison",
    "Engine",
    "JobStore",
    "NotRescored",
    "Observer",
    "RescoreReport",
    "Rescorer",
    "Runner",
    "Sample",
    "Sources",
    "TaskRef",
    "WorkItem",
    "compare",
    "comparison_lines",
    "create_job",
    "default_name",
    "job_summary",
    "plan_items",
    "plan_job",
    "remaining",
    "run_job",
    "summarise",
    "summary_lines",
    "work_left",
    "write_summary",
]

__getattr__ = lazy_names(
    __name__,
    {
        "benchflow.evaluation.compare": "Compared Comparison compare",
        "benchflow.evaluation.engine": "Engine Observer remaining",
        "benchflow.evaluation.job": "create_job default_name plan_job run_job work_left write_summary",
        "benchflow.evaluation.reports.job_report": "comparison_lines summary_lines",
        "benchflow.evaluation.rescore": "NotRescored RescoreReport Rescorer",
        "benchflow.evaluation.sources": "Sources",
        "benchflow.evaluation.statistics": "Sample summarise",
        "benchflow.evaluation.store": "JobStore",
        "benchflow.evaluation.summary": "job_summary",
        "benchflow.evaluation.work": "Runner TaskRef WorkItem plan_items",
    },
)
