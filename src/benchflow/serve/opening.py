"""`Opener`: makes the episodes of served tasks. It has the sandbox backends and live benchmarks that they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
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
from benchflow.serve.cube_episode import CubeEpisode
from benchflow.serve.discretion import Discretion
from benchflow.serve.episode import Episode
from benchflow.serve.package_episode import EpisodeLimits, PackageEpisode
from benchflow.serve.served_tasks import ServedTask, ServedTasks, list_tasks
from benchflow.task.package import TaskPackage
from cube.task import Task

MOST_PLANNED: Final = 64
"""How many tasks are kept planned. Each keeps a copy of its package, whatever else is kept of packages."""
_CLIENTS_SCOPES: Final = ("environment", "agent")
"""Scopes of secrets that a client may give: what verifiers and judges use is this machine's."""


class Opener:
    """Lists what is served and opens it; `async with` ends backends and benchmarks."""

    def __init__(
        self,
        sources: Sequence[str],
        *,
        sandbox: str = AUTO,
        base_image: str | None = None,
        pull: str = "missing",
        isolation: str | None = None,
        limits: EpisodeLimits | None = None,
        records: Path | None = None,
        call_limits: CallLimits = NO_CALL_LIMITS,
        server_limits: CallLimits = NO_CALL_LIMITS,
    ) -> None:
        """`records` is a folder for the calls of models that judges and simulated users make; `call_limits` are limits
        on those calls for each episode, `server_limits` for all that this opens.

        Raises `UsageError` for an unknown sandbox, a PATH that does not exist, a cube that is not installed, and for
        records and limits of a cube.
        """
        self._models: Final = SharedGateway(os.environ, call_limits, server_limits, "server")
        self._calls: Final = CallSettings(records, self._models)
        if sandbox != AUTO:
            SANDBOXES.load(sandbox)
        request = JobRequest(
            tuple(sources), "served", sandbox=sandbox, base_image=base_image, pull=pull, isolation=isolation
        )
        names = [source.removeprefix(CUBE_PREFIX) for source in sources if source.startswith(CUBE_PREFIX)]
        if names and self._calls.used:
            message = (
                f"{CUBE_PREFIX}{names[0]}: records of and limits on model calls are for packages; what a cube calls in"
                " its own code passes by them. Serve it without those options."
            )
            raise UsageError(message, code="cube-calls")
        self._base_image: Final = base_image
        self._limits: Final = limits or EpisodeLimits()
        self._planned: Final[dict[Path, PlannedTask]] = {}
        """By folder, last used last; one whose package has changed since is not used."""
        self._packages: Final = PackageRunner([], request)
        self._cubes: Final = CubeRunner(list(dict.fromkeys(names)), request, JobModels(request, os.environ))
        listed: dict[str, list[TaskRef]] = {}
        for ref in self._cubes.listed():
            listed.setdefault(ref.payload[0], []).append(ref)
        self.tasks: Final[ServedTasks] = list_tasks(sources, listed)
        self._discretion: Final = Discretion(Path(source) for source in sources if not source.startswith(CUBE_PREFIX))

    def open(self, task: ServedTask, secrets: Mapping[str, str] | None = None) -> Episode:
        """A new episode of a task, not begun; a package gets those `secrets` of a client that it declares."""
        payload = task.payload
        if isinstance(payload, TaskRef):
            name, listed = payload.payload
            config = listed if task.seed is None else listed.model_copy(update={"seed": task.seed})

            async def spawn() -> Callable[[], Task[Any]]:
                benchmark = await self._cubes.benchmark(name)
                return lambda: benchmark.spawn(config)

            return CubeEpisode(task.id, spawn, self._limits.max_calls, self._discretion)
        start = partial(self._start, payload, task, secrets or {})
        return PackageEpisode(start, self._limits, self._discretion)

    async def _start(
        self, folder: Path, task: ServedTask, secrets: Mapping[str, str]
    ) -> tuple[TaskPackage, ActionDriver]:
        package = await taken_package(PACKAGES.get(folder, task.full_digest))
        planned = None if secrets else self._planned.pop(folder, None)
        if planned is None or planned.setting.package is not package:
            planned = await self._plan(package, {**os.environ, **_declared(package, secrets)} if secrets else None)
        if not secrets:
            self._remember(folder, planned)
        try:
            return package, await ActionDriver.begin(planned, seed=task.seed, calls=self._calls)
        except BaseException:
            self._planned.pop(folder, None)  # its image may be gone, for instance: the next episode looks again
            raise

    async def _plan(self, package: TaskPackage, machine: Mapping[str, str] | None) -> PlannedTask:
        backend = await self._packages.backend(package)
        chosen = await self._packages.isolation(package)
        return await plan_task(package, backend, base_image=self._base_image, chosen=chosen, machine=machine)

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


def _declared(package: TaskPackage, secrets: Mapping[str, str]) -> dict[str, str]:
    wanted = [secret.env or secret.name for secret in package.view.namespace.secrets if secret.scope in _CLIENTS_SCOPES]
    return {name: secrets[name] for name in wanted if name in secrets}
