"""The task of a server and its episode, with two sides: `Stage` for the harness, `AgentSide` for the agent.

Calls of a task run in sequence in one thread. An agent acts without evaluation and never sees a reward; when the
episode is over, further actions are refused with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, Final, Literal, TypeVar, TypeVarTuple

from cube.core import Action, ActionSchema, EnvironmentOutput, ImageContent, Observation, StepError
from cube.jsonrpc import INVALID_PARAMS, NOT_NOW, RpcError
from cube.task import STOP_ACTION, Task, TaskConfig, UnscoredError, evaluate_task, take_step

logger = logging.getLogger(__name__)

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
State = Literal["not started", "running", "over", "closed"]
Find = Callable[[str | None], TaskConfig[Any]]
"""The config of a task id, or of the only task; an `RpcError` if there is none."""
Make = Callable[[TaskConfig[Any]], Task[Any]]
AGENT_PATH: Final = "/mcp"
"""The path of the agent's port."""
OBJECTIVE: Final = "task://objective"
"""The resource with the objective."""
NOT_BEGUN: Final = "The episode has not begun: the harness has to reset the task first."
WAIT_SEC: Final = 2.0
"""How long closing waits for a running action."""


class TaskThread:
    """One thread for all calls of a task, in order.

    It is a daemon: an action that never returns must not keep a process alive that has to end.
    """

    def __init__(self) -> None:
        self._calls: Final[SimpleQueue[Callable[[], None] | None]] = SimpleQueue()
        self._ended = False
        threading.Thread(target=self._work, name="task", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """What the function returns or raises."""
        return await asyncio.wrap_future(self.submit(function, *arguments))

    def submit(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> Future[T]:
        """Call it when all earlier calls are over, unless it is cancelled before."""
        if self._ended:
            raise RuntimeError("The server has been shut down.")
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001  # raised where the result is awaited
                ends_loops = isinstance(error, StopIteration) or not isinstance(error, Exception)
                future.set_exception(RuntimeError(f"it raised {type(error).__name__}") if ends_loops else error)
            else:
                future.set_result(result)

        self._calls.put(call)
        return future

    def end(self) -> None:
        """Let the thread end after the calls that it has, and take no more."""
        self._ended = True
        self._calls.put(None)


class Refused(Exception):
    """An action that was not executed; the message says why."""


@dataclass(frozen=True, slots=True)
class Episode:
    """From a reset to the end that the agent, the task or the harness sets."""

    number: int = 0
    state: State = "not started"
    reason: str | None = None
    """Why it is over."""
    steps: int = 0
    objective: Observation = field(default_factory=Observation)
    """What the reset returned."""
    latest: Observation = field(default_factory=Observation)

    def over(self, reason: str) -> Episode:
        """Ended, unless it has ended before: the first reason counts."""
        return replace(self, state="over", reason=reason) if self.state == "running" else self

    def require_running(self) -> None:
        if self.state == "running":
            return
        sentences = {
            "not started": NOT_BEGUN,
            "closed": "The harness has closed the task.",
        }
        raise Refused(sentences.get(self.state) or over_sentence(self.reason))


def over_sentence(reason: str | None) -> str:
    return f"The episode is over: {reason}. No further actions are accepted."


class Stage:
    """The task that is served, for the harness. Blocking methods run in `thread`."""

    def __init__(self, find: Find, make: Make, config: TaskConfig[Any] | None = None) -> None:
        """With `config`, its task is made at once; otherwise by the first reset, which names it."""
        self.thread: Final = TaskThread()
        self.episode = Episode()
        self.on_change: Callable[[], None] = lambda: None
        """Called when the objective changes."""
        self._find: Final = find
        self._make: Final = make
        self._config = config
        self._task: Task[Any] | None = make(config) if config is not None else None
        self._live = self._task is not None
        self._guard: Final = threading.Lock()
        """Held while the episode is replaced: `end` does not wait for a running action."""

    @property
    def selected(self) -> bool:
        """Whether there is a task."""
        return self._task is not None

    @property
    def task(self) -> Task[Any]:
        if self._task is None:
            raise RpcError(NOT_NOW, "No task has been selected: call cube/reset with a 'task_id'.")
        return self._task

    def reset(self, task_id: str | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode of the task with this id, or of the current one."""
        config = self._config if task_id is None and self._config is not None else self._find(task_id)
        self._set(Episode(self.episode.number + 1))
        task = self._task
        if task is None or not self._live or self._config is None or config.task_id != self._config.task_id:
            self.close()
            task = self._make(config)
            self._task, self._config, self._live = task, config, True
        obs, info = task.reset()
        self._set(Episode(self.episode.number, "running", objective=obs, latest=obs))
        self.on_change()
        return obs, info

    def describe(self) -> dict[str, Any]:
        """The episode as a harness sees it."""
        episode, config = self.episode, self._config
        return {
            "task_id": config.task_id if config else None,
            "number": episode.number,
            "state": episode.state,
            "reason": episode.reason,
            "steps": episode.steps,
        }

    def call(self, action: Action) -> Observation | StepError:
        """Call the tool directly: no step, no evaluation."""
        self._require_executable([action])
        result: Observation | StepError = self.task.tool.execute_action(action)
        return result

    def _require_executable(self, actions: list[Action]) -> None:
        """Refuse a request before any of its actions is executed, if one of them cannot be."""
        for action in actions:
            problem = self.task.problem_of(action)
            if problem is not None:
                raise RpcError(INVALID_PARAMS, problem)
            if action.name == STOP_ACTION.name:
                break  # what comes after it is not executed

    def step(self, actions: Action | list[Action]) -> tuple[EnvironmentOutput, dict[str, str] | None]:
        """A step of the harness; if it has no score, the record of why."""
        self._require_executable([actions] if isinstance(actions, Action) else actions)
        failures: list[dict[str, str]] = []

        def score(obs: Observation) -> tuple[float, dict[str, Any]]:
            reward, info, unscored = self._score(obs)
            failures.extend([unscored] if unscored else [])
            return reward, info

        output = take_step(self.task, actions, score)
        self.note(output, [actions] if isinstance(actions, Action) else actions)
        return output, failures[0] if failures else None

    def evaluate(self, obs: Observation | None) -> tuple[float | None, dict[str, Any]]:
        """The reward of the current state and its info; without a score, None and why."""
        reward, info, unscored = self._score(obs)
        return (None, {"unscored": unscored}) if unscored else (reward, info)

    def _score(self, obs: Observation | None) -> tuple[float, dict[str, Any], dict[str, str] | None]:
        """The reward and its info, or the record of why there is none."""
        task = self.task
        try:
            reward, info = evaluate_task(task, obs)
        except Exception as error:  # every way to fail means that there is no score
            logger.warning("Evaluating task '%s' failed", task.id, exc_info=error)
            known = error if isinstance(error, UnscoredError) else UnscoredError(f"{type(error).__name__}: {error}")
            return 0.0, {}, known.unscored
        return reward, info, None

    def note(self, output: EnvironmentOutput, actions: list[Action]) -> None:
        """Count the actions of a step, keep its observation, and end the episode if the step did."""
        reason = "the task is finished" if output.done else None
        if output.error is not None:
            reason = f"an action failed with {output.error.error_type}"
        elif self.task.accept_agent_stop and any(action.name == STOP_ACTION.name for action in actions):
            reason = "the agent stopped"
        with self._guard:
            counted = replace(self.episode, steps=self.episode.steps + len(actions), latest=output.obs)
            self.episode = counted.over(reason) if reason else counted

    def end(self, reason: str) -> None:
        """End the episode: the agent cannot act any more, and the state can be evaluated."""
        with self._guard:
            self.episode = self.episode.over(reason)

    def close(self) -> None:
        """Close the task; a later reset makes it anew."""
        task, live, self._live = self._task, self._live, False
        self._set(replace(self.episode, state="closed"))
        self.on_change()
        if task is not None and live:
            task.close()

    def shut_down(self) -> None:
        """Close the task from any thread, even while an action is running that does not end."""
        closing = self.thread.submit(self.close)
        self.thread.end()
        try:
            closing.result(WAIT_SEC)
        except TimeoutError:
            if closing.cancel():
                self.close()  # beside the action that is in the way: this is what ends it
            else:
                closing.result()

    def _set(self, episode: Episode) -> None:
        with self._guard:
            self.episode = episode


class AgentSide:
    """What an agent may know and do; its methods are all that the agent's port can call."""

    def __init__(self, stage: Stage) -> None:
        self._stage: Final = stage

    @property
    def episode(self) -> Episode:
        return self._stage.episode

    async def actions(self) -> list[ActionSchema]:
        """The actions that the task offers now, and the one that stops it; before the first reset maybe none."""
        try:
            return await self._stage.thread.run(self._actions)
        except Exception as error:  # the task's own code; what broke is for the log, not for the agent
            logger.exception("Listing the actions failed")
            raise Refused("The environment failed to list its actions.") from error

    async def act(self, action: Action) -> EnvironmentOutput:
        """Execute one action without evaluating; `Refused` if the agent may not."""
        stage = self._stage
        try:
            return await stage.thread.run(self._act, action)
        except Refused:
            raise
        except Exception as error:  # the task's own code, as above; the state that it left is not one to act on
            logger.exception("Action '%s' failed", action.name)
            stage.end(f"the environment failed ({type(error).__name__})")
            raise Refused(over_sentence(stage.episode.reason or "the environment failed")) from error

    def instructions(self) -> str:
        """The objective as text and how to act, for a model."""
        episode = self.episode
        if episode.state in ("not started", "closed"):
            return f"{NOT_BEGUN} Read the objective from the resource {OBJECTIVE} once it has."
        parts = [
            f"[image: see {OBJECTIVE}]" if isinstance(content, ImageContent) else content.to_markdown()
            for content in episode.objective.contents
        ]
        stop = f" Call {STOP_ACTION.name} when you are done." if self._stage.task.accept_agent_stop else ""
        parts.append(f"Act by calling the tools.{stop} A result says when the episode is over.")
        return "\n\n".join(parts)

    def _actions(self) -> list[ActionSchema]:
        if not self._stage.selected:
            return []
        task = self._stage.task
        offered = list(task.action_set)
        if task.accept_agent_stop and all(action.name != STOP_ACTION.name for action in offered):
            offered.append(STOP_ACTION)
        return offered

    def _act(self, action: Action) -> EnvironmentOutput:
        stage = self._stage
        stage.episode.require_running()
        offered = [known.name for known in self._actions()]
        if action.name not in offered:
            raise Refused(f"Action '{action.name}' is not available; available: {', '.join(offered)}.")
        problem = stage.task.problem_of(action)
        if problem is not None:
            raise Refused(problem)
        output = take_step(stage.task, action, None)
        stage.note(output, [action])
        return output
