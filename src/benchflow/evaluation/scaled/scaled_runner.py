"""Runs the items of a job on the nodes of a cluster, for the one engine there is.

An item is ordered from one node, once. Its folder comes back whole and the result with it; if the node is lost, that is
the result of this try, and whether there is another one is decided by the engine.
"""

from __future__ import annotations

import os
import secrets
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio

from benchflow.cluster import NodeLost
from benchflow.errors import BenchflowError, InfrastructureFailure, PackageError
from benchflow.evaluation.scaled.abilities import Demand
from benchflow.evaluation.scaled.demand import demand_of
from benchflow.evaluation.scaled.fleet import Fleet, Host
from benchflow.evaluation.scaled.folder_travel import NoRoomHereError, take_back
from benchflow.evaluation.scaled.lost_attempts import record_here, record_unscored
from benchflow.evaluation.scaled.orders import Answer, FolderStream, Order, OrderedTask
from benchflow.evaluation.scaled.parcels import Parcels, give
from benchflow.evaluation.scaled.scoring_again import not_scored_again, send_kept
from benchflow.evaluation.sources import Sources
from benchflow.evaluation.store import job_argument
from benchflow.evaluation.work import TaskRef, WorkItem
from benchflow.record import JobPlaces, JobRequest, Result, RolloutFolder, write_document
from benchflow.rewards import Unscored, attribute
from benchflow.rollout.drivers.replay import NotRescoredError
from benchflow.task.package import TaskPackage

_SENDS: Final = 2
"""How often a package is sent to a node that finds it damaged."""
_FETCHES: Final = 16
"""Large folders that are fetched at once: thousands may end together, and each has a piece in memory."""


