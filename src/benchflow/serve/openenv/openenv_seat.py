"""`Seat`: the place of one OpenEnv client, with the episode that it plays; messages in, frames out."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from typing import Any, Final

from benchflow.rewards import Attributed
from benchflow.serve.episode import CallRefused, Episode, unscored_metadata, verdict_metadata
from benchflow.serve.openenv.openenv_frames import (
    AskState,
    CallTool,
    FrameError,
    ListTools,
    Reset,
    call_seen,
    observation,
    prompt_seen,
    tools_seen,
)
from benchflow.serve.served_tasks import ServedTask, ServedTasks, UnknownTask

Open = Callable[[ServedTask, int | None], Episode]
"""A new episode of a task, not begun; the seed goes to cubes."""
NO_EPISODE: Final = "There is no episode: send a reset first."


def chosen_task(tasks: ServedTasks, reset: Reset) -> ServedTask:
    """The task that a reset names. If it names none, the seed selects one, and without a seed chance does."""
    environments = [tasks.environment(reset.environment)] if reset.environment else list(tasks.environments.values())
    if reset.task is not None:
        known = [each for each in environments if reset.task in {task.id for task in each.all_tasks()}]
        return (known or environments)[0].named({"id": reset.task})
    environment = environments[0]
    if reset.index is not None:
        return environment.task(reset.split or next(iter(environment.splits)), reset.index)
    pool = environment.tasks(reset.split) if reset.split is not None else environment.all_tasks()
    return secrets.choice(pool) if reset.seed is None else pool[reset.seed % len(pool)]


class Seat:
    """One client. Its messages are answered one after the other."""

    def __init__(self, tasks: ServedTasks, open_episode: Open) -> None:
        self.id: Final = secrets.token_urlsafe(32)
        self._tasks: Final = tasks
        self._open: Final = open_episode
        self._episode: Episode | None = None
        self._task: ServedTask | None = None
        self._episode_id: str | None = None
        self._steps = 0

    async def answer(self, message: Reset | CallTool | ListTools | AskState) -> dict[str, Any]:
        """The data of the frame that answers a message. `FrameError` if it is refused."""
        match message:
            case Reset():
                return await self._reset(message)
            case AskState():
                return self._state()
            case ListTools():
                self._steps += 1
                return observation(tools_seen(self.tools()))
            case CallTool():
                return await self.call(message)

    def tools(self) -> tuple[Any, ...]:
        """What can be called; none before the first reset."""
        return self._episode.tools() if self._episode is not None else ()

    async def _reset(self, reset: Reset) -> dict[str, Any]:
        try:
            task = chosen_task(self._tasks, reset)
        except UnknownTask as error:
            raise FrameError("VALIDATION_ERROR", str(error)) from error
        await self.close()
        episode = self._episode = self._open(task, reset.seed)
        self._task, self._steps = task, 0
        self._episode_id = reset.episode_id or str(uuid.uuid4())
        try:
            prompt = await episode.begin()
        except Attributed as error:
            verdict = error.verdict
            sentence = f"The episode did not begin: {verdict.category}/{verdict.code}: {verdict.reason}"
            raise FrameError("EXECUTION_ERROR", sentence, unscored_metadata(verdict)) from error
        return observation({**prompt_seen(prompt), "task": _told(task)})

    async def call(self, message: CallTool) -> dict[str, Any]:
        """A step."""
        if self._episode is None:
            raise FrameError("EXECUTION_ERROR", NO_EPISODE)
        try:
            result = await self._episode.call(message.tool, message.arguments)
        except CallRefused as refusal:
            wrong = refusal.reason in ("not_found", "input_validation")
            raise FrameError("VALIDATION_ERROR" if wrong else "EXECUTION_ERROR", str(refusal)) from refusal
        except Attributed as error:  # the environment broke, which ends the episode without a score
            self._steps += 1
            seen = {"tool_name": message.tool, "result": f"error: {error.verdict.reason}", "error": None}
            return observation(seen, done=True, metadata=unscored_metadata(error.verdict))
        self._steps += 1
        seen = call_seen(message.tool, result)
        return observation(seen, reward=result.reward, done=result.finished, metadata=result.metadata)

    def _state(self) -> dict[str, Any]:
        verdict = self._episode.verdict if self._episode is not None else None
        ended = {} if verdict is None else verdict_metadata(verdict)
        return {
            "episode_id": self._episode_id,
            "step_count": self._steps,
            "task": None if self._task is None else _told(self._task),
            "done": verdict is not None,
            "reward": getattr(verdict, "reward", None),
            "metadata": ended,
        }

    async def close(self) -> None:
        """End the episode with all that runs in it."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.close()


def _told(task: ServedTask) -> dict[str, Any]:
    return {**task.spec(), "environment": task.environment, "split": task.split}
