"""A job from its request to its summary: plan, run or continue, summarise.

`job.json` keeps the request, so that `resume` needs only the job. Interrupting once ends running items and writes
the summary; they are run again on resume.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import anyio
from anyio import CancelScope

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.evaluation.breaker import DEFAULT_RULES, Breaker, BreakerRules
from benchflow.evaluation.engine import Engine, Observer, remaining, unjudged
from benchflow.evaluation.games.lineups import check_line_ups, planned_items
from benchflow.evaluation.shards.dealing import dealt, whole_plan
from benchflow.evaluation.sources import CUBE_PREFIX, Sources
from benchflow.evaluation.store import JobStore
from benchflow.evaluation.summary import job_summary, superseded_keys
from benchflow.evaluation.task_choice import chosen_tasks
from benchflow.evaluation.work import OpenRunner, TaskRef, WorkItem
from benchflow.files.redaction import make_redactor, secret_values
from benchflow.record import Job, JobRecord, JobRequest, Summary, WholePlan, WorkKey
from benchflow.sandbox.pulling import OnPull
from benchflow.task.bundles.package_files import pinned_source
from benchflow.task.package import TaskPackage


def default_name(now: datetime | None = None) -> str:
    """The default name of a job: its start time in UTC."""
    return (now or datetime.now(UTC)).strftime("%Y-%m-%d__%H-%M-%S")


def plan_job(
    request: JobRequest, *, on_pull: OnPull | None = None, agents_here: bool = True
) -> tuple[Sources, list[TaskRef]]:
    """The tasks of a request; an empty request is wrong usage. `on_pull` hears of images that are pulled.

    With `agents_here` the agents must be able to start on this machine.
    """
    sources = Sources(request, on_pull)
    found = sources.tasks(agents_here=agents_here)
    if not found:
        raise UsageError(f"No tasks found in {', '.join(request.sources)}.", code="no-tasks")
    tasks = chosen_tasks(found, request.choice)
    if not tasks:
        raise UsageError(f"--include and --exclude leave none of the {len(found)} tasks.", code="no-tasks")
    check_line_ups(tasks, request)
    return sources, tasks


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The items of a job, and the plan that they are a shard of, or all of."""

    items: tuple[WorkItem, ...]
    whole: WholePlan

    @property
    def keys(self) -> frozenset[WorkKey]:
        return frozenset(item.key for item in self.items)


def job_plan(tasks: Sequence[TaskRef], request: JobRequest) -> JobPlan:
    """What there is to do in a job; a shard without work is wrong usage."""
    items = list(planned_items(tasks, request))
    whole = whole_plan(items)
    if request.shard is not None:
        items = dealt(items, request.shard)
        if not items:
            rollouts = "1 rollout" if whole.rollouts == 1 else f"{whole.rollouts} rollouts"
            raise UsageError(f"--shard {request.shard} has no work: the plan has {rollouts}.", code="no-tasks")
    return JobPlan(tuple(items), whole)


def create_job(jobs_dir: Path, name: str, request: JobRequest, tasks: Sequence[TaskRef]) -> JobStore:
    """The store of a new job, its request kept for a later resume; a request that holds a secret is refused."""
    refuse_secrets(request, tasks)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    kept = replace(request, sources=_pinned(request.sources), directory=str(Path.cwd()))
    plan = job_plan(tasks, request)
    return JobStore.create(jobs_dir, JobRecord(name, kept, len(plan.keys), started, plan=plan.whole))


def _pinned(sources: Sequence[str]) -> tuple[str, ...]:
    """Bundles by digest: a job continues with the packages that it began with, even if the file has moved."""
    return tuple(source if source.startswith(CUBE_PREFIX) else pinned_source(source) for source in sources)


def refuse_secrets(request: JobRequest, tasks: Sequence[TaskRef]) -> None:
    """A request is stored unchanged, so it must not contain a secret."""
    packages = [task.payload for task in tasks if isinstance(task.payload, TaskPackage)]
    documents = [package.document for package in packages if package.document is not None]
    declared = {secret.env or secret.name for document in documents for secret in document.namespace.secrets}
    known = secret_values(os.environ, declared=declared)
    for name, value in os.environ.items():
        redactor = make_redactor({value} & known)
        found = next((key for key, text in _texts(request) if redactor.text(text) != text), None)
        if found is not None:
            message = (
                f"The {found} of the job contains the value of {name}, which job.json would store: remove it, and let "
                f"the package declare {name} under benchflow.secrets with scope agent, or use an agent that reads it."
            )
            raise UsageError(message, code="secret-in-request")


def _texts(request: JobRequest) -> Iterator[tuple[str, str]]:
    """All text in a request, by name."""
    for key, value in asdict(request).items():
        if isinstance(value, str):
            yield key.replace("_", " "), value
    yield from (("source", source) for source in request.sources)
    yield from (("participant", text) for player in request.players for text in (player.agent, player.model or ""))


def work_left(job: Job, request: JobRequest, tasks: Sequence[TaskRef]) -> list[WorkItem]:
    """The items of a job that are still to be run."""
    return list(remaining(iter(job_plan(tasks, request).items), job.results))


def require_same_shards(job: Job, plan: JobPlan) -> None:
    """Refuse to continue a shard whose plan has other tasks now: some of its work would belong to another shard."""
    request, before = job.record.request, job.record.plan
    if request.shard is None or before is None or before.order == plan.whole.order:
        return
    message = (
        f"Job '{job.folder.name}' is shard {request.shard} of a plan of {before.rollouts} rollouts, and tasks were "
        "added or removed since: the shards would no longer fit together. Restore the tasks, or merge the shards and "
        "resume the merged job."
    )
    raise UsageError(message, code="plan-changed")


async def run_job(
    store: JobStore,
    runner: OpenRunner,
    items: Sequence[WorkItem],
    *,
    concurrency: int,
    build_concurrency: int,
    observer: Observer,
    planned: JobPlan,
    breaker: BreakerRules = DEFAULT_RULES,
) -> tuple[bool, Summary]:
    """Run items of a job; whether they were completed, and the summary of the planned work, written either way."""
    _write_plan(store, planned)
    engine = Engine(
        store,
        runner,
        concurrency=concurrency,
        build_concurrency=build_concurrency,
        observer=observer,
        unjudged=unjudged(store.results),
        breaker=Breaker(breaker),
    )
    try:
        async with runner:
            completed = await run_until_stopped(engine, iter(items))
    finally:
        with suppress(InfrastructureFailure):
            _write_plan(store, planned)
        summary = write_summary(store)
    return completed, summary


def _write_plan(store: JobStore, planned: JobPlan) -> None:
    """Store how much work is planned, and which results no longer belong to it, for everything that shows the job."""
    superseded = superseded_keys(store.results, planned.keys)
    changed = replace(store.record, planned=len(planned.keys), superseded=superseded, plan=planned.whole)
    store.write_plan(changed)


async def run_until_stopped(engine: Engine, items: Iterator[WorkItem]) -> bool:
    """Run items until they are done or an interrupt comes; whether they are done.

    A failure of the job itself, such as a full disk, is raised unchanged.
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


def write_summary(store: JobStore) -> Summary:
    """Summarise a job. On a full disk the summary is not written: it can be computed from the results at any time."""
    summary = job_summary(store)
    with suppress(InfrastructureFailure):
        store.write_summary(summary)
    return summary
