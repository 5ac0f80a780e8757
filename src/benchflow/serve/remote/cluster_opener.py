"""`ClusterOpener`: what an `Opener` does for the episodes of this machine, on the nodes of a cluster.

Packages are sent to the nodes that play them, once each. Cubes must be installed there. Nodes come and go: see
`session_places`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Final, Self

import anyio
import anyio.to_thread

from benchflow.cluster import Cluster
from benchflow.errors import InfrastructureFailure, UnsupportedError
from benchflow.evaluation.cubes import CubeRunner
from benchflow.evaluation.job_models import JobModels
from benchflow.evaluation.scaled.facts import Asked
from benchflow.evaluation.scaled.fleet import PULSE_SEC
from benchflow.evaluation.scaled.parcels import Parcels, give
from benchflow.evaluation.sources import CUBE_PREFIX
from benchflow.evaluation.work import TaskRef
from benchflow.files import write_atomic
from benchflow.gym.shared import PACKAGES
from benchflow.models.gateway.call_limits import NO_CALL_LIMITS
from benchflow.plugins import SANDBOXES
from benchflow.rewards import Attributed, Unscored
from benchflow.sandbox.factory import AUTO
from benchflow.serve.discretion import Discretion
from benchflow.serve.opening import EpisodeSettings, cube_names, cubes_listed, declared_secrets, require_no_cubes
from benchflow.serve.remote.episode_orders import LEASE_SEC, MOST_EPISODES, CubeOrder, EpisodeOrder, HostSettings
from benchflow.serve.remote.remote_episode import RemoteEpisode, ordered
from benchflow.serve.remote.served_demands import demand_of_served
from benchflow.serve.remote.session_places import NoNode, Place, SessionPlaces
from benchflow.serve.served_tasks import ServedTask, ServedTasks, list_tasks
from benchflow.serve.server_log import Log, silent

Connect = Callable[[HostSettings], Cluster]
"""A cluster whose nodes get an `EpisodeHost` with these settings."""


class ClusterOpener:
    """Lists what is served and opens it on nodes; `async with` joins the nodes, and ends everything on them."""

    def __init__(
        self,
        sources: Sequence[str],
        settings: EpisodeSettings,
        connect: Connect,
        *,
        records: Path | None = None,
        most: int = MOST_EPISODES,
        lease_sec: float = LEASE_SEC,
        pulse_sec: float = PULSE_SEC,
        log: Log = silent,
    ) -> None:
        """`most` is how many episodes a node plays at one time. Raises `UsageError`, as `Opener` does and `connect`."""
        if settings.sandbox != AUTO:
            SANDBOXES.load(settings.sandbox)
        if records is not None or settings.call_limits != NO_CALL_LIMITS:
            require_no_cubes(cube_names(sources))
        request = settings.request(sources)
        cubes = CubeRunner(cube_names(sources), request, JobModels(request, os.environ))
        self.tasks: Final[ServedTasks] = list_tasks(sources, cubes_listed(cubes))
        every = [task for environment in self.tasks.environments.values() for task in environment.all_tasks()]
        self._demands: Final = {_key(task): demand_of_served(task, request, os.environ) for task in every}
        asked = Asked.for_demands(frozenset(self._demands.values()))
        host = HostSettings(settings, asked, keeps_records=records is not None, lease_sec=lease_sec)
        self.places: Final = SessionPlaces(connect(host), most=most, log=log, pulse_sec=pulse_sec)
        self._discretion: Final = Discretion(Path(each) for each in sources if not each.startswith(CUBE_PREFIX))
        self._records: Final = records
        self._parcels: Final = Parcels()
        self._opened: AbstractAsyncContextManager[None] | None = None

    def open(self, task: ServedTask, secrets: Mapping[str, str] | None = None) -> RemoteEpisode:
        """A new episode of a task on the node with the fewest, not begun; `NoNode` if none can play it now."""
        place = self.places.take(self._demands[_key(task)], task.id)
        keep = partial(_keep_records, self._records) if self._records is not None else None
        return RemoteEpisode(self.places, place, partial(self._prepare, task, secrets or {}), self._discretion, keep)

    async def stage(self, task: ServedTask) -> Place:
        """A gym task on the node with the fewest episodes; the place there takes its calls (`rpc`) and its `end`.

        Raises `NoNode`, or `Attributed`.
        """
        place = self.places.take(self._demands[_key(task)], task.id)
        try:
            answer = await ordered(place, "stage", partial(self._prepare, task, {}))
            if isinstance(answer.verdict, Unscored):
                raise Attributed(answer.verdict)
        except BaseException:
            self.places.free(place)
            raise
        return place

    async def open_soon(self, task: ServedTask, wait_sec: float) -> RemoteEpisode:
        """The same, once a node can play it; `NoNode` if none can for this long."""
        with anyio.move_on_after(wait_sec):
            while True:
                try:
                    return self.open(task)
                except NoNode:
                    await self.places.wait_for_change()
        return self.open(task)

    def require_room(self, count: int) -> None:
        """Raise `NoNode` unless so many can be played at the same time."""
        room = self.places.room()
        if room < count:
            raise NoNode(f"{count} episodes were requested, but the nodes of the cluster have room for {room}.")

    async def _prepare(self, task: ServedTask, secrets: Mapping[str, str], place: Place) -> EpisodeOrder:
        """The order of an episode; its package is on the node then."""
        payload = task.payload
        if isinstance(payload, TaskRef):
            name, config = payload.payload
            cube = CubeOrder(name, config.model_dump_json(), task.digest)
            return EpisodeOrder(place.name, task.id, cube=cube, seed=task.seed)
        package = PACKAGES.get(payload, task.full_digest)
        if given := sorted(declared_secrets(package, secrets)):
            sentence = (
                f"The package declares {', '.join(given)}, and secrets of clients are not sent to the nodes of a"
                " cluster: set them in the environment of the nodes."
            )
            raise UnsupportedError(sentence, code="client-secrets")
        digest = self._parcels.digest(package)
        await give(place.host, digest, self._parcels, package)
        return EpisodeOrder(place.name, task.id, digest, seed=task.seed)

    async def __aenter__(self) -> Self:
        self._opened = self.places.open([(name, demand) for (_, name), demand in self._demands.items()])
        await self._opened.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.__aexit__(kind, error, trace)


def _key(task: ServedTask) -> tuple[str, str]:
    """The same for a task in whichever split, with whichever seed."""
    return task.environment, task.id


async def _keep_records(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write what a node recorded of an episode, in a folder of its own as episodes of this machine have it."""
    for name, data in files.items():
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts:
            message = f"A node sent a record with the name {name[:100]!r}, which is not below its folder."
            raise InfrastructureFailure(message, code="record-invalid")
        place = anyio.Path(folder / inside)
        await place.parent.mkdir(parents=True, exist_ok=True)
        await anyio.to_thread.run_sync(partial(write_atomic, Path(place), data, sync=False))
