"""`Seat`: the place of one OpenEnv client, with the episode that it plays; messages in, data of frames out."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from benchflow.rewards import Attributed
from benchflow.serve.episode import ToolSpec, unscored_metadata
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
from benchflow.serve.package_episode import PACKAGE_TOOLS
from benchflow.serve.served_tasks import ServedTask, ServedTasks, UnknownTask
from benchflow.serve.sessions import NoRoom, Session, Sessions, UnknownSession


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
    """One client: a session of the server, in which one episode after the other is played."""

    def __init__(self, tasks: ServedTasks, sessions: Sessions) -> None:
        """Raises `FrameError` if there is no room for a client."""
        self._tasks: Final = tasks
        self._sessions: Final = sessions
        with _refusals():
            self.id: Final = sessions.place().id
        self._session: Session | None = None
        """The session since the last reset."""
        self._episode_id: str | None = None
        self._steps = 0
        self._last: Mapping[str, Any] = {}
        """The data of the answer to the last step."""

    @property
    def alive(self) -> bool:
        """Whether its session has not been reaped."""
        return self._sessions.knows(self.id)

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

    def tools(self) -> tuple[ToolSpec, ...]:
        """What can be called. Before the first reset only the tools of packages are known."""
        if self._session is None:
            return () if self._tasks.default.is_cube else PACKAGE_TOOLS
        return self._session.begun.tools()

    async def _reset(self, reset: Reset) -> dict[str, Any]:
        try:
            task = chosen_task(self._tasks, reset)
        except UnknownTask as error:
            raise FrameError("VALIDATION_ERROR", str(error)) from error
        await self.leave()
        with _refusals():
            session = self._session = self._sessions.begin(task.seeded(reset.seed), self.id)
            self._episode_id, self._steps, self._last = reset.episode_id or str(uuid.uuid4()), 0, {}
            prompt = await session.wait_ready()
        return observation({**prompt_seen(prompt), "task": _told(task)})

    async def call(self, message: CallTool) -> dict[str, Any]:
        """A step."""
        session = self._session
        if session is None:
            raise FrameError("EXECUTION_ERROR", "There is no episode: send a reset first.")
        with _refusals(), self._sessions.get(self.id).in_use():
            pending = self._sessions.call(session, message.tool, message.arguments)
            await pending.done.wait()
        if pending.refused is not None:
            wrong = pending.refused.reason in ("not_found", "input_validation")
            raise FrameError("VALIDATION_ERROR" if wrong else "EXECUTION_ERROR", str(pending.refused))
        self._steps += 1
        if pending.result is not None:
            result = pending.result
            seen = call_seen(message.tool, result)
            self._last = observation(seen, reward=result.reward, done=result.finished, metadata=result.metadata)
        else:
            self._last = _broken(message.tool, pending.failed)
        return dict(self._last)

    def _state(self) -> dict[str, Any]:
        task = self._session.task if self._session is not None else None
        return {
            "episode_id": self._episode_id,
            "step_count": self._steps,
            "task": None if task is None else _told(task),
            "done": self._last.get("done", False),
            "reward": self._last.get("reward"),
            "metadata": self._last.get("metadata", {}),
        }

    async def leave(self) -> None:
        """End the session with all that runs in it; safe to call again."""
        self._session = None
        with suppress(UnknownSession):
            await self._sessions.end(self.id)


@contextmanager
def _refusals() -> Iterator[None]:
    """What the server refuses, as OpenEnv says it."""
    try:
        yield
    except NoRoom as error:
        raise FrameError("CAPACITY_REACHED", str(error)) from error
    except UnknownSession as error:
        raise FrameError("SESSION_ERROR", str(error)) from error
    except Attributed as error:
        verdict = error.verdict
        sentence = f"The episode did not begin: {verdict.category}/{verdict.code}: {verdict.reason}"
        raise FrameError("EXECUTION_ERROR", sentence, unscored_metadata(verdict)) from error


def _broken(tool: str, failed: Attributed | None) -> dict[str, Any]:
    """The last observation of an episode whose environment broke: there is no reward, and why."""
    metadata = {} if failed is None else unscored_metadata(failed.verdict)
    reason = "The environment failed." if failed is None else f"The environment failed: {failed.verdict.reason}"
    return observation({"tool_name": tool, "result": reason, "error": None}, done=True, metadata=metadata)


def _told(task: ServedTask) -> dict[str, Any]:
    return {**task.spec(), "environment": task.environment, "split": task.split}
