"""Checks that a task or a whole benchmark follows the contract. Authors call them from pytest.

    from cube.testing import check_benchmark
    def test_the_cube_keeps_the_contract():
        assert check_benchmark(my_cube.debug) == []

Every violated rule is a `Finding`; no exception of the task escapes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from pydantic import ValidationError

from cube.benchmark import Benchmark, BenchmarkConfig
from cube.core import Action, Content, EnvironmentOutput, Observation
from cube.episodes import DebugAgent, DebugModule, episode_problem, run_debug_episode
from cube.task import STOP_ACTION, Task, TaskConfig
from cube.typed import TypedBaseModel

CHECKS: Final[dict[str, str]] = {
    "debug-module": "get_debug_benchmark and make_debug_agent exist",
    "metadata": "metadata is complete and matches the tasks",
    "install": "install() can be repeated",
    "setup": "the benchmark sets up and closes",
    "json": "configs survive a JSON round trip",
    "make": "the config creates a live task",
    "actions": "actions are listed, unique and described",
    "reset": "reset() states the objective, the same every time",
    "reproducible": "two tasks of one config start in the same state",
    "evaluate": "evaluate() returns a finite reward, the same every time",
    "step": "step() follows the gym contract",
    "stop": "the agent's stop is evaluated, or not accepted",
    "info": "get_privileged_info() and get_status() return the declared types",
    "close": "close() can be repeated",
    "episode": "the debug agent reaches reward 1",
}
"""Every rule that is checked, by id, in order."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated rule."""

    check: str
    message: str
    task_id: str | None = None

    def __str__(self) -> str:
        return f"{self.check}{f' [{self.task_id}]' if self.task_id else ''}: {self.message}"


class _Broken(Exception):  # a violated rule, not an error of this program
    """Raised inside a check to report a violated rule."""


def _require(holds: object, message: str) -> None:
    if not holds:
        raise _Broken(message)


class Findings(list[Finding]):
    """The findings, and the rules that were checked; `rule` turns any failure inside it into a finding."""

    def __init__(self) -> None:
        super().__init__()
        self.checked: set[str] = set()

    @contextmanager
    def rule(self, check: str, task_id: str | None = None) -> Iterator[None]:
        self.checked.add(check)
        try:
            yield
        except _Broken as broken:
            self.append(Finding(check, str(broken), task_id))
        except Exception as error:  # noqa: BLE001  # anything an author's code raises is a finding
            self.append(Finding(check, f"{type(error).__name__}: {error}", task_id))


def check_task(
    config: TaskConfig[Any],
    *,
    agent: DebugAgent | None = None,
    spawn: Callable[[TaskConfig[Any]], Task[Any]] | None = None,
    max_steps: int = 20,
) -> Findings:
    """Check one task in instances made by `spawn` (default: `config.make()`); with an agent, play it to the end."""
    findings = Findings()
    spawn = spawn or (lambda task_config: task_config.make())
    task_id = config.task_id
    with findings.rule("json", task_id):
        _check_json(config, TaskConfig)
    task: Any = None
    with findings.rule("make", task_id):
        task = spawn(config)
        _require(isinstance(task, Task), f"make() returned {type(task).__name__}, not a Task")
        _require(task.id == config.metadata.id, f"the task's id is '{task.id}', not '{config.metadata.id}'")
    if not isinstance(task, Task):
        return findings
    try:
        for check, function in _TASK_RULES.items():
            with findings.rule(check, task_id):
                function(task)
        with findings.rule("reproducible", task_id):
            _check_reproducible(task, spawn(config))
    finally:
        with findings.rule("close", task_id):
            task.close()
            task.close()
    if agent is not None:
        with findings.rule("episode", task_id):
            problem = episode_problem(run_debug_episode(spawn(config), agent, max_steps=max_steps))
            _require(problem is None, str(problem))
    return findings


def _check_json(value: TypedBaseModel, base: type[TypedBaseModel]) -> None:
    text = value.model_dump_json()
    again = base.model_validate_json(text)
    _require(type(again) is type(value), f"{type(value).__name__} is restored as {type(again).__name__}")
    _require(again == value, "fields are lost or changed")


def _check_actions(task: Task[Any]) -> None:
    actions = task.action_set
    names = [action.name for action in actions]
    _require(names, "the action set is empty")
    _require(len(set(names)) == len(names), f"names are not unique: {names}")
    _require(STOP_ACTION.name not in names or not task.accept_agent_stop, f"'{STOP_ACTION.name}' is reserved")
    for action in actions:
        described, message = action.validate_param_descriptions()
        _require(described, f"action '{action.name}': {message}")
        json.dumps(action.as_dict())


def _check_reset(task: Task[Any]) -> None:
    first = _reset(task)
    _require(first.contents, "the first observation is empty: it must state the objective")
    _require(any(content.to_markdown().strip() for content in first.contents), "the first observation has no text")
    _check_json(first, Observation)
    difference = observation_difference(first, _reset(task))
    _require(not difference, f"a second reset() gives a different observation: {difference}")


def _check_reproducible(task: Task[Any], other: Task[Any]) -> None:
    try:
        difference = observation_difference(_reset(task), _reset(other))
    finally:
        other.close()
    _require(not difference, f"another task of the same config starts differently: {difference}")


