"""`CubeEpisode`: a task of a cube as an episode. Its calls run in a thread of its own, since a cube's code may block.

The tools are the actions that the task offers, and `submit`, which stops it (`final_step` if an action is called so).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from benchflow.evaluation.cube_driver import CLOSE_SEC, OwnThread, attribute_unscored, trouble_of
from benchflow.rewards import Scored, Unscored, Verdict, attribute
from benchflow.serve.discretion import Discretion
from benchflow.serve.episode import SUBMIT, Block, CallRefused, CallResult, Episode, ToolSpec
from cube.core import Action, EnvironmentOutput, ImageContent, Observation
from cube.task import STOP_ACTION, Task, UnscoredError, evaluate_task, take_step

Spawn = Callable[[], Awaitable[Callable[[], Task[Any]]]]
"""Prepares the benchmark and returns what makes the live task, which is called in the thread of the episode."""
_EMPTY: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}


class CubeEpisode(Episode):
    """One session with a task of a cube; `max_calls` ends it with the verdict on what is there."""

    def __init__(self, name: str, spawn: Spawn, max_calls: int | None, discretion: Discretion | None = None) -> None:
        super().__init__(discretion)
        self._thread: Final = OwnThread(name)
        self._spawn: Final = spawn
        self._max_calls: Final = max_calls
        self._task: Task[Any] | None = None
        self._tools: tuple[ToolSpec, ...] = ()

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._tools

    async def _begin(self) -> tuple[Block, ...]:
        make, run = await self._spawn(), self._thread.run
        task = self._task = await run(make)
        observation, _ = await run(task.reset)
        self._tools = await run(_offered, task)
        return blocks_of(observation)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        task = self._task
        if task is None:
            raise RuntimeError("The episode has no task.")
        stops = name == _stop_name(self._tools)
        action = Action(name=STOP_ACTION.name if stops else name, arguments=dict(arguments))
        output, scored, tools = await self._thread.run(self._step, task, action)
        self._tools = tools
        result = CallResult(blocks_of(output.obs) or (Block(""),))
        if output.error is not None:
            text = f"error: {output.error.error_type}: {output.error.exception_str}"
            result = CallResult((*blocks_of(output.obs), Block(text)))
        if not output.done and not self._over():
            return result if scored is None else self._with_reward(result, scored)
        verdict = scored or Unscored("verifier", "verify", "not-evaluated", "The cube did not evaluate the task.")
        ending = self._end(verdict, "")
        limit = {} if output.done else {"ended_by": "call_limit"}
        return CallResult(result.blocks, ending.reward, True, {**ending.metadata, **limit})

    async def _finish(self) -> Verdict:
        task = self._task
        if task is None:
            raise RuntimeError("The episode has no task.")
        if task.accept_agent_stop:
            await self._call(_stop_name(self._tools), {})
        if self.progress.verdict is not None:
            return self.progress.verdict
        return await self._thread.run(_evaluated, task, Observation())

    def _over(self) -> bool:
        return self._max_calls is not None and self.progress.calls >= self._max_calls

    def _step(
        self, task: Task[Any], action: Action
    ) -> tuple[EnvironmentOutput, Scored | Unscored | None, tuple[ToolSpec, ...]]:
        """In the thread: the step, its verdict if one is due, and what is offered afterwards."""
        problem = task.problem_of(action)
        if problem is not None:  # what the schema says beyond types, or an action that is no longer offered
            raise CallRefused("input_validation", problem)
        output = take_step(task, action, None)
        blame = trouble_of(output.error) if output.error is not None else None
        due = output.done or task.validate_per_step or self._over()
        verdict = blame or (_evaluated(task, output.obs) if due else None)
        return output, verdict, self._tools if output.done else _offered(task)

    async def _release(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            with anyio.move_on_after(CLOSE_SEC, shield=True):
                await self._thread.run(_closed, task)
        self._thread.close()


def blocks_of(observation: Observation) -> tuple[Block, ...]:
    """Text as text, images as base64."""
    return tuple(
        _image(content) if isinstance(content, ImageContent) else Block(content.to_markdown())
        for content in observation.contents
    )


def _image(content: ImageContent) -> Block:
    head, _, data = str(content.model_dump(mode="json")["data"]).partition(",")
    return Block(data, head.removeprefix("data:").partition(";")[0])


def _evaluated(task: Task[Any], observation: Observation) -> Scored | Unscored:
    """The verdict on the current state; every way to fail means that there is no score."""
    try:
        return Scored(evaluate_task(task, observation)[0])
    except UnscoredError as error:
        return attribute_unscored(error)
    except Exception as error:  # noqa: BLE001 - the cube's own code
        return attribute(error, "verifier", "verify")


def _offered(task: Task[Any]) -> tuple[ToolSpec, ...]:
    tools = [ToolSpec(each.name, each.description, each.parameters or _EMPTY) for each in task.action_set]
    if task.accept_agent_stop:
        tools = [tool for tool in tools if tool.name != STOP_ACTION.name]
        tools.append(ToolSpec(_stop_name(tools), "Say that you are done: the task is then scored.", _EMPTY))
    return tuple(tools)


def _stop_name(tools: list[ToolSpec] | tuple[ToolSpec, ...]) -> str:
    """The name of the tool that stops a task: `submit`, unless an action of the task has that name."""
    names = [tool.name for tool in tools]
    if STOP_ACTION.name in names:
        return STOP_ACTION.name
    own = any(tool.name == SUBMIT and tool.input_schema is not _EMPTY for tool in tools)
    return STOP_ACTION.name if own else SUBMIT


def _closed(task: Task[Any]) -> None:
    task.close()
