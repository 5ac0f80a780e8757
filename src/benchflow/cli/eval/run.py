"""Running jobs: `bench eval run` and `bench eval resume`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import click

from benchflow.cli.arguments import complete_paths, isolation_option, json_option, refuse_model, uses_model
from benchflow.cli.eval.engines import LOCAL, JobEngine, PlannedJob, engine_options, opened_engine
from benchflow.cli.eval.inspect import jobs_dir_option, readable
from benchflow.cli.eval.job_file import given_paths, job_file_option
from benchflow.cli.eval.watching import Watching
from benchflow.cli.machine_settings import machine_settings_option
from benchflow.cli.preflight import note_judges, note_markers, require_base_image
from benchflow.cli.pull_lines import PullLines, pull_option
from benchflow.cli.rollouts.model_options import call_limit_options, job_limit_options
from benchflow.cli.rollouts.participant_option import named_players, participant_option
from benchflow.cli.terminal import columns, emit, emit_json, note, printable
from benchflow.errors import UsageError
from benchflow.evaluation.breaker import BreakerRules
from benchflow.evaluation.compare import compare_all
from benchflow.evaluation.engine import remaining
from benchflow.evaluation.job import create_job, default_name, job_plan, plan_job, require_same_shards, run_job
from benchflow.evaluation.reports.job_report import summary_lines, together_lines
from benchflow.evaluation.sources import CUBE_PREFIX
from benchflow.evaluation.store import JobStore, job_argument
from benchflow.evaluation.work import TaskRef
from benchflow.record import Job, JobRequest, Player, Shard, Summary, TaskChoice, labels
from benchflow.task.package import TaskPackage

INTERRUPTED = 130


class _ShardType(click.ParamType[Shard]):
    """`I/N`."""

    name = "shard"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Shard:
        if isinstance(value, Shard):
            return value
        try:
            return Shard.parse(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


SHARD: Final = _ShardType()

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
    help="Maximum number of concurrent builds per machine.",
)


@click.command("run")
@click.argument("sources", metavar="PATH...", nargs=-1, shell_complete=complete_paths)
@job_file_option
@click.option(
    "--agent", "agents", multiple=True, metavar="AGENT", help="Agent to run; repeat for several. See `bench agents`."
)
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Model for the agents; repeat for several.")
@participant_option
@click.option(
    "--rotate-roles",
    is_flag=True,
    help="Run one job in which the agents play every role of an arena against each other.",
)
@click.option("--include", multiple=True, metavar="GLOB", help="Run only tasks whose name or path matches; repeatable.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Skip tasks whose name or path matches; repeatable.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Run only the first N tasks.")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Run N random tasks, chosen with --seed.")
@click.option("--seed", type=int, metavar="S", default=0, show_default=True, help="Seed for --sample and for games.")
@click.option(
    "--attempts",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=1,
    show_default=True,
    help="Rollouts per task, or games per line-up.",
)
@click.option("--shard", type=SHARD, metavar="I/N", help="Run part I of N of the plan; `bench eval merge` joins them.")
@engine_options
@building_option
@click.option(
    "--sandbox", default="auto", show_default=True, metavar="NAME", help="Sandbox to use; see `bench sandboxes`."
)
@click.option("--base-image", metavar="host|NAME", help="Substitute for a base image that is not available.")
@pull_option
@machine_settings_option
@isolation_option
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Maximum number of steps for a model agent.")
@call_limit_options
@job_limit_options
@click.option(
    "--timeout",
    "timeout_sec",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SEC",
    help="Time limit for a whole rollout.",
)
@click.option(
    "--agent-timeout",
    "agent_timeout_sec",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SEC",
    help="Time limit for the agent.",
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
@click.pass_context
def run_command(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    agents: tuple[str, ...],
    models: tuple[str, ...],
    participants: tuple[str, ...],
    rotate_roles: bool,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    limit: int | None,
    sample: int | None,
    seed: int,
    engine: str,
    ray_address: str | None,
    concurrency: int | None,
    build_concurrency: int,
    name: str | None,
    jobs_dir: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Run an agent on many tasks, or several agents and models, each combination as its own job.

    In an arena, the agent plays the first role; the package or --participant assigns the others. With --rotate-roles,
    all agents play in one job, each in every role against every other agent, and the job rates them.

    PATH is a package, a folder with packages, a bundle or Harbor registry file (FILE, FILE#SPLIT, FILE:PACKAGE,
    FILE@sha256:DIGEST to pin it), or cube:NAME for an installed cube.
    """
    if not agents:
        raise click.UsageError("Missing option '--agent'.", ctx=ctx)
    choice = TaskChoice(include, exclude, limit, sample, seed)
    paths = given_paths(ctx, sources)
    players = combinations(agents, models)
    options |= {"choice": choice, "participants": named_players(participants)}
    if rotate_roles:
        options["rotation"], players = _rotation(agents, players), players[:1]
    requests = [JobRequest(paths, agent, model, **options) for agent, model in players]
    for request in requests:
        _refuse_unused(request)
    named = job_names(name or default_name(), players)
    planned = [_planned(request, engine) for request in requests]
    _refuse_unused_seed(choice, planned[0].tasks)
    _look_ahead(_own(planned[0].tasks, requests[0]), requests[0].agent)
    for each in named:  # all or nothing: the last one must not be refused when the others have run
        JobStore.require_new(jobs_dir, each)
    ran: list[tuple[int, Summary]] = []
    with opened_engine(engine, ray_address, planned, builds=build_concurrency) as opened:
        pace = _Pace(concurrency or opened.concurrency, build_concurrency, opened.breaker)
        for index, (each, job) in enumerate(zip(named, planned, strict=True)):
            if len(requests) > 1:
                note(printable(f"job {each}: {job.request.words()}"))
            store = create_job(jobs_dir, each, job.request, job.tasks)
            ran.append(_run(store, job, opened, index, pace, as_json=as_json, alone=len(requests) == 1))
            if ran[-1][0] == INTERRUPTED:
                break
    if len(requests) > 1:
        _show_together(jobs_dir, named[: len(ran)], [summary for _, summary in ran], as_json=as_json)
    return max(code for code, _ in ran)


