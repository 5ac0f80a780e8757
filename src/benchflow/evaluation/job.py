"""A job from its request to its summary: plan, run or go on, sum up.

The request is what `job.json` keeps, so that `resume` needs nothing but the job. Interrupting once ends what runs and
writes the summary; what was cut short is run again on resume.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
from anyio import CancelScope

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.evaluation.engine import Engine, Observer, last_results, not_done, remaining, unjudged
from benchflow.evaluation.sources import Sources
from benchflow.evaluation.store import JobStore
from benchflow.evaluation.summary import job_summary
from benchflow.evaluation.work import TaskRef, WorkItem, plan_items
from benchflow.rollout.redaction import make_redactor, secret_values
from benchflow.task.package import TaskPackage


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job is asked to do."""

    sources: tuple[str, ...]
    """Paths of packages or folders above them, and `cube:NAME`."""
    agent: str
    model: str | None = None
    attempts: int = 1
    sandbox: str = "auto"
    base_image: str | None = None
    max_steps: int | None = None
    max_cost_usd: float | None = None
    agent_timeout_sec: float | None = None
    timeout_sec: float | None = None
    """The deadline of a whole rollout."""
    keep_workspace: bool = True
    """Whether what agents leave is kept, so that it can be scored again."""

    def settings(self) -> dict[str, Any]:
        """What besides the task and the attempt decides an outcome."""
        settings = asdict(self)
        for name in ("sources", "attempts", "keep_workspace"):
            del settings[name]
        if self.timeout_sec is None:
            del settings["timeout_sec"]  # left out, it does not count
        return settings

    def texts(self) -> Iterator[tuple[str, str]]:
        """Whatever of it is text, by name."""
        for key, value in asdict(self).items():
            if isinstance(value, str):
                yield key.replace("_", " "), value
        yield from (("source", source) for source in self.sources)

    @classmethod
    def from_job(cls, job: Mapping[str, Any]) -> JobRequest:
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in job.items() if key in known}
        return cls(**{**values, "sources": tuple(job["sources"])})


def default_name(now: datetime | None = None) -> str:
    """A name for a job that was given none: when it began, in UTC."""
    return (now or datetime.now(UTC)).strftime("%Y-%m-%d__%H-%M-%S")


def plan_job(request: JobRequest) -> tuple[Sources, list[TaskRef]]:
    """The tasks of a request; nothing to work on is wrong usage."""
    sources = Sources(request)
    tasks = sources.tasks()
    if not tasks:
        raise UsageError(f"There is nothing to run in {', '.join(request.sources)}.", code="no-tasks")
    return sources, tasks


def create_job(jobs_dir: Path, name: str, request: JobRequest, tasks: Sequence[TaskRef]) -> JobStore:
    """The store of a new job, its request kept for a later resume; a request that holds a secret is refused."""
    _refuse_secrets(request, tasks)
    sources = [source if source.startswith("cube:") else str(Path(source).absolute()) for source in request.sources]
    started = datetime.now(UTC).isoformat(timespec="seconds")
    job = {**asdict(request), "sources": sources, "planned": len(tasks) * request.attempts, "created_at": started}
    return JobStore.create(jobs_dir, name, job)


def _refuse_secrets(request: JobRequest, tasks: Sequence[TaskRef]) -> None:
    """A request is kept as it is, so nothing secret can be part of it."""
    packages = [task.payload for task in tasks if isinstance(task.payload, TaskPackage)]
    documents = [package.document for package in packages if package.document is not None]
    declared = {secret.env or secret.name for document in documents for secret in document.namespace.secrets}
    known = secret_values(os.environ, declared=declared)
    for name, value in os.environ.items():
        redactor = make_redactor({value} & known)
        told = next((key for key, text in request.texts() if redactor.text(text) != text), None)
        if told is not None:
            message = (
                f"The {told} of the job holds the value of {name}, which job.json would keep: leave it out, and let "
                f"the package declare {name} under benchflow.secrets with scope agent, or take an agent that reads it."
            )
            raise UsageError(message, code="secret-in-request")


async def run_job(
    store: JobStore,
    request: JobRequest,
    sources: Sources,
    tasks: Sequence[TaskRef],
    *,
    concurrency: int,
    build_concurrency: int,
    observer: Observer,
) -> bool:
    """Run what of a job is not done yet; whether it came to its end. The summary is written either way."""
    latest = last_results(store)
    items = not_done(plan_items(tasks, request.attempts, request.settings()), latest)
    engine = Engine(
        store,
        sources,
        concurrency=concurrency,
        build_concurrency=build_concurrency,
        observer=observer,
        unjudged=unjudged(latest),
    )
    try:
        async with sources:
            return await run_until_stopped(engine, items)
    finally:
        write_summary(store)


async def run_until_stopped(engine: Engine, items: Iterator[WorkItem]) -> bool:
    """Run items until they are done or an interrupt comes; whether they are done.

    What keeps the job itself from going on, a full disk for instance, is raised as it is.
    """
    completed = False
    try:
        with CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(_stop_on_signal, scope)
                await engine.run(items)
                completed = True
                group.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    return completed


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that ended the others."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _stop_on_signal(scope: CancelScope) -> None:
    """End the job on the first interrupt; the second ends the process at once, and all it started with it."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            scope.cancel()
            signal.signal(number, signal.SIG_DFL)


def write_summary(store: JobStore) -> None:
    """Sum up a job. Where the disk is full there is none: it can be had from the results at any time."""
    with suppress(InfrastructureFailure):
        store.write_summary(job_summary(store))


def count_remaining(store: JobStore, request: JobRequest, tasks: Sequence[TaskRef]) -> int:
    """How many items of a job are still to be run."""
    return sum(1 for _ in remaining(plan_items(tasks, request.attempts, request.settings()), store))
