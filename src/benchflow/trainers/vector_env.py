"""`EpisodeVectorEnv`: many episodes at once as a Gymnasium vector environment, on this machine or on a cluster.

An action is what it is in `PackageEnv`: a shell command, or `submit`. For a task of a cube it is a call as JSON,
`{"name": …, "arguments": {…}}`, or the name of an action alone. Steps of all environments run at the same time. One
that breaks is truncated, with the reward NaN and `info["unscored"]`, and starts again at its next reset, on another
node if its own was lost.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any, Final

import anyio
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from benchflow.errors import UsageError
from benchflow.evaluation.work import TaskRef
from benchflow.gym import UnscoredError
from benchflow.gym.sandbox_container import LOOP
from benchflow.rewards import Attributed, Unscored
from benchflow.serve.episode import SUBMIT, CallResult, Episode
from benchflow.serve.opening import Opener
from benchflow.serve.remote.cluster_opener import ClusterOpener
from benchflow.serve.remote.remote_episode import NODE_LOST, RemoteEpisode
from benchflow.serve.served_tasks import ServedTask
from benchflow.serve.sessions import NoRoom
from benchflow.trainers.outcomes import (
    Observation,
    Stepped,
    action_space,
    broken,
    not_an_action,
    observation_space,
    observed,
    take_action,
)

WAIT_SEC: Final = 300.0
"""How long a reset waits for a node that has room."""
STARTS: Final = 3
"""How often an episode is started whose node is lost before it has begun."""
_MASK: Final = "reset_mask"
_TASKS: Final = "tasks"

Started = tuple[Observation, dict[str, Any]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Seat:
    """One environment of the vector: its episode, its tasks and its seeds."""

    def __init__(self, tasks: Sequence[ServedTask]) -> None:
        """`tasks` are played one after the other, from the first again after the last."""
        self._tasks: Final = tasks
        self._turn = 0
        self._random: np.random.Generator | None = None
        self.task: ServedTask | None = None
        self.episode: Episode | None = None

    def seed(self, seed: int | None) -> int | None:
        """The seed of the next episode: the one given, else drawn from it; None if there never was one."""
        if seed is not None:
            self._random = seeding.np_random(seed)[0]
            return seed
        return None if self._random is None else int(self._random.integers(1 << 31))

    def next_task(self) -> ServedTask:
        task = self._tasks[self._turn % len(self._tasks)]
        self._turn += 1
        return task

    async def leave(self) -> None:
        episode, self.episode = self.episode, None
        if episode is not None:
            await episode.close()


class EpisodeVectorEnv(VectorEnv[Observation, tuple[str, ...], np.ndarray[Any, Any]]):
    """A fixed number of environments; environment i plays the tasks i, i+n, i+2n, … of what was named."""

    def __init__(
        self,
        opener: Opener | ClusterOpener,
        num_envs: int,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        wait_sec: float = WAIT_SEC,
    ) -> None:
        """`opener` is entered here and left by `close`. Raises `UsageError` if not all environments have room."""
        if num_envs < 1:
            raise UsageError(f"A vector has at least one environment, not {num_envs}.")
        tasks = [task for each in opener.tasks.environments.values() for task in each.all_tasks()]
        self.num_envs = num_envs
        self._mode: Final = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self._mode}
        self.single_observation_space, self.single_action_space = observation_space(), action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._opener: Final = opener
        self._wait_sec: Final = wait_sec
        self._by_id: Final = {task.id: task for task in tasks}
        self._seats: Final = [
            Seat([tasks[place] for place in _places(n, num_envs, len(tasks))]) for n in range(num_envs)
        ]
        self._seen: Final[list[Observation]] = [observed("") for _ in range(num_envs)]
        self._over: Flags = np.ones(num_envs, np.bool_)
        """Which have ended, or not begun."""
        self._begun = False
        self._entered: AbstractContextManager[Any] | None = LOOP.portal().wrap_async_context_manager(opener)
        self._entered.__enter__()
        try:
            if isinstance(opener, ClusterOpener):
                opener.require_room(num_envs)
        except NoRoom as error:
            self.close()
            raise UsageError(str(error), code="no-room") from error

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """New episodes in all environments, or in those of `options["reset_mask"]`.

        `options["tasks"]` has the id of a task for each environment. Raises `UnscoredError` if one cannot start: then
        none of those that were to be reset runs.
        """
        mask, tasks = self._asked(dict(options or {}))
        seeds = self._seeds(seed)

        async def start(number: int) -> Started:
            return await self._start(number, seeds[number], tasks[number])

        chosen = [number for number in range(self.num_envs) if mask[number]]
        self._over[mask] = True
        found = LOOP.run(_at_once, [(number, start) for number in chosen])
        failed = [each for each in found.values() if isinstance(each, Attributed)]
        if failed:
            LOOP.run(_at_once, [(number, self._leave) for number in chosen])
            raise UnscoredError(failed[0].verdict) from failed[0]
        infos: dict[str, Any] = {}
        for number in chosen:
            self._seen[number], info = found[number]
            self._add_info(infos, info, number)
        self._over[mask] = False
        self._begun = True
        return self._observations(), infos

    def step(
        self, actions: Sequence[str]
    ) -> tuple[Observation, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]:
        """An action in every environment. One that has ended is reset instead, or refused if that is disabled."""
        if len(actions) != self.num_envs:
            raise UsageError(f"There are {self.num_envs} environments, and {len(actions)} actions were given.")
        for action in actions:
            if not self.single_action_space.contains(action):
                raise not_an_action(action)
        if not self._begun or (self._mode == AutoresetMode.DISABLED and self._over.any()):
            raise ResetNeeded("An episode is over or has not begun: call reset() first.")

        async def act(number: int) -> Stepped:
            return await self._advance(number, actions[number])

        found: dict[int, Stepped] = LOOP.run(_at_once, [(number, act) for number in range(self.num_envs)])
        stepped = [found[number] for number in range(self.num_envs)]
        infos: dict[str, Any] = {}
        for number, one in enumerate(stepped):
            self._seen[number] = one.observation
            self._add_info(infos, one.info, number)
        ended = np.array([one.terminated for one in stepped]), np.array([one.truncated for one in stepped])
        return self._observations(), np.array([one.reward for one in stepped]), *ended, infos

    def close_extras(self, **kwargs: Any) -> None:
        """End all episodes, and what they share."""
        del kwargs
        entered, self._entered = self._entered, None
        if entered is not None:
            try:
                LOOP.run(_at_once, [(number, self._leave) for number in range(self.num_envs)])
            finally:
                entered.__exit__(None, None, None)

    async def _advance(self, number: int, action: str) -> Stepped:
        """The step of one environment, with its reset where the mode says so."""
        if self._over[number]:
            return await self._again(number)
        seat = self._seats[number]
        if seat.episode is None or seat.task is None:
            raise ResetNeeded("The environment has no episode: call reset() first.")
        stepped = await take_action(seat.episode, *_call(seat.task, action))
        self._over[number] = stepped.terminated or stepped.truncated
        if not self._over[number] or self._mode != AutoresetMode.SAME_STEP:
            return stepped
        again = await self._again(number)
        info = {"final_obs": stepped.observation, "final_info": stepped.info, **again.info}
        return replace(stepped, observation=again.observation, info=info)

    async def _again(self, number: int) -> Stepped:
        """A reset in the place of a step; one that fails is a broken environment, and is tried again by the next."""
        try:
            observation, info = await self._start(number, None, None)
        except Attributed as error:
            return broken(error.verdict)
        self._over[number] = False
        return Stepped(observation, 0.0, terminated=False, truncated=False, info=info)

    async def _start(self, number: int, seed: int | None, task: ServedTask | None) -> Started:
        """A new episode. One whose node is lost before it has begun is started elsewhere: nothing has been done in it.

        `Attributed` if it cannot start.
        """
        seat = self._seats[number]
        await seat.leave()
        drawn = seat.seed(seed)
        task = seat.task = (task or seat.next_task()).seeded(drawn)
        for _ in range(STARTS - 1):
            try:
                return await self._begin(seat, task)
            except Attributed as error:
                if error.verdict.code != NODE_LOST:
                    raise
        return await self._begin(seat, task)

    async def _begin(self, seat: Seat, task: ServedTask) -> Started:
        try:
            episode = await self._opener.open_soon(task, self._wait_sec)
        except NoRoom as error:
            raise Attributed(Unscored("infrastructure", "environment", "no-node", str(error))) from error
        try:
            prompt = await episode.begin()
        except BaseException:
            await episode.close()
            raise
        seat.episode = episode
        tools = [asdict(tool) for tool in episode.tools()]
        info: dict[str, Any] = {"task": task.id, "tools": tools}
        if task.seed is not None:
            info["seed"] = task.seed
        if isinstance(episode, RemoteEpisode):
            info["node"] = episode.node
        return observed(CallResult(prompt).text), info

    async def _leave(self, number: int) -> None:
        await self._seats[number].leave()

    def _asked(self, options: dict[str, Any]) -> tuple[Flags, list[ServedTask | None]]:
        """Which environments are reset, and with which tasks."""
        mask, names = options.pop(_MASK, None), options.pop(_TASKS, None)
        if options:
            raise UsageError(f"The options of reset are {_MASK} and {_TASKS}; got: {', '.join(map(str, options))}.")
        chosen = np.ones(self.num_envs, np.bool_) if mask is None else np.asarray(mask)
        if chosen.shape != (self.num_envs,) or chosen.dtype != np.bool_ or not chosen.any():
            raise UsageError(f"{_MASK} has {self.num_envs} booleans, at least one of them true.")
        if names is None:
            return chosen, [None] * self.num_envs
        if isinstance(names, str) or len(names) != self.num_envs:
            raise UsageError(f"{_TASKS} has {self.num_envs} ids of tasks.")
        for name in names:
            if name not in self._by_id:
                known = ", ".join(list(self._by_id)[:20])
                raise UsageError(f"Unknown task {str(name)[:100]!r}; available: {known}.", code="unknown-task")
        return chosen, [self._by_id[name] for name in names]

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int):
            return [seed + number for number in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise UsageError(f"There are {self.num_envs} environments, and {len(seed)} seeds were given.")
        return seed

    def _observations(self) -> Observation:
        texts = tuple(each["text"] for each in self._seen)
        return {"text": texts, "exit_code": np.array([each["exit_code"] for each in self._seen], np.int64)}


def _places(number: int, environments: int, tasks: int) -> list[int]:
    """The tasks of an environment, in the order in which it plays them."""
    return list(dict.fromkeys((number + turn * environments) % tasks for turn in range(tasks)))


def _call(task: ServedTask, action: str) -> tuple[str, Mapping[str, Any]]:
    """The tool that an action calls, and its arguments."""
    name = action.strip()
    if name == SUBMIT:
        return SUBMIT, {}
    if not isinstance(task.payload, TaskRef):
        return "bash", {"command": action}
    try:
        call = json.loads(name) if name.startswith("{") else None
    except (ValueError, RecursionError):
        return name, {}  # refused: there is no action of this name
    if isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments", {}), dict):
        return call["name"], call.get("arguments", {})
    return name, {}


async def _at_once(works: Sequence[tuple[int, Callable[[int], Awaitable[Any]]]]) -> dict[int, Any]:
    """What each returns, by number; an `Attributed` is returned, any other error ends all."""
    found: dict[int, Any] = {}

    async def run(number: int, work: Callable[[int], Awaitable[Any]]) -> None:
        try:
            found[number] = await work(number)
        except Attributed as error:
            found[number] = error

    try:
        async with anyio.create_task_group() as group:
            for number, work in works:
                group.start_soon(run, number, work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return found
