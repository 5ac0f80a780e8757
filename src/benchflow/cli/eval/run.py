"""Running jobs: `bench eval run` and `bench eval resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import click

from benchflow.cli.arguments import isolation_option, json_option, refuse_model
from benchflow.cli.eval.inspect import jobs_dir_option, readable
from benchflow.cli.eval.watching import Watching
from benchflow.cli.machine_settings import machine_settings_option
from benchflow.cli.preflight import note_judges, note_markers
from benchflow.cli.pull_lines import PullLines, pull_option
from benchflow.cli.terminal import columns, emit, emit_json, note, printable
from benchflow.errors import UsageError
from benchflow.evaluation.job import create_job, default_name, plan_job, run_job, work_left
from benchflow.evaluation.report import summary_lines
from benchflow.evaluation.sources import CUBE_PREFIX, Sources
from benchflow.evaluation.store import JobStore, job_argument
from benchflow.evaluation.work import TaskRef, plan_items
from benchflow.record import JobRequest, labels
from benchflow.task.package import TaskPackage

INTERRUPTED = 130

concurrency_option = click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=4,
    show_default=True,
    help="Maximum number of concurrent rollouts.",
)
building_option = click.option(
    "--build-concurrency",
    type=click.IntRange(1, 100),
    metavar="N",
    default=2,
    show_default=True,
    help="Maximum number of concurrent builds.",
)


@click.command("run")
@click.argument("sources", metavar="PATH...", nargs=-1, required=True)
@click.option("--agent", required=True, metavar="AGENT", help="Agent to run; see `bench agents`.")
@click.option("--model", metavar="MODEL", help="Model of the agent.")
@click.option(
    "--attempts", type=click.IntRange(1, 10_000), metavar="N", default=1, show_default=True, help="Rollouts per task."
)
@concurrency_option
@building_option
@click.option("--sandbox", default="auto", show_default=True, metavar="NAME", help="See `bench sandboxes`.")
@click.option("--base-image", metavar="host|NAME", help="Substitute for a base image that is not available.")
@pull_option
@machine_settings_option
@isolation_option
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Maximum number of steps of a model agent.")
@click.option(
    "--max-cost",
    "max_cost_usd",
    type=click.FloatRange(min=0),
    metavar="USD",
    help="Maximum model cost of a rollout in US dollars.",
)
@click.option(
    "--timeout",
    "timeout_sec",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SEC",
    help="Time limit of a whole rollout.",
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
    help="Keep the workspaces for rescoring.",
)
@click.option("--name", metavar="JOB", help="Name of the job; default: the current time.")
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

    PATH is a package, a folder with packages, a bundle or Harbor registry file (FILE, FILE#SPLIT, FILE:PACKAGE,
    FILE@sha256:DIGEST to pin it), or cube:NAME for an installed cube.
    """
    request = JobRequest(sources=sources, **options)
    _refuse_unused(request)
    planned, tasks = plan_job(request, on_pull=PullLines(live=False).show)
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
    """Resume a job: run what is missing, and what a transient failure left unscored."""
    store = readable(JobStore.open(jobs_dir, job))
    request = store.record.request
    planned, tasks = plan_job(request, on_pull=PullLines(live=False).show)
    return _run(store, request, planned, tasks, concurrency, build_concurrency, as_json=as_json)


def _refuse_unused(request: JobRequest) -> None:
    """Nothing that was said is ignored."""
    refuse_model(request.agent, request.model)
    if all(source.startswith(CUBE_PREFIX) for source in request.sources):
        given = {
            "--sandbox": request.sandbox != "auto",
            "--base-image": request.base_image,
            "--pull": request.pull != "missing",
            "--isolation": request.isolation,
        }
        for option, value in given.items():
            if value:
                raise UsageError(
                    f"{option} applies to packages only; a cube has its own environment.", code="cube-option"
                )


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
    planned = {item.key for item in plan_items(tasks, request.attempts, request.settings())}
    items = work_left(store, request, tasks)
    watching = Watching(len(items), labels(task.id for task in tasks), store.folder)
    try:
        completed, summary = anyio.run(
            lambda: run_job(
                store,
                sources,
                items,
                concurrency=concurrency,
                build_concurrency=build_concurrency,
                observer=watching,
                planned=planned,
            )
        )
    finally:
        watching.close()
        store.close()
    if as_json:
        emit_json(summary.to_dict())
    else:
        for line in summary_lines(summary, store.places, width=columns()):
            emit(printable(line))
        emit(f"\nresults are in {store.folder}")
    if not completed:
        note(f"Interrupted. To continue: bench eval resume {job_argument(store.folder)}")
        return INTERRUPTED
    return 0 if summary.statistics.scored == len(planned) else 1
