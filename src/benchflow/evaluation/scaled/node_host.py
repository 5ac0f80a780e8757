"""The side of a node: carries out the orders of one driver, with the same runners as the local engine.

It owns what is on its machine: sandboxes, builds, the cache of packages, a scratch folder. A rollout writes its folder
there; it is packed into the answer, or fetched in pieces. When the driver has been silent for `LEASE_SEC` all rollouts
are ended: a node that is cut off must not spend money on results that nobody will take.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from benchflow.cluster import NodeLost
from benchflow.errors import InfrastructureFailure
from benchflow.evaluation.job_models import JobModels
from benchflow.evaluation.packages import PackageRunner
from benchflow.evaluation.scaled import machine_room
from benchflow.evaluation.scaled.abilities import NodeFacts
from benchflow.evaluation.scaled.facts import Asked, find_facts, places
from benchflow.evaluation.scaled.folder_travel import packed, reader, take_back
from benchflow.evaluation.scaled.orders import Answer, FolderStream, HostSettings, Order, Pulse
from benchflow.evaluation.scaled.parcels import Arrivals
from benchflow.evaluation.work import Builds, TaskRef, WorkItem
from benchflow.files.scratch import scratch_folder, sweep_after_death
from benchflow.record import JobRequest, Result, RolloutFolder, outcome_of
from benchflow.record.reading.live_rollouts import WatchedRollout
from benchflow.rewards import attribute
from benchflow.rollout.drivers.replay import NotRescoredError
from benchflow.sandbox.inside.removal import remove_tree
from benchflow.sandbox.inside.tree_stream import Refused
from benchflow.sandbox.machine_settings.allowance import VARIABLE
from benchflow.task.taken import CHANGED

if TYPE_CHECKING:
    from benchflow.evaluation.cubes import CubeRunner

LEASE_SEC: Final = 60.0
KEPT: Final = "kept"
"""The name of a stream that arrives."""
DEFAULT_SETTINGS: Final = HostSettings()


@dataclass(slots=True)
class _Running:
    scope: anyio.CancelScope
    watched: WatchedRollout


class _Runners:
    """Those of one job."""

    def __init__(self, request: JobRequest) -> None:
        self._request: Final = request
        self._models: Final = JobModels(request, dict(os.environ))
        self.packages: Final = PackageRunner([], request, models=self._models)
        self._cubes: CubeRunner | None = None

    @property
    def cubes(self) -> CubeRunner:
        if self._cubes is None:
            from benchflow.evaluation.cubes import CubeRunner

            self._cubes = CubeRunner([], self._request, self._models)
        return self._cubes

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._models.close()
            await self.packages.close()
            if self._cubes is not None:
                await self._cubes.close()


class NodeHost:
    """Lives in a process of its own on a node, for one command of a driver."""

    def __init__(
        self,
        requests: Sequence[JobRequest],
        asked: Asked,
        settings: HostSettings = DEFAULT_SETTINGS,
        lease_sec: float = LEASE_SEC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`requests` are the jobs of the command, which run one after the other; `asked` is what facts they need."""
        self._requests: Final = tuple(requests)
        self._asked: Final = asked
        self._settings: Final = settings
        if settings.machine_settings is not None:
            os.environ[VARIABLE] = settings.machine_settings
        self._lease_sec: Final = lease_sec
        self._clock: Final = clock
        self._heard = clock()
        self._place: Final = scratch_folder("node-")
        sweep_after_death()
        self._arrivals: Final = Arrivals(self._place)
        self._running: Final[dict[str, _Running]] = {}
        self._packed: Final[dict[str, Path]] = {}
        self._runners: tuple[int, _Runners] | None = None
        self._builds: Final = Builds(settings.builds)
        self._watch: asyncio.Task[None] | None = None
        self._closed = False

    async def facts(self, name: str, processors: float | None) -> NodeFacts:
        """What this machine is."""
        return await find_facts(name, self._asked, self._place, processors=processors)

    async def pulse(self, finished: Collection[str] = ()) -> Pulse:
        """The driver is there; what this node does now. The folders of `finished` orders have arrived."""
        self._hear()
        for order in finished:
            await self._release(order)
        seen = ((order, running.watched.look()) for order, running in self._running.items())
        return Pulse(
            machine_room.vitals(places(self._place)),
            time.time(),
            {order: live for order, live in seen if live is not None},
            self._builds.finished,
        )

    async def take(self, digest: str, offset: int, size: int, data: bytes) -> None:
        """A piece of a parcel."""
        self._hear()
        await anyio.to_thread.run_sync(self._arrivals.take, digest, offset, size, data)

    async def run(self, order: Order) -> Answer | None:
        """Carry out an order; None if its package is not here, or has been damaged here since it arrived."""
        return await self._carry_out(order, self._run)

    async def receive(self, order: str, offset: int, data: bytes) -> None:
        """A piece of the kept folder of a rollout that is to be scored again."""
        self._hear()
        place = self._place / order / KEPT
        place.parent.mkdir(exist_ok=True)
        with place.open("r+b" if offset else "wb", buffering=0) as stream:
            stream.seek(offset)
            stream.write(data)

    async def score_again(self, order: Order, result: Result, kept: FolderStream) -> Answer | None:
        """Score the kept work of a rollout, without its agent; None as for `run`.

        The folder of the answer is that of the new verdict. Raises `NotRescoredError` if there cannot be one.
        """

        async def score(order: Order, item: WorkItem, folder: Path) -> Answer | None:
            await take_back(folder, kept, reader(folder.parent / KEPT))
            runners = await self._runners_of(order.job)
            again = await runners.packages.score_again(item, RolloutFolder(folder), result)
            if again is None:
                if not self._arrivals.is_intact(order.task.parcel or ""):
                    return None
                raise NotRescoredError("There is nothing to score.")
            rescore = again.notes.rescore
            if rescore is None or rescore.folder is None:
                return Answer(again, None)
            return await self._answer(order, folder / rescore.folder, again, folder.parent / "stream")

        return await self._carry_out(order, score)

    async def _run(self, order: Order, item: WorkItem, folder: Path) -> Answer:
        result = await self._result(order, item, folder)
        return await self._answer(order, folder, result, folder.parent / "stream")

    async def _carry_out(
        self, order: Order, work: Callable[[Order, WorkItem, Path], Awaitable[Answer | None]]
    ) -> Answer | None:
        self._hear()
        task = self._task(order)
        if task is None:
            return None
        folder = self._place / order.id / order.rollout
        item = WorkItem(task, order.attempt, order.key, line_up=order.line_up)
        with anyio.CancelScope() as scope:
            self._running[order.id] = _Running(scope, WatchedRollout(folder))
            try:
                answer = await work(order, item, folder)
                error = answer.result.error if answer is not None else None
                changed = answer is None or (error is not None and error.code == CHANGED)
                if changed and order.task.parcel is not None:
                    self._arrivals.forget(order.task.parcel)
                    return None
                return answer
            finally:
                del self._running[order.id]
                if order.id not in self._packed:
                    await _removed(folder.parent)
        raise NodeLost("The node ended its rollouts, because it had not heard from the driver for too long.")

    async def _result(self, order: Order, item: WorkItem, folder: Path) -> Result:
        runners = await self._runners_of(order.job)
        if order.task.cube is not None:
            return await runners.cubes.run(item, folder)
        await self._builds.prepare(runners.packages, item.task)
        return await runners.packages.run(item, folder)

    def _task(self, order: Order) -> TaskRef | None:
        """The task of an order as the runners take it."""
        task = order.task
        payload: Any = None
        if task.cube is not None:
            payload = cube_payload(*task.cube, task.digest)
        elif task.parcel is not None:
            payload = self._arrivals.known(task.parcel)
            if payload is None:
                return None
        return TaskRef(task.id, task.path, task.digest, task.environment, task.roles, payload)

    async def _runners_of(self, job: int) -> _Runners:
        """Jobs run one after the other: with the first order of the next one, what the last one used is released."""
        if self._runners is None or self._runners[0] != job:
            last, self._runners = self._runners, (job, _Runners(self._requests[job]))
            if last is not None:
                await last[1].close()
        return self._runners[1]

    async def _answer(self, order: Order, folder: Path, result: Result, place: Path) -> Answer:
        try:
            await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
            stream = await anyio.to_thread.run_sync(packed, folder, place)
        except (OSError, Refused) as error:
            return Answer(replace(result, outcome=outcome_of(attribute(error, "infrastructure", "record"))), None)
        if stream.data is None:
            self._packed[order.id] = place
        return Answer(result, stream)

    async def fetch(self, order: str, offset: int, size: int) -> bytes:
        """A piece of the folder of an order."""
        self._hear()
        with self._packed[order].open("rb", buffering=0) as stream:
            stream.seek(offset)
            return stream.read(size)

    async def _release(self, order: str) -> None:
        place = self._packed.pop(order, None)
        if place is not None:
            await _removed(place.parent)

    async def close(self) -> None:
        """End all rollouts and release everything; safe to call again."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            if self._watch is not None:
                self._watch.cancel()
            await self._end_rollouts()
            if self._runners is not None:
                await self._runners[1].close()
                self._runners = None
            await _removed(self._place)

    async def _end_rollouts(self) -> None:
        while self._running:
            for running in self._running.values():
                running.scope.cancel()
            await anyio.sleep(0.01)

    def _hear(self) -> None:
        """The driver has called."""
        if self._closed:
            raise InfrastructureFailure("This host was closed.", code="host-closed")
        self._heard = self._clock()
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._keep_lease())

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(min(self._lease_sec / 4, 5.0))
            if self._clock() - self._heard > self._lease_sec:
                await self._end_rollouts()


def cube_payload(name: str, config: str, digest: str | None) -> Any:
    """A task of a cube, which must be the same one as on the driver."""
    import hashlib

    from cube.task import TaskConfig

    found = TaskConfig.model_validate_json(config)
    if digest != f"sha256:{hashlib.sha256(found.model_dump_json().encode()).hexdigest()}":
        message = f"The cube '{name}' of this node reads the configuration of its task differently."
        raise InfrastructureFailure(message, code="cube-differs")
    return name, found


async def _removed(folder: Path) -> None:
    with anyio.CancelScope(shield=True):
        with suppress(OSError):
            await anyio.to_thread.run_sync(remove_tree, folder)
