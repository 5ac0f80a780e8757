"""Gym tasks on the nodes of a Ray cluster: `reset`, `step`, `evaluate` and `close` of each are carried out there.

    with open_tasks("cube:counter-cube", address="10.0.0.1:6379") as tasks:
        task = tasks.spawn("up-3", seed=1)
        obs, info = task.reset()

A task whose node is lost raises `UnscoredError` (`infrastructure`, `node-lost`): it has no reward. Spawn it again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchflow.cluster import NodeLost
from benchflow.errors import UsageError, did_you_mean
from benchflow.gym import UnscoredError
from benchflow.gym.sandbox_container import LOOP
from benchflow.rewards import Attributed, Unscored
from benchflow.sandbox.factory import AUTO
from benchflow.sandbox.pulling import PullPolicy
from benchflow.serve.opening import EpisodeSettings
from benchflow.serve.remote.cluster_opener import ClusterOpener
from benchflow.serve.remote.episode_orders import MOST_EPISODES
from benchflow.serve.remote.remote_episode import NODE_LOST
from benchflow.serve.remote.session_places import Place
from cube.client import TaskMethods
from cube.jsonrpc import result_of


class RemoteTask(TaskMethods):
    """A gym task on a node, with the methods of a task."""

    def __init__(self, opener: ClusterOpener, place: Place, task_id: str) -> None:
        self.task_id: Final = task_id
        self._opener: Final = opener
        self._place: Final = place
        self._numbers: Final = itertools.count(1)
        self._closed = False

    @property
    def node(self) -> str:
        """The machine that plays it."""
        return str(self._place.host.node)

    def rpc(self, method: str, **params: Any) -> Any:
        """Call a method there; `UnscoredError` if the node is lost, or has ended the task."""
        if self._closed:
            raise UsageError(f"The task '{self.task_id}' is closed.")
        request = {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}
        try:
            answer: bytes | None = LOOP.run(self._place.call, "rpc", self._place.name, json.dumps(request).encode())
        except NodeLost as error:
            raise UnscoredError(Unscored("infrastructure", "agent", NODE_LOST, str(error))) from error
        if answer is None:
            reason = f"The node {self.node} has ended the task."
            raise UnscoredError(Unscored("infrastructure", "agent", "episode-gone", reason))
        return result_of(json.loads(answer))

    def close(self) -> None:
        """End it with all that runs in it; safe to call again."""
        if not self._closed:
            self._closed = True
            LOOP.run(self._end)

    async def _end(self) -> None:
        try:
            await self._place.call("end", self._place.name)
        except NodeLost:
            return  # all that ran there ends with it, or by its lease
        finally:
            self._opener.places.free(self._place)


class GymTasks:
    """The tasks of packages and cubes, made on nodes; `with` ends all of them."""

    def __init__(self, opener: ClusterOpener) -> None:
        self._opener: Final = opener
        every = [task for each in opener.tasks.environments.values() for task in each.all_tasks()]
        self._known: Final = {task.id: task for task in every}
        self._entered: AbstractContextManager[Any] | None = None

    @property
    def task_ids(self) -> tuple[str, ...]:
        return tuple(self._known)

    def spawn(self, task_id: str, seed: int | None = None) -> RemoteTask:
        """A new task on the node with the fewest. Raises `UnscoredError` if it cannot be made, `NoNode` without one."""
        if task_id not in self._known:
            known = ", ".join(list(self._known)[:20])
            near = did_you_mean(task_id, self._known)
            raise UsageError(f"Unknown task '{task_id}'; available: {known}.{near}", code="unknown-task")
        try:
            place: Place = LOOP.run(self._opener.stage, self._known[task_id].seeded(seed))
        except Attributed as error:
            raise UnscoredError(error.verdict) from error
        return RemoteTask(self._opener, place, task_id)

    def __enter__(self) -> Self:
        self._entered = LOOP.portal().wrap_async_context_manager(self._opener)
        self._entered.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.__exit__(None, None, None)


def open_tasks(
    sources: str | Path | Sequence[str | Path],
    *,
    address: str | None = None,
    sandbox: str = AUTO,
    base_image: str | None = None,
    pull: PullPolicy = "missing",
    per_node: int = MOST_EPISODES,
) -> GymTasks:
    """The gym tasks of packages, folders of them, bundles and `cube:NAME`, on the cluster at `address`.

    Without an address it is `RAY_ADDRESS`, or the cluster of this machine.
    """
    from benchflow.serve.remote.ray_opener import ray_opener

    named = [str(each) for each in ([sources] if isinstance(sources, str | Path) else sources)]
    return GymTasks(ray_opener(named, EpisodeSettings(sandbox, base_image, pull), address, most=per_node))