def _reset(task: Task[Any]) -> Observation:
    result: Any = task.reset()
    _require(isinstance(result, tuple) and len(result) == 2, "reset() must return (Observation, dict)")
    obs, info = result
    _require(isinstance(info, dict), f"the info of reset() is {type(info).__name__}, not a dict")
    if not isinstance(obs, Observation):
        raise _Broken(f"reset() returned {type(obs).__name__}, not an Observation")
    return obs


def _check_evaluate(task: Task[Any]) -> None:
    _reset(task)
    first: Any = task.evaluate()
    _require(isinstance(first, tuple) and len(first) == 2, "evaluate() must return (float, dict)")
    reward, info = first
    _require(
        isinstance(reward, int | float) and math.isfinite(reward), f"the reward is {reward!r}, not a finite number"
    )
    _require(isinstance(info, dict), f"the info of evaluate() is {type(info).__name__}, not a dict")
    again = task.evaluate()[0]
    _require(again == reward, f"a second evaluate() of the same state gives {again}, not {reward}")


def _check_step(task: Task[Any]) -> None:
    _reset(task)
    output = task.step([])
    _require(isinstance(output, EnvironmentOutput), f"step() returned {type(output).__name__}")
    _require(output.truncated is False, "truncated must be False: limits belong to the harness")
    _require("profiling" in output.info, "info has no 'profiling'")
    unknown = task.step(Action(name="no_such_action_anywhere"))
    _require(unknown.error is not None and unknown.done, "an unknown action must end the step with an error")


def _check_stop(task: Task[Any]) -> None:
    if not task.accept_agent_stop:
        return
    _reset(task)
    output = task.step(Action(name=STOP_ACTION.name))
    _require(output.done, "the stop did not end the task")
    _require("evaluate" in output.info["profiling"], "the stop was not evaluated")


def _check_info(task: Task[Any]) -> None:
    privileged, status = task.get_privileged_info(), task.get_status()
    _require(
        isinstance(privileged, Content), f"get_privileged_info() returned {type(privileged).__name__}, not a Content"
    )
    _require(isinstance(status, str), f"get_status() returned {type(status).__name__}, not a str")


_TASK_RULES: Final[dict[str, Callable[[Task[Any]], None]]] = {
    "actions": _check_actions,
    "reset": _check_reset,
    "evaluate": _check_evaluate,
    "step": _check_step,
    "stop": _check_stop,
    "info": _check_info,
}


def check_benchmark(source: DebugModule | BenchmarkConfig[Any] | ModuleType, *, max_steps: int = 20) -> Findings:
    """Check a benchmark and all its tasks. A debug module also provides agents that must reach reward 1."""
    findings = Findings()
    agents: Callable[[str], DebugAgent] | None = None
    config: Any = source
    if not isinstance(source, BenchmarkConfig):
        with findings.rule("debug-module"):
            for name in ("get_debug_benchmark", "make_debug_agent"):
                _require(
                    callable(getattr(source, name, None)), f"'{getattr(source, '__name__', source)}' has no {name}()"
                )
            module: Any = source
            config, agents = module.get_debug_benchmark(), module.make_debug_agent
            _require(isinstance(config, BenchmarkConfig), "get_debug_benchmark() must return a BenchmarkConfig")
            _require(config.num_tasks, "the debug benchmark has no tasks")
        if findings:
            return findings
    with findings.rule("metadata"):
        _check_metadata(config)
    with findings.rule("json"):
        _check_json(config, BenchmarkConfig)
    with findings.rule("install"):
        config.install()
        config.install()
    with findings.rule("setup"), config.make() as benchmark:
        _check_tasks(benchmark, agents, findings, max_steps)
    return findings


def _check_tasks(
    benchmark: Benchmark[Any], agents: Callable[[str], DebugAgent] | None, findings: Findings, max_steps: int
) -> None:
    configs = list(benchmark.config.get_task_configs())
    for config in configs:
        agent = None
        if agents:
            with findings.rule("episode", config.task_id):
                agent = agents(config.task_id)
        found = check_task(config, agent=agent, spawn=benchmark.spawn, max_steps=max_steps)
        findings += found
        findings.checked |= found.checked


def _check_metadata(config: BenchmarkConfig[Any]) -> None:
    metadata = config.benchmark_metadata
    for field in ("name", "version", "description"):
        _require(getattr(metadata, field).strip(), f"benchmark metadata has no {field}")
    everything = config.task_metadata
    _require(everything, "there are no tasks")
    _require(
        metadata.num_tasks == len(everything),
        f"num_tasks is {metadata.num_tasks}, but {len(everything)} tasks exist",
    )
    for task_id, task in everything.items():
        _require(task_id == task.id or task_id.endswith(f"/{task.id}"), f"task '{task.id}' is listed as '{task_id}'")
    for name in config.named_subsets():
        try:
            config.model_copy(update={"task_ids": None}).named_subset(name)
        except (ValueError, ValidationError) as error:
            raise _Broken(f"named subset '{name}': {error}") from error


def observation_difference(first: Observation, second: Observation) -> str:
    """The differences of two observations as `path: a != b` lines; empty if there are none."""
    return "; ".join(_differences("", first.model_dump(mode="json"), second.model_dump(mode="json")))


def _differences(path: str, first: Any, second: Any) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(key for key in second if key not in first)]:
            yield from _differences(f"{path}.{key}" if path else key, first.get(key), second.get(key))
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (left, right) in enumerate(zip(first, second, strict=True)):
            yield from _differences(f"{path}[{index}]", left, right)
    elif first != second:
        yield f"{path}: {_short(first)} != {_short(second)}"


def _short(value: Any, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"
