"""What a task needs of a node."""

from __future__ import annotations

from collections.abc import Mapping

from benchflow.evaluation.scaled.abilities import Demand
from benchflow.evaluation.work import TaskRef
from benchflow.record import JobRequest


def demand_of(task: TaskRef, request: JobRequest, environ: Mapping[str, str]) -> Demand:
    del request, environ
    return Demand(environment=task.environment)
