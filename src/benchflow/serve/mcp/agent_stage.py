"""`AgentStage`: the episode of one agent that connects itself (`bench serve mcp`), with two sides.

The agent sees the objective, the tools and their results, and never a reward. The harness begins and ends episodes and
reads rewards, with the methods of `cube serve`: a client of cubes drives packages too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import anyio

from benchflow.rewards import Attributed, Unscored
from benchflow.serve.episode import Block, limits_metadata, unscored_metadata, verdict_metadata
from benchflow.serve.served_tasks import ServedTask, ServedTasks, UnknownTask
from benchflow.serve.sessions import NoRoom, Session, Sessions, UnknownSession
from cube.core import Action, ActionSchema, Content, EnvironmentOutput, ImageContent, Observation, TextContent
from cube.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, Method, RpcError
from cube.stage import NOT_BEGUN, OBJECTIVE, Refused, over_sentence
from cube.stage import Episode as Shown

SUBMITTED: Final = "the agent submitted"


class AgentStage:
    """One task at a time, for one agent."""

    def __init__(self, tasks: ServedTasks, sessions: Sessions) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called when the objective changes."""
        self._tasks: Final = tasks
        self._sessions: Final = sessions
        self._task: ServedTask | None = None
        self._playing: Session | None = None
        self._shown = Shown()
        self._changing: Final = anyio.Lock()
        """Held while one episode takes the place of another."""

    @property
    def episode(self) -> Shown:
        """The episode as the agent may know it."""
        return self._shown

    async def actions(self) -> list[ActionSchema]:
        """What can be called now."""
        tools = self._playing.begun.tools() if self._playing is not None else ()
        return [
            ActionSchema(name=tool.name, description=tool.description, parameters=dict(tool.input_schema))
            for tool in tools
        ]

    async def act(self, action: Action) -> EnvironmentOutput:
        """A call of the agent; `Refused` if it may not."""
        self._shown.require_running()
        playing = self._playing
        if playing is None:
            raise Refused(NOT_BEGUN)
        try:
            pending = self._sessions.call(playing, action.name, action.arguments)
        except NoRoom as error:
            raise Refused(str(error)) from error
        with playing.in_use():
            await pending.done.wait()
        current = self._playing is playing  # a reset of the harness may have been faster
        if pending.refused is not None:
            if pending.refused.reason == "episode_finished" and current:
                self._over("it was closed")
            raise Refused(str(pending.refused))
        result = pending.result
        obs = observed(result.blocks if result is not None else ())
        if current:
            self._shown = replace(self._shown, steps=self._shown.steps + 1, latest=obs)
        if result is None:
            self._over("the environment failed")
            raise Refused(over_sentence("the environment failed"))
        if result.finished and current:
            self._over(str(result.metadata.get("ended_by") or SUBMITTED).replace("_", " "))
        return EnvironmentOutput(obs=obs, done=result.finished)

    def instructions(self) -> str:
        """The objective as text and how to act, for a model."""
        shown = self._shown
        if shown.state in ("not started", "closed"):
            return f"{NOT_BEGUN} Read the objective from the resource {OBJECTIVE} once it has."
        parts = [
            f"[image: see {OBJECTIVE}]" if isinstance(content, ImageContent) else content.to_markdown()
            for content in shown.objective.contents
        ]
        parts.append("Act by calling the tools. A result says when the episode is over.")
        return "\n\n".join(parts)

    async def begin(self, task: ServedTask, seed: int | None = None) -> Observation:
        """Begin an episode, after the end of the one before. `Attributed` if it cannot begin."""
        async with self._changing:
            await self._leave()
            self._shown = Shown(self._shown.number + 1)
            playing = self._playing = self._sessions.begin(task.seeded(seed))
            self._task = task
            obs = observed(await playing.wait_ready())
            self._shown = replace(self._shown, state="running", objective=obs, latest=obs)
            self.on_change()
            return obs

    async def end(self, reason: str) -> None:
        """End the episode and score what is there."""
        if self._playing is not None and self._shown.state in ("running", "over"):
            self._over(reason)
            await self._sessions.finish(self._playing)

    async def close(self) -> None:
        """End the episode without a score, unless it has one; what it holds is free then."""
        async with self._changing:
            await self._leave()

    async def _leave(self) -> None:
        if self._playing is None:
            return
        self._shown = replace(self._shown, state="closed")
        with suppress(UnknownSession):
            await self._sessions.end(self._playing.id)
        self.on_change()

    def describe(self) -> dict[str, Any]:
        """The episode as a harness sees it: `reward` is null while there is none, and `unscored` says why."""
        shown, playing = self._shown, self._playing
        verdict = playing.begun.verdict if playing is not None else None
        return {
            "task_id": self._task.id if self._task is not None else None,
            "number": shown.number,
            "state": shown.state,
            "reason": shown.reason,
            "steps": shown.steps,
            "reward": getattr(verdict, "reward", None),
            "unscored": unscored_metadata(verdict)["error"] if isinstance(verdict, Unscored) else None,
            **(limits_metadata(playing.begun.progress) if playing is not None else {}),
        }

    def methods(self) -> dict[str, Method]:
        """The harness's side, over JSON-RPC."""
        return {
            "cube/tasks": self._listed,
            "cube/reset": self._reset,
            "cube/episode": self._described,
            "cube/end": self._end,
            "cube/evaluate": self._evaluate,
            "cube/close": self._close,
            "cube/status": self._status,
        }

    async def _listed(self, params: dict[str, Any]) -> Any:
        del params
        every = [task for environment in self._tasks.environments.values() for task in environment.all_tasks()]
        return [{**task.spec(), "environment": task.environment, "split": task.split} for task in every]

    async def _reset(self, params: dict[str, Any]) -> Any:
        try:
            obs = await self.begin(self._found(params.get("task_id")), _seed(params.get("seed")))
        except NoRoom as error:
            raise RpcError(INTERNAL_ERROR, str(error)) from error
        except Attributed as error:
            verdict = error.verdict
            sentence = f"The episode did not begin: {verdict.category}/{verdict.code}: {verdict.reason}"
            raise RpcError(INTERNAL_ERROR, sentence) from error
        return {"obs": obs.model_dump(mode="json"), "info": {"task_id": self._task.id if self._task else None}}

    def _found(self, task_id: Any) -> ServedTask:
        """The task with an id, or the current one, or the only one."""
        environments = self._tasks.environments.values()
        every = [task for environment in environments for task in environment.all_tasks()]
        if task_id is None and (self._task is not None or len(every) == 1):
            return self._task or every[0]
        if not isinstance(task_id, str):
            raise RpcError(INVALID_PARAMS, "Parameter 'task_id' must be a string: it selects the task.")
        for environment in environments:
            try:
                return environment.named({"id": task_id})
            except UnknownTask:
                continue
        raise RpcError(INVALID_PARAMS, f"Unknown task '{task_id[:200]}'; cube/tasks lists them.")

    async def _described(self, params: dict[str, Any]) -> Any:
        del params
        return self.describe()

    async def _end(self, params: dict[str, Any]) -> Any:
        try:
            await self.end(str(params.get("reason") or "the harness ended it"))
        except (NoRoom, UnknownSession, Attributed) as error:
            raise RpcError(INVALID_REQUEST, str(error)) from error
        return self.describe()

    async def _evaluate(self, params: dict[str, Any]) -> Any:
        del params
        episode = self._playing.begun if self._playing is not None else None
        if episode is None or episode.verdict is None:
            raise RpcError(INVALID_REQUEST, "The episode has no verdict yet: cube/end ends it.")
        verdict, limits = episode.verdict, limits_metadata(episode.progress)
        if isinstance(verdict, Unscored):
            return {"reward": None, "info": {"unscored": unscored_metadata(verdict)["error"], **limits}}
        return {"reward": verdict.reward, "info": {**verdict_metadata(verdict), **limits}}

    async def _close(self, params: dict[str, Any]) -> None:
        del params
        await self.close()

    async def _status(self, params: dict[str, Any]) -> Any:
        del params
        return self._shown.state

    def _over(self, reason: str) -> None:
        self._shown = self._shown.over(reason)


def observed(blocks: Sequence[Block]) -> Observation:
    """Blocks as an observation."""
    return Observation(contents=[_content(block) for block in blocks])


def _content(block: Block) -> Content:
    if block.media_type is None:
        return TextContent(data=block.data)
    return ImageContent(data=f"data:{block.media_type};base64,{block.data}")


def _seed(seed: Any) -> int | None:
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise RpcError(INVALID_PARAMS, "Parameter 'seed' must be an integer.")
    return seed
