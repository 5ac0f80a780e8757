"""`EpisodeMaker`: makes the episodes of tasks. It has the sandbox backends and live benchmarks that they share.

`Opener` also lists what is served: the PATHs and cubes of a server on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchflow.errors import UsageError
from benchflow.evaluation.cubes import CubeRunner
from benchflow.evaluation.job_models import JobModels
from benchflow.evaluation.packages import PackageRunner
from benchflow.evaluation.sources import CUBE_PREFIX
from benchflow.evaluation.work import TaskRef
from benchflow.gym.driver import ActionDriver, PlannedTask, plan_task
from benchflow.gym.episode_calls import CallSettings
from benchflow.gym.shared import PACKAGES
from benchflow.models.gateway.call_limits import NO_CALL_LIMITS, CallLimits
from benchflow.models.gateway.shared_gateway import SharedGateway
from benchflow.plugins import SANDBOXES
from benchflow.record import JobRequest
from benchflow.sandbox.factory import AUTO, taken_package
from benchflow.sandbox.pulling import pull_policy
from benchflow.serve.cube_episode import CubeEpisode
from benchflow.serve.discretion import Discretion
from benchflow.serve.episode import Episode
from benchflow.serve.package_episode import EpisodeLimits, PackageEpisode
from benchflow.serve.served_tasks import ServedTask, ServedTasks, list_tasks
from benchflow.task.package import TaskPackage
from cube.benchmark import make_task
from cube.stage import Stage
from cube.task import Task, TaskConfig

MOST_PLANNED: Final = 64
"""How many tasks are kept planned. Each keeps a copy of its package, whatever else is kept of packages."""
_CLIENTS_SCOPES: Final = ("environment", "agent")
"""Scopes of secrets that a client may give: what verifiers and judges use is this machine's."""


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """How episodes are played, on whichever machine: the options of a server."""

    sandbox: str = AUTO
    base_image: str | None = None
    pull: str = "missing"
    isolation: str | None = None
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    call_limits: CallLimits = NO_CALL_LIMITS
    """On the calls of models that judges and users of one episode make."""

    def request(self, sources: Sequence[str]) -> JobRequest:
        """The same for those who run jobs."""
        return JobRequest(
            tuple(sources),
            "served",
            sandbox=self.sandbox,
            base_image=self.base_image,
            pull=self.pull,
            isolation=self.isolation,
        )


