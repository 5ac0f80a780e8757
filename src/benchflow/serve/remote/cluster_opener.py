"""`ClusterOpener`: what an `Opener` does for the episodes of this machine, on the nodes of a cluster.

Packages are sent to the nodes that play them, once each, by content. Cubes must be installed there. Nodes come and go:
see `fleet`.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Final, Self

import anyio
import anyio.to_thread

from benchflow.cluster import Cluster
from benchflow.cluster.parcels import Parcel, make_parcel
from benchflow.errors import PackageError, UnsupportedError
from benchflow.evaluation.cubes import CubeRunner
from benchflow.evaluation.job_models import JobModels
from benchflow.evaluation.sources import CUBE_PREFIX
from benchflow.evaluation.work import TaskRef
from benchflow.files import write_atomic
from benchflow.gym.shared import PACKAGES
from benchflow.plugins import SANDBOXES
from benchflow.sandbox.factory import AUTO
from benchflow.serve.discretion import Discretion
from benchflow.serve.opening import EpisodeSettings, cube_names, cubes_listed, declared_secrets
from benchflow.serve.remote.episode_orders import EpisodeOrder
from benchflow.serve.remote.fleet import BEAT_SEC, LOST_SEC, Fleet, Member, NoNode
from benchflow.serve.remote.remote_episode import RemoteEpisode
from benchflow.serve.served_tasks import ServedTask, ServedTasks, list_tasks
from benchflow.serve.server_log import Log, silent
from benchflow.task.package import TaskPackage

KEPT_PARCELS: Final = 64 << 20
"""Bytes of parcels that are kept for the next node."""


class ClusterOpener:
    """Lists what is served and opens it on nodes; `async with` joins the nodes, and ends everything on them."""

    def __init__(
        self,
        sources: Sequence[str],
        settings: EpisodeSettings,
        cluster: Cluster,
        *,
        records: Path | None = None,
        beat_sec: float = BEAT_SEC,
        lost_sec: float = LOST_SEC,
        log: Log = silent,
    ) -> None:
        """`cluster` starts `HOST` with `HostSettings` that have the same settings and cubes."""
        if settings.sandbox != AUTO:
            SANDBOXES.load(settings.sandbox)
        request = settings.request(sources)
        cubes = CubeRunner(cube_names(sources), request, JobModels(request, os.environ))
        places = [Path(source) for source in sources if not source.startswith(CUBE_PREFIX)]
        self.tasks: Final[ServedTasks] = list_tasks(sources, cubes_listed(cubes))
        self.fleet: Final = Fleet(cluster, beat_sec=beat_sec, lost_sec=lost_sec, log=log)
        self._discretion: Final = Discretion(places)
        self._records: Final = records
        self._parcels: Final[OrderedDict[str, Parcel]] = OrderedDict()
        self._packing: Final = anyio.Lock()
        """Held while a parcel is made: several nodes may want the same one."""

    def open(self, task: ServedTask, secrets: Mapping[str, str] | None = None) -> RemoteEpisode:
        """A new episode of a task on the node with the fewest, not begun; `NoNode` if none can play it now."""
        place = self.fleet.place(_cube_of(task))
        keep = partial(_keep_records, self._records) if self._records is not None else None
        return RemoteEpisode(self.fleet, place, partial(self._prepare, task, secrets or {}), self._discretion, keep)

    async def open_soon(self, task: ServedTask, wait_sec: float) -> RemoteEpisode:
        """The same, once a node can play it; `NoNode` if none can for this long."""
        with anyio.move_on_after(wait_sec):
            while True:
                try:
                    return self.open(task)
                except NoNode:
                    await self.fleet.wait_for_change()
        return self.open(task)

    def require_room(self, tasks: Sequence[ServedTask]) -> None:
        """Raise `NoNode` unless all these can be played at the same time."""
        for cube, wanted in Counter(map(_cube_of, tasks)).items():
            room = self.fleet.room(cube)
            if room == 0:
                self.fleet.place(cube)
            if room < wanted:
                raise NoNode(f"{wanted} episodes were asked for, and the nodes of the cluster have room for {room}.")
        if (room := self.fleet.room()) < len(tasks):
            raise NoNode(f"{len(tasks)} episodes were asked for, and the nodes of the cluster have room for {room}.")

    async def _prepare(self, task: ServedTask, secrets: Mapping[str, str], member: Member) -> EpisodeOrder:
        """The order of an episode; its package is on the node then."""
        payload = task.payload
        if isinstance(payload, TaskRef):
            return EpisodeOrder("", payload.name, task.digest, payload.payload[0], task.seed)
        package = PACKAGES.get(payload, task.full_digest)
        if given := sorted(declared_secrets(package, secrets)):
            sentence = (
                f"The package declares {', '.join(given)}, and secrets of clients are not sent to the nodes of a"
                " cluster: set them in the environment of the nodes."
            )
            raise UnsupportedError(sentence, code="client-secrets")
        await self._deliver(package, member)
        return EpisodeOrder("", task.id, package.content_digest, seed=task.seed)

    async def _deliver(self, package: TaskPackage, member: Member) -> None:
        """Send a package to a node that does not have it, once."""
        digest = package.content_digest
        if digest in member.taken:
            return
        async with member.sending:
            if digest not in member.taken:
                await member.call("take", await self._parcel(package))
                member.taken.add(digest)

    async def _parcel(self, package: TaskPackage) -> Parcel:
        digest = package.content_digest
        async with self._packing:
            parcel = self._parcels.pop(digest, None)
            if parcel is None:
                parcel = await anyio.to_thread.run_sync(make_parcel, package)
            self._parcels[digest] = parcel
            while len(self._parcels) > 1 and sum(len(each.data) for each in self._parcels.values()) > KEPT_PARCELS:
                self._parcels.popitem(last=False)
            return parcel

    async def __aenter__(self) -> Self:
        await self.fleet.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.fleet.__aexit__(kind, error, trace)


def _cube_of(task: ServedTask) -> str | None:
    return task.payload.payload[0] if isinstance(task.payload, TaskRef) else None


async def _keep_records(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write what a node recorded of an episode, in a folder of its own as episodes of this machine have it."""
    for name, data in files.items():
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts:
            raise PackageError(f"A node sent a record with the name {name[:100]!r}, which is not below its folder.")
        place = anyio.Path(folder / inside)
        await place.parent.mkdir(parents=True, exist_ok=True)
        await anyio.to_thread.run_sync(partial(write_atomic, Path(place), data, sync=False))