def combinations(agents: tuple[str, ...], models: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """Every agent with every model; an agent that uses none is run once, where another one uses them."""
    agents, models = tuple(dict.fromkeys(agents)), tuple(dict.fromkeys(models))
    if not models or not any(uses_model(agent) for agent in agents):
        return [(agent, model) for agent in agents for model in models or (None,)]
    return [(agent, model) for agent in agents for model in (models if uses_model(agent) else (None,))]


def _rotation(agents: tuple[str, ...], players: list[tuple[str, str | None]]) -> tuple[Player, ...]:
    """The players of a rotation; the same agent twice would be one of them."""
    twice = next((agent for agent in agents if agents.count(agent) > 1), None)
    if twice is not None:
        raise UsageError(f"--agent {twice} is given twice; with --rotate-roles it is one player.", code="same-player")
    return tuple(Player(*player) for player in players)


def job_names(base: str, players: list[tuple[str, str | None]]) -> list[str]:
    """The names of the jobs of a run: the base, followed by who plays where there are several."""
    if len(players) == 1:
        return [base]
    names: list[str] = []
    for agent, model in players:
        text = "__".join(part for part in (agent, model) if part)
        name = f"{base}__{re.sub(r'[^A-Za-z0-9._-]+', '-', text).strip('-.')[:80]}"
        names.append(name if name not in names else f"{name}__{len(names) + 1}")
    return names


def _show_together(jobs_dir: Path, names: list[str], summaries: list[Summary], *, as_json: bool) -> None:
    if as_json:
        emit_json({"jobs": [summary.to_dict() for summary in summaries]})
        return
    if len(names) > 1:
        emit("")
        for line in together_lines(compare_all([(name, Job.find(jobs_dir, name)) for name in names])):
            emit(printable(line))


@click.command("resume")
@click.argument("job")
@engine_options
@building_option
@jobs_dir_option
@json_option
def resume_command(
    job: str,
    engine: str,
    ray_address: str | None,
    concurrency: int | None,
    build_concurrency: int,
    jobs_dir: Path,
    as_json: bool,
) -> int:
    """Resume a job: run rollouts that are missing, and those that a transient failure left unscored."""
    store = readable(JobStore.open(jobs_dir, job))
    request = store.record.request
    planned = _planned(request, engine)
    with opened_engine(engine, ray_address, [planned], builds=build_concurrency) as opened:
        pace = _Pace(concurrency or opened.concurrency, build_concurrency, opened.breaker)
        return _run(store, planned, opened, 0, pace, as_json=as_json, alone=True)[0]


def _planned(request: JobRequest, engine: str) -> PlannedJob:
    """The tasks of a job. What its agents and its base image need is looked for where they will run."""
    here = engine == LOCAL
    if here:
        require_base_image(request.base_image, request.sandbox, request.pull)
    return PlannedJob(request, *plan_job(request, on_pull=PullLines(live=False).show, agents_here=here))


class _Pace(NamedTuple):
    """How much happens at a time."""

    rollouts: int
    builds: int
    breaker: BreakerRules


def _refuse_unused(request: JobRequest) -> None:
    """Nothing that was said is ignored."""
    for player in request.agents:
        refuse_model(player.agent, player.model)
    if request.rotation and any(source.startswith(CUBE_PREFIX) for source in request.sources):
        raise UsageError("--rotate-roles applies to packages only; run the cube as a separate job.", code="cube-option")
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


def _own(tasks: list[TaskRef], request: JobRequest) -> list[TaskRef]:
    """The tasks that a job works on: of a shard its own, and one without any is refused."""
    if request.shard is None:
        return tasks
    own = {item.task for item in job_plan(tasks, request).items}
    return [task for task in tasks if task in own]


def _refuse_unused_seed(choice: TaskChoice, tasks: list[TaskRef]) -> None:
    if choice.sample is None and choice.seed and not any(task.roles for task in tasks):
        raise UsageError("--seed applies to --sample and to arena packages; the job has none.", code="unused-option")


def _look_ahead(tasks: list[TaskRef], agent: str) -> None:
    """Say what is known already of packages that will not come to much."""
    valid = [task for task in tasks if isinstance(task.payload, TaskPackage) and task.payload.valid]
    for task in valid:
        note_markers(task.payload, task.path, agent)
    note_judges([task.payload for task in valid], len(tasks))


def _run(
    store: JobStore,
    job: PlannedJob,
    engine: JobEngine,
    index: int,
    pace: _Pace,
    *,
    as_json: bool,
    alone: bool,
) -> tuple[int, Summary]:
    """The exit code of a job and its summary; of several jobs no JSON is printed for each."""
    planned = job_plan(job.tasks, job.request)
    require_same_shards(store, planned)
    items = list(remaining(iter(planned.items), store.results))
    if store.caution is not None:
        note(printable(store.caution))
    watching = Watching(len(items), labels(task.id for task in job.tasks), store.folder)
    resume = f"bench eval resume {job_argument(store.folder)}{engine.option}"
    try:
        with engine.guarded(resume):
            completed, summary = anyio.run(
                lambda: run_job(
                    store,
                    engine.runner(index, store.places, pace.rollouts, watching.say),
                    items,
                    concurrency=pace.rollouts,
                    build_concurrency=pace.builds,
                    observer=watching,
                    planned=planned,
                    breaker=pace.breaker,
                )
            )
    finally:
        watching.close()
        store.close()
    if as_json:
        if alone:
            emit_json(summary.to_dict())
    else:
        for line in summary_lines(summary, store.places, width=columns()):
            emit(printable(line))
        emit(f"\nresults are in {store.folder}")
    if not completed:
        note(f"Interrupted. To continue: {resume}")
        return INTERRUPTED, summary
    return (0 if summary.statistics.scored == len(planned.keys) else 1), summary
