"""The rules for one live task that can be checked without an agent: each raises if it is violated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cube.core import Action, Content, EnvironmentOutput, Observation
from cube.differences import model_difference, observation_difference, shown
from cube.findings import Broken, Findings, require
from cube.task import STOP_ACTION, Task
from cube.tool import AbstractTool, Toolbox
from cube.typed import TypedBaseModel

UNKNOWN = Action(name="no_such_action_anywhere")


def check_alone(task: Task[Any], task_id: str, findings: Findings) -> tuple[Observation, float] | None:
    """Check all rules. The first observation and its reward, or None if agents cannot play it because of a finding."""
    first: list[Observation] = []
    rewards: list[float] = []
    findings.holds("actions", task_id, check_actions, task)
    if not findings.holds("reset", task_id, lambda: first.append(check_reset(task))):
        return None  # whatever begins with a reset would only say the same again
    findings.holds("info", task_id, check_info, task)
    evaluated = findings.holds("evaluate", task_id, lambda: rewards.append(check_evaluate(task)))
    if not evaluated and task.validate_per_step:
        return None
    stepped = findings.holds("step", task_id, check_step, task)
    if not (evaluated and stepped and findings.holds("stop", task_id, check_stop, task)):
        return None
    return first[0], rewards[0]


def check_json(value: TypedBaseModel, base: type[TypedBaseModel]) -> None:
    """A value is the same after a round trip."""
    again = base.model_validate_json(value.model_dump_json())
    require(type(again) is type(value), f"{type(value).__name__} is restored as {type(again).__name__}")
    difference = model_difference(value, again)
    require(not difference, "fields are lost or changed by JSON", difference)


def check_actions(task: Task[Any]) -> None:
    actions = task.action_set
    names = [action.name for action in actions]
    require(names, "the action set is empty")
    require(len(set(names)) == len(names), f"names are not unique: {names}")
    require(STOP_ACTION.name not in names or not task.accept_agent_stop, f"'{STOP_ACTION.name}' is reserved")
    for action in actions:
        described, message = action.validate_param_descriptions()
        require(described, f"action '{action.name}': {message}")
        json.dumps(action.as_dict())


def check_reset(task: Task[Any]) -> Observation:
    """The first observation. Two resets give the same one, and reset the tool."""
    with _resets_counted(task.tool) as unreset:
        first = reset(task)
        kept = ", ".join(type(tool).__name__ for tool in unreset())
    require(first.contents, "the first observation is empty: it must state the objective")
    require(any(content.to_markdown().strip() for content in first.contents), "the first observation has no text")
    check_json(first, Observation)
    difference = observation_difference(first, reset(task))
    require(not difference, "a second reset() returns a different observation", difference)
    require(not kept, f"reset() does not call self.tool.reset(): {kept} keeps its state")
    return first


@contextmanager
def _resets_counted(tool: AbstractTool) -> Iterator[Any]:
    """Gives a function that lists the tools that were not reset inside the block, of those that have a reset."""
    parts = tool.tools if type(tool).reset is Toolbox.reset and isinstance(tool, Toolbox) else [tool]
    called: set[int] = set()

    def watch(part: AbstractTool) -> None:
        own = part.reset

        def counted() -> None:
            called.add(id(part))
            own()

        part.reset = counted  # type: ignore[method-assign]  # this object's alone, and taken away again

    watched = []
    for part in parts:
        with suppress(AttributeError):  # a tool with slots cannot be watched
            if type(part).reset is not AbstractTool.reset:
                watch(part)
                watched.append(part)
    try:
        yield lambda: [part for part in watched if id(part) not in called]
    finally:
        for part in watched:
            del part.reset


def reset(task: Task[Any]) -> Observation:
    result: Any = task.reset()
    require(isinstance(result, tuple) and len(result) == 2, "reset() must return (Observation, dict)")
    obs, info = result
    require(isinstance(info, dict), f"the info of reset() is {type(info).__name__}, not a dict")
    if not isinstance(obs, Observation):
        raise Broken(f"reset() returned {type(obs).__name__}, not an Observation")
    return obs


def check_evaluate(task: Task[Any]) -> float:
    """The reward of the initial state, twice the same."""
    reset(task)
    first: Any = task.evaluate()
    require(isinstance(first, tuple) and len(first) == 2, "evaluate() must return (float, dict)")
    reward, info = first
    finite = isinstance(reward, int | float) and math.isfinite(reward)
    require(finite, f"the reward is {reward!r}, not a finite number")
    require(isinstance(info, dict), f"the info of evaluate() is {type(info).__name__}, not a dict")
    again = task.evaluate()[0]
    require(
        again == reward, "a second evaluate() of the same state returns a different reward", f"{again}, not {reward}"
    )
    return float(reward)


def check_step(task: Task[Any]) -> None:
    require(type(task).step is Task.step, "step() is overridden: servers and jobs do not call it; use the hooks")
    reset(task)
    output = task.step([])
    require(isinstance(output, EnvironmentOutput), f"step() returned {type(output).__name__}")
    require("profiling" in output.info, "info has no 'profiling'")
    unknown = task.step(UNKNOWN)
    answered = unknown.obs.contents and unknown.error is None
    require(answered, "an unknown action must be answered with an observation", shown(unknown.error))


def check_stop(task: Task[Any]) -> None:
    reset(task)
    output = task.step(Action(name=STOP_ACTION.name))
    if task.accept_agent_stop:
        require(output.done, "the stop did not end the task")
        require("evaluate" in output.info["profiling"], "the stop was not evaluated")


def check_info(task: Task[Any]) -> None:
    info, status = task.get_privileged_info(), task.get_status()
    require(isinstance(info, Content), f"get_privileged_info() returned {type(info).__name__}, not a Content")
    check_json(info, Content)
    require(isinstance(status, str), f"get_status() returned {type(status).__name__}, not a str")
