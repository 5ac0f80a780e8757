"""Running jobs: `bench eval run` and `bench eval resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import click

from benchflow.cli.arguments import json_option, refuse_model
from benchflow.cli.eval.inspect import jobs_dir_option
from benchflow.cli.eval.watching import Watching
from benchflow.cli.preflight import note_judges, note_markers
from benchflow.cli.terminal import emit, emit_json, note, printable
from benchflow.errors import UsageError
from benchflow.evaluation.job import JobRequest, count_remaining, create_job, default_name, plan_job, run_job
from benchflow.evaluation.report import summary_lines
from benchflow.evaluation.sources import CUBE_PREFIX, Sources
from benchflow.evaluation.store import JobStore
from benchflow.evaluation.summary import job_summary
from benchflow.evaluation.work import TaskRef
from benchflow.task.package import TaskPackage

INTERRUPTED = 130

concurrency_option = click.option(
    "--concurrency", type=click.IntRange(1, 10_000), default=4, show_default=True, help="Rollouts at the same time."
)
building_option = click.option(
    "--build-concurrency",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    help="Environments built at the same time.",
)


@click.command("run")
@click.argument("sources", metavar="PATH...", nargs=-1, required=True)
@click.option("--agent", required=True, metavar="AGENT", help="NAME or NAME:ARGUMENT; see `bench agents`.")
@click.option("--model", metavar="MODEL", help="The model of agents that take one.")
@click.option("--attempts", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Attempts at each task.")
@concurrency_option
@building_option
@click.option("--sandbox", default="auto", show_default=True, metavar="NAME", help="See `bench sandboxes`.")
@click.option("--base-image", metavar="host|NAME", help="What to take for a base image that nobody has.")
@click.option("--max-steps", type=click.IntRange(min=1), help="Steps that an agent may take.")
@click.option("--max-cost", "max_cost_usd", type=click.FloatRange(min=0), help="US dollars that a rollout may cost.")
@click.option(
    "--timeout",
    "timeout_sec",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SEC",
    help="Time of a whole rollout.",
)
@click.option(
    "--agent-timeout",
    "agent_timeout_sec",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SEC",
    help="Time limit of the agent.",
)
@click.option(
    "--workspaces/--no-workspaces",
    "keep_workspace",
    default=True,
    show_default=True,
    help="Keep what agents leave, so that it can be scored again.",
)
@click.option("--name", help="The job's name; without one it is the time.")
@jobs_dir_option
@json_option
def run_command(
    sources: tuple[str, ...],
    concurrency: int,
    build_concurrency: int,
    name: str | None,
    jobs_dir: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Run an agent on many tasks.

    PATH is a package, a folder above packages, or cube:NAME for an installed cube.
    """
    request = JobRequest(sources=sources, **options)
    _refuse_unused(request)
    planned, tasks = plan_job(request)
    _look_ahead(tasks, request.agent)
    store = create_job(jobs_dir, name or default_name(), request, tasks)
    return _run(store, request, planned, tasks, concurrency, build_concurrency, as_json=as_json)


@click.command("resume")
@click.argument("job")
@concurrency_option
@building_option
@jobs_dir_option
@json_option
def resume_command(job: str, concurrency: int, build_concurrency: int, jobs_dir: Path, as_json: bool) -> int:
    """Go on with a job: run what was cut short, and what trouble left unscored."""
    store = JobStore.open(jobs_dir, job)
    request = JobRequest.from_job(store.job)
    planned, tasks = plan_job(request)
    return _run(store, request, planned, tasks, concurrency, build_concurrency, as_json=as_json)


def _refuse_unused(request: JobRequest) -> None:
    """Nothing that was said is ignored."""
    refuse_model(request.agent, request.model)
    if all(source.startswith(CUBE_PREFIX) for source in request.sources):
        for option, value in (("--sandbox", request.sandbox != "auto"), ("--base-image", request.base_image)):
            if value:
                raise UsageError(f"{option} is for packages; a cube brings what it runs in.", code="cube-option")


def _look_ahead(tasks: list[TaskRef], agent: str) -> None:
    """Say what is known already of packages that will not come to much."""
    valid = [task for task in tasks if isinstance(task.payload, TaskPackage) and task.payload.valid]
    for task in valid:
        note_markers(task.payload, task.path, agent)
    note_judges([task.payload for task in valid], len(tasks))


def _run(
    store: JobStore,
    request: JobRequest,
    sources: Sources,
    tasks: list[TaskRef],
    concurrency: int,
    build_concurrency: int,
    *,
    as_json: bool,
) -> int:
    planned = len(tasks) * request.attempts
    watching = Watching(count_remaining(store, request, tasks))
    try:
        completed = anyio.run(
            lambda: run_job(
                store,
                request,
                sources,
                tasks,
                concurrency=concurrency,
                build_concurrency=build_concurrency,
                observer=watching,
            )
        )
    finally:
        watching.close()
        store.close()
    summary = job_summary(store)
    if as_json:
        emit_json(summary)
    else:
        for line in summary_lines(summary):
            emit(printable(line))
        emit(f"\nresults are in {store.folder}")
    if not completed:
        note(f"Interrupted. Go on with: bench eval resume {store.folder.name}")
        return INTERRUPTED
    return 0 if summary["scored"] == planned else 1