class EpisodeMaker:
    """Opens episodes; `async with` ends backends and benchmarks."""

    def __init__(
        self,
        settings: EpisodeSettings,
        cubes: Sequence[str] = (),
        *,
        records: Path | None = None,
        server_limits: CallLimits = NO_CALL_LIMITS,
        places: Iterable[Path] = (),
    ) -> None:
        """`records` is a folder for the calls of models that judges and simulated users make, `server_limits` are
        limits on those of all episodes together; `places` are not named to clients.

        Raises `UsageError` for an unknown sandbox, for a cube that is not installed, and for records and limits of one.
        """
        self._models: Final = SharedGateway(os.environ, settings.call_limits, server_limits, "server")
        self._calls: Final = CallSettings(records, self._models)
        if settings.sandbox != AUTO:
            SANDBOXES.load(settings.sandbox)
        if self._calls.used:
            require_no_cubes(cubes)
        request = settings.request([f"{CUBE_PREFIX}{name}" for name in cubes])
        self._settings: Final = settings
        self._planned: Final[dict[Path, PlannedTask]] = {}
        """By folder, last used last; one whose package has changed since is not used."""
        self._packages: Final = PackageRunner([], request)
        self._cubes: Final = CubeRunner(list(dict.fromkeys(cubes)), request, JobModels(request, os.environ))
        self._discretion: Final = Discretion(places)
        self.cube_tasks: Final[Mapping[str, Sequence[TaskRef]]] = cubes_listed(self._cubes)
        """The tasks of the cubes, by the name of the cube."""

    def open(
        self, task: ServedTask, secrets: Mapping[str, str] | None = None, *, records: Path | None = None
    ) -> Episode:
        """A new episode of a task, not begun; a package gets those `secrets` of a client that it declares.

        `records` takes the place of the folder that all episodes share.
        """
        payload = task.payload
        if isinstance(payload, TaskRef):
            name, listed = payload.payload
            config = listed if task.seed is None else listed.model_copy(update={"seed": task.seed})

            async def spawn() -> Callable[[], Task[Any]]:
                benchmark = await self._cubes.benchmark(name)
                return lambda: benchmark.spawn(config)

            return CubeEpisode(task.id, spawn, self._settings.limits.max_calls, self._discretion)
        calls = self._calls if records is None else replace(self._calls, records=records)
        start = partial(self._start, payload, task, secrets or {}, calls)
        return PackageEpisode(start, self._settings.limits, self._discretion)

    async def stage(self, task: ServedTask) -> Stage:
        """The stage of a gym task: its harness drives it by steps, and its limits are the harness's."""
        config, make = await self._gym_task(task)
        return Stage(lambda _: config, make)

    async def _gym_task(self, task: ServedTask) -> tuple[TaskConfig[Any], Callable[[TaskConfig[Any]], Task[Any]]]:
        """The config of a task, and what makes a live one of it."""
        payload, settings = task.payload, self._settings
        if isinstance(payload, TaskRef):
            name, config = payload.payload
            make: Callable[[TaskConfig[Any]], Task[Any]] = (await self._cubes.benchmark(name)).spawn
        else:
            from benchflow.gym import PackageBenchmarkConfig

            places = PackageBenchmarkConfig(
                paths=[str(payload)],
                sandbox=settings.sandbox,
                base_image=settings.base_image,
                pull=pull_policy(settings.pull),
                call_limits=settings.call_limits,
            )
            config, make = next(iter(places.get_task_configs())), lambda known: make_task(known, None, None)
        return config if task.seed is None else config.model_copy(update={"seed": task.seed}), make

    async def _start(
        self, folder: Path, task: ServedTask, secrets: Mapping[str, str], calls: CallSettings
    ) -> tuple[TaskPackage, ActionDriver]:
        package = await taken_package(PACKAGES.get(folder, task.full_digest))
        planned = None if secrets else self._planned.pop(folder, None)
        if planned is None or planned.setting.package is not package:
            machine = {**os.environ, **declared_secrets(package, secrets)} if secrets else None
            planned = await self._plan(package, machine)
        if not secrets:
            self._remember(folder, planned)
        try:
            return package, await ActionDriver.begin(planned, seed=task.seed, calls=calls)
        except BaseException:
            self._planned.pop(folder, None)  # its image may be gone, for instance: the next episode looks again
            raise

    async def _plan(self, package: TaskPackage, machine: Mapping[str, str] | None) -> PlannedTask:
        backend = await self._packages.backend(package)
        chosen = await self._packages.isolation(package)
        return await plan_task(package, backend, base_image=self._settings.base_image, chosen=chosen, machine=machine)

    def _remember(self, folder: Path, planned: PlannedTask) -> None:
        """Keep the plan of a task for its next episodes, unless it names services, which belong to one episode."""
        if planned.preparation.spec.composition is not None or planned.preparation.services is not None:
            return
        self._planned[folder] = planned
        while len(self._planned) > MOST_PLANNED:
            self._planned.pop(next(iter(self._planned)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._packages.close()
        await self._cubes.close()
        await self._models.close()


class Opener(EpisodeMaker):
    """What a server offers from PATHs and cubes, played on this machine."""

    def __init__(
        self,
        sources: Sequence[str],
        settings: EpisodeSettings | None = None,
        *,
        records: Path | None = None,
        server_limits: CallLimits = NO_CALL_LIMITS,
    ) -> None:
        """Raises `UsageError`, as `EpisodeMaker` does, and for a PATH that does not exist."""
        super().__init__(
            settings or EpisodeSettings(),
            cube_names(sources),
            records=records,
            server_limits=server_limits,
            places=[Path(source) for source in sources if not source.startswith(CUBE_PREFIX)],
        )
        self.tasks: Final[ServedTasks] = list_tasks(sources, self.cube_tasks)

    async def open_soon(self, task: ServedTask, wait_sec: float) -> Episode:
        """`open`: this machine has nothing to wait for."""
        del wait_sec
        return self.open(task)


def cube_names(sources: Sequence[str]) -> list[str]:
    """The cubes among PATHs and `cube:NAME`, each once."""
    return list(dict.fromkeys(each.removeprefix(CUBE_PREFIX) for each in sources if each.startswith(CUBE_PREFIX)))


def require_no_cubes(names: Sequence[str]) -> None:
    """Refuse cubes where calls of models are recorded or limited."""
    if names:
        message = (
            f"{CUBE_PREFIX}{names[0]}: records of and limits on model calls are for packages; what a cube calls in"
            " its own code passes by them. Serve it without those options."
        )
        raise UsageError(message, code="cube-calls")


def cubes_listed(runner: CubeRunner) -> dict[str, list[TaskRef]]:
    """All tasks of the cubes of a runner, by the name of the cube."""
    listed: dict[str, list[TaskRef]] = {}
    for ref in runner.listed():
        listed.setdefault(ref.payload[0], []).append(ref)
    return listed


def declared_secrets(package: TaskPackage, secrets: Mapping[str, str]) -> dict[str, str]:
    """Those secrets of a client that the package declares for its environment or its agent."""
    wanted = [secret.env or secret.name for secret in package.view.namespace.secrets if secret.scope in _CLIENTS_SCOPES]
    return {name: secrets[name] for name in wanted if name in secrets}
