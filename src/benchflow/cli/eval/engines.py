"""`--engine`: where the rollouts of a job are carried out. It is not part of a job's identity: a job can be
resumed with another one."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import anyio
import click

from benchflow.cli.arguments import Command
from benchflow.cli.eval.last_words import last_words
from benchflow.cli.terminal import is_terminal, note, printable
from benchflow.errors import UsageError
from benchflow.evaluation.breaker import DEFAULT_RULES, BreakerRules
from benchflow.evaluation.job import refuse_secrets
from benchflow.evaluation.sources import Sources
from benchflow.evaluation.work import OpenRunner, TaskRef
from benchflow.record import JobPlaces, JobRequest

if TYPE_CHECKING:
    from benchflow.evaluation.scaled.fleet import Fleet

LOCAL: Final = "local"
RAY: Final = "ray"
DEFAULT_CONCURRENCY: Final = 4
_ENDED: Final = (
    "The job was stopped from outside: its process was killed, or Ray stopped it because the head of the cluster or "
    "the Ray node of this machine is gone."
)
_OF_JOBS: Final = {
    "job_max_calls": "--job-max-calls",
    "job_max_tokens": "--job-max-tokens",
    "job_max_cost_usd": "--job-max-cost",
    "job_max_model_time": "--job-max-model-time",
    "concurrent_calls": "--concurrent-calls",
}


class PlannedJob(NamedTuple):
    """A job of a command, before it begins."""

    request: JobRequest
    sources: Sources
    tasks: list[TaskRef]


class JobEngine(Protocol):
    """Carries out the jobs of one command, one after the other."""

    concurrency: int
    """Rollouts at once, unless the user says."""

    breaker: BreakerRules
    """When the job as a whole pauses."""
    option: str
    """What chooses this engine again, at the end of a command."""

    def runner(self, job: int, places: JobPlaces, concurrency: int, say: Callable[[str], None]) -> OpenRunner:
        """Who runs the items of a job in its folder, so many at once; `say` prints what happens to machines."""

    def guarded(self, resume: str) -> AbstractContextManager[None]:
        """Holds while a job runs; `resume` is the command that continues it."""


def engine_options(command: Command) -> Command:
    """`--engine`, `--ray-address` and `--concurrency`."""
    for option in (
        click.option(
            "--concurrency",
            type=click.IntRange(1, 10_000),
            metavar="N",
            help="Maximum number of concurrent rollouts; "
            f"default: {DEFAULT_CONCURRENCY}; on a cluster, one per processor.",
        ),
        click.option(
            "--ray-address",
            metavar="HOST:PORT",
            help="Address of the Ray cluster; default: RAY_ADDRESS, or the cluster of this machine.",
        ),
        click.option(
            "--engine",
            type=click.Choice([LOCAL, RAY]),
            default=LOCAL,
            show_default=True,
            help="Run on this machine, or on the nodes of a Ray cluster.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def opened_engine(
    name: str, ray_address: str | None, jobs: Sequence[PlannedJob], *, builds: int
) -> Iterator[JobEngine]:
    """The engine for the jobs of a command; a `UsageError` before anything is launched if it cannot run them.

    `builds` is how many environments each machine builds at once.
    """
    if name == LOCAL:
        if ray_address is not None:
            raise UsageError("--ray-address applies to --engine ray.", code="unused-option")
        yield _Local(jobs)
        return
    for job in jobs:
        _refuse_job_limits(job.request)
        refuse_secrets(job.request, job.tasks)  # nodes are given the request
    with _opened_fleet(ray_address, jobs, builds) as fleet:
        yield _OnRay(fleet, jobs, ray_address)


class _Local:
    concurrency = DEFAULT_CONCURRENCY
    breaker = DEFAULT_RULES
    option = ""

    def __init__(self, jobs: Sequence[PlannedJob]) -> None:
        self._jobs: Final = jobs

    def runner(self, job: int, places: JobPlaces, concurrency: int, say: Callable[[str], None]) -> OpenRunner:
        del places, concurrency, say
        return self._jobs[job].sources

    def guarded(self, resume: str) -> AbstractContextManager[None]:
        del resume
        return nullcontext()


class _OnRay:
    breaker = replace(DEFAULT_RULES, failures=sys.maxsize)
    """Each node has its own: a lost node with its rollouts is no reason to pause the others."""

    def __init__(self, fleet: Fleet, jobs: Sequence[PlannedJob], address: str | None) -> None:
        self._fleet: Final = fleet
        self._jobs: Final = jobs
        self.option = f" --engine {RAY}" + (f" --ray-address {shlex.quote(address)}" if address else "")
        self.concurrency = max(1, int(sum(facts.processors for facts in fleet.facts.values())))

    def runner(self, job: int, places: JobPlaces, concurrency: int, say: Callable[[str], None]) -> OpenRunner:
        from benchflow.evaluation.scaled.scaled_runner import ScaledRunner

        self._fleet.say = say
        self._fleet.crowd(concurrency)
        planned = self._jobs[job]
        return ScaledRunner(self._fleet, planned.request, planned.sources, places, job=job)

    def guarded(self, resume: str) -> AbstractContextManager[None]:
        return last_words(f"{_ENDED} To continue: {resume}")


@contextmanager
def _opened_fleet(address: str | None, jobs: Sequence[PlannedJob], builds: int) -> Iterator[Fleet]:
    from benchflow.cluster.ray_cluster import RayCluster
    from benchflow.evaluation.scaled.demand import demand_of
    from benchflow.evaluation.scaled.facts import Asked
    from benchflow.evaluation.scaled.fleet import Fleet
    from benchflow.evaluation.scaled.launch_check import check_launch
    from benchflow.evaluation.scaled.orders import HostSettings
    from benchflow.sandbox.machine_settings.allowance import VARIABLE

    tasks = [(task.name, demand_of(task, job.request, os.environ)) for job in jobs for task in job.tasks]
    asked = Asked.for_demands(frozenset(demand for _, demand in tasks))
    settings = HostSettings(builds, os.environ.get(VARIABLE))
    arguments = (tuple(job.request for job in jobs), asked, settings)
    cluster = RayCluster(address, "benchflow.evaluation.scaled.node_host:NodeHost", arguments)
    fleet = Fleet(cluster, lambda text: note(printable(text)))
    live = is_terminal(sys.stderr)
    try:
        if live:
            note("Connecting to the Ray cluster. This can take a minute.")
        connected = cluster.connect()
        anyio.run(fleet.open)
        if live:
            note(f"The cluster at {connected} has {_size(fleet)}.")
        for sentence in check_launch(tasks, list(fleet.facts.values())):
            note(printable(sentence))
        yield fleet
    finally:
        anyio.run(fleet.close)


def _size(fleet: Fleet) -> str:
    nodes, processors = len(fleet.facts), sum(facts.processors for facts in fleet.facts.values())
    return f"{nodes} node{'s' * (nodes != 1)} for rollouts, with {processors:g} processor{'s' * (processors != 1)}"


def _refuse_job_limits(request: JobRequest) -> None:
    """Each node has a gateway of its own, which knows nothing of the calls on others."""
    for key, option in _OF_JOBS.items():
        if getattr(request, key) is not None:
            instead = "--concurrency" if key == "concurrent_calls" else option.replace("--job-", "--")
            message = f"{option} limits the whole job, which --engine ray does not support; use {instead} instead."
            raise UsageError(message, code="ray-limit")
