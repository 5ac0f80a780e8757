"""Where the tasks of a job come from, and who runs them: package folders and installed cubes alike."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import anyio

from benchflow.evaluation.job_models import JobModels
from benchflow.evaluation.packages import PackageRunner
from benchflow.evaluation.work import TaskRef, WorkItem, numbered
from benchflow.record import JobRequest, Result, RolloutFolder
from benchflow.sandbox.pulling import OnPull

if TYPE_CHECKING:
    from benchflow.evaluation.cubes import CubeRunner

CUBE_PREFIX: Final = "cube:"


class Sources:
    """The sources of a job as one runner; `async with` releases their resources."""

    def __init__(self, request: JobRequest, on_pull: OnPull | None = None) -> None:
        sources = dict.fromkeys(request.sources)
        cubes = [source.removeprefix(CUBE_PREFIX) for source in sources if source.startswith(CUBE_PREFIX)]
        paths = [Path(source) for source in sources if not source.startswith(CUBE_PREFIX)]
        self._models: Final = JobModels(request, dict(os.environ))
        packages = PackageRunner(paths, request, on_pull, self._models)
        self._runners: Final[list[PackageRunner | CubeRunner]] = [packages]
        if cubes:
            from benchflow.evaluation.cubes import CubeRunner  # brings in the gym layer, which packages do not need

            self._runners.append(CubeRunner(cubes, request, self._models))
        self._owners: dict[TaskRef, PackageRunner | CubeRunner] = {}

    def tasks(self, *, agents_here: bool = True) -> list[TaskRef]:
        """All tasks, in the order of the sources; each is known from now on by who runs it."""
        owned = [(task, runner) for runner in self._runners for task in runner.tasks(agents_here=agents_here)]
        tasks = numbered([task for task, _ in owned])
        self._owners = {task: runner for task, (_, runner) in zip(tasks, owned, strict=True)}
        return tasks

    async def prepare(self, task: TaskRef) -> None:
        await self._owners[task].prepare(task)

    async def run(self, item: WorkItem, folder: Path) -> Result:
        return await self._owners[item.task].run(item, folder)

    def can_score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> bool:
        return self._owners[item.task].can_score_again(item, folder, result)

    async def score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> Result | None:
        return await self._owners[item.task].score_again(item, folder, result)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._models.close()
        for runner in self._runners:
            await runner.close()