class ScaledRunner:
    """The runner of one job. `async with` keeps the nodes alive; the fleet belongs to the caller."""

    def __init__(self, fleet: Fleet, request: JobRequest, local: Sources, places: JobPlaces, *, job: int = 0) -> None:
        """`local` has planned the tasks; it carries out those that need no machine. `job` counts on the hosts."""
        self._fleet: Final = fleet
        self._request: Final = request
        self._local: Final = local
        self._job: Final = job
        self._parcels: Final = Parcels()
        self._fetching: Final = anyio.CapacityLimiter(_FETCHES)
        self._demands: Final[dict[TaskRef, Demand]] = {}
        self._folder: Final = places.path
        self._working = self._fleet.working(places)

    async def __aenter__(self) -> Self:
        await self._working.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._working.__aexit__(None, None, None)  # a failure of the job is raised as it is, not in a group
        finally:
            await self._local.__aexit__(kind, error, trace)

    async def prepare(self, task: TaskRef) -> None:
        """Each node builds what it needs itself."""

    async def run(self, item: WorkItem, folder: Path) -> Result:
        payload = item.task.payload
        if isinstance(payload, TaskPackage) and not payload.valid:
            return await self._local.run(item, folder)  # nothing is started for it
        try:
            task = self._ordered(item.task)
        except PackageError as error:
            return await record_unscored(item, self._request, folder, attribute(error, "package", "plan"))
        async with self._fleet.place(self._demand(item.task), item.key) as host:
            try:
                result = await self._on(host, item, task, folder)
            except NodeLost as error:
                self._fleet.lost(host, error)
                verdict = Unscored("infrastructure", "plan", "node-lost", str(error))
            except NoRoomHereError as error:
                raise self._ended(error) from error
            except Exception as error:  # noqa: BLE001  # the boundary: no failure of one rollout ends the others
                verdict = attribute(error, "infrastructure", "plan")
            else:
                self._fleet.returned(host, item.key, result)
                return result
            return await record_unscored(item, self._request, folder, verdict, self._fleet.watches[host.node.id].note)

    def _ended(self, error: NoRoomHereError) -> InfrastructureFailure:
        """The end of the job: each further rollout would be done for nothing, and again after a resume."""
        command = f"bench eval resume {job_argument(self._folder)}"
        return InfrastructureFailure(f"{error} Fix this, then run: {command}", code=error.code)

    def _demand(self, task: TaskRef) -> Demand:
        if task not in self._demands:
            self._demands[task] = demand_of(task, self._request, os.environ)
        return self._demands[task]

    def _ordered(self, task: TaskRef) -> OrderedTask:
        parcel, cube = None, None
        if isinstance(task.payload, TaskPackage):
            parcel = self._parcels.digest(task.payload)
        else:
            name, config = task.payload
            cube = (name, config.model_dump_json())
        return OrderedTask(task.id, task.path, task.digest, task.environment, task.roles, parcel, cube)

    async def _on(self, host: Host, item: WorkItem, task: OrderedTask, folder: Path) -> Result:
        order = Order(secrets.token_hex(8), self._job, folder.name, task, item.attempt, item.key, item.line_up)
        host.orders[order.id] = order
        try:
            answer = await self._answer(host, order, item, "run")
            note = self._fleet.watches[host.node.id].note
            result = replace(answer.result, notes=replace(answer.result.notes, node=note))
            if answer.folder is None:
                await record_here(result, folder)
                return result

            await self._take_back(host, order, folder, answer.folder)
            write_document(RolloutFolder(folder).result, result.to_dict(), sync=False)  # its node is noted
            return result
        finally:
            del host.orders[order.id]

    async def _take_back(self, host: Host, order: Order, folder: Path, stream: FolderStream) -> None:
        async def fetch(offset: int, size: int) -> bytes:
            part: bytes = await host.call("fetch", order.id, offset, size)
            return part

        try:
            async with nullcontext() if stream.data is not None else self._fetching:
                await take_back(folder, stream, fetch)
        finally:
            if stream.data is None:
                host.finished.add(order.id)  # no call of its own: a node that is lost now has delivered

    async def _answer(self, host: Host, order: Order, item: WorkItem, method: str, *more: object) -> Answer:
        for _ in range(_SENDS):
            if order.task.parcel is not None:
                await give(host, order.task.parcel, self._parcels, item.task.payload)
            answer: Answer | None = await host.call(method, order, *more)
            if answer is not None:
                return answer
            host.parcels.pop(order.task.parcel or "", None)
        message = f"The package {item.task.name} is damaged on node {host.node} each time it arrives."
        raise BenchflowError(message, code="parcel-damaged")

    def can_score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> bool:
        return self._local.can_score_again(item, folder, result)

    async def score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> Result | None:
        """On a node: the kept folder travels there, and the new verdict back."""
        try:
            task = self._ordered(item.task)
        except PackageError:
            return None
        async with self._fleet.place(self._demand(item.task), item.key) as host:
            try:
                again = await self._scored_again(host, item, task, folder, result)
            except NotRescoredError:
                return None
            except NodeLost as error:
                self._fleet.lost(host, error)
                verdict = Unscored("infrastructure", "verify", "node-lost", str(error))
            except NoRoomHereError as error:
                raise self._ended(error) from error
            except Exception as error:  # noqa: BLE001  # the boundary: no failure of one rollout ends the others
                verdict = attribute(error, "infrastructure", "verify")
            else:
                self._fleet.returned(host, item.key, again)
                return again
        return not_scored_again(item.task.payload, result, verdict)

    async def _scored_again(
        self, host: Host, item: WorkItem, task: OrderedTask, folder: RolloutFolder, result: Result
    ) -> Result:
        order = Order(secrets.token_hex(8), self._job, folder.path.name, task, item.attempt, item.key, item.line_up)
        host.orders[order.id] = order
        try:
            kept = await send_kept(host, order.id, folder.path)
            answer = await self._answer(host, order, item, "score_again", result, kept)
            rescore = answer.result.notes.rescore
            if answer.folder is not None and rescore is not None and rescore.folder is not None:
                await self._take_back(host, order, folder.path / rescore.folder, answer.folder)
            return answer.result
        finally:
            host.finished.add(order.id)
            del host.orders[order.id]
