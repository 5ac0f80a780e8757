"""A task: one scoreable problem with gym-style dynamics and its own evaluation.

`TaskMetadata` is the light view of a task that listings use; `TaskExecutionInfo` contains what only the worker needs;
`TaskConfig` is self-contained, is sent to a worker as JSON, and creates the live `Task` there.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from pathlib import Path, PurePosixPath
from time import perf_counter
from typing import Any, ClassVar, Final, Generic, Literal

from pydantic import ConfigDict, PrivateAttr, SerializeAsAny
from typing_extensions import TypeVar

import cube
from cube.container import Container, ContainerBackend, ContainerConfig
from cube.core import (
    Action,
    ActionSchema,
    Content,
    EnvironmentOutput,
    Observation,
    StepError,
    StructuredContent,
    TextContent,
)
from cube.registry import benchmark_name, import_benchmarks_of
from cube.resource_handle import ResourceHandle
from cube.tool import AbstractTool, ToolConfig, UnknownActionError, problem_of, refused
from cube.typed import TypedBaseModel, trusted

LONGEST_NAME: Final = 250
"""Maximum bytes of a file name before `.json`, valid on all common file systems."""


def info_file(folder: Path, task_id: str) -> Path:
    """The file of a task below `folder`; ids may contain `/` but must not leave the folder."""
    parts = PurePosixPath(task_id).parts
    if (
        not parts
        or task_id.startswith("/")
        or any(part in (".", "..") or "\0" in part or "\\" in part for part in parts)
    ):
        raise ValueError(f"Task id {task_id!r} is not a valid file name: empty or outside the cache folder.")
    if any(len(part.encode(errors="surrogatepass")) > LONGEST_NAME for part in parts):
        raise ValueError(f"Task id '{task_id[:40]}…' is not a valid file name: a part exceeds {LONGEST_NAME} bytes.")
    return folder.joinpath(*parts[:-1], f"{parts[-1]}.json")


def read_info(folder: Path, task_ids: tuple[str, ...]) -> dict[str, Any]:
    """The data of the first of `task_ids` that has a file; otherwise a `RuntimeError` names the command to run."""
    import json

    for task_id in task_ids:
        path = info_file(folder, task_id)
        try:
            data = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except ValueError as error:
            raise RuntimeError(f"{path} is damaged ({error}). Run `cube install <bench>` to write it again.") from error
        if not isinstance(data, dict):
            raise RuntimeError(f"{path} must contain a JSON object. Run `cube install <bench>` to write it again.")
        return data
    raise RuntimeError(
        f"No execution data for task_id='{task_ids[0]}' at {info_file(folder, task_ids[0])}. Run `cube install "
        f"<bench>` (or `<OwnerBenchmarkConfig>.install()`) to populate the per-task execution cache on this worker."
    )


def write_info(folder: Path, task_id: str, data: Mapping[str, Any]) -> Path:
    """Write the data of a task atomically, and return its path."""
    import json
    import tempfile

    path = info_file(folder, task_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o644)  # the user who installs may not be the one who runs the tasks
            json.dump(data, stream, ensure_ascii=False)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
    return path


RuntimeContext = dict[str, Any]
"""Shared infrastructure from `Benchmark._setup()`; read-only for tasks once setup is over."""

Score = Callable[[Observation], tuple[float, dict[str, Any]]]
"""Evaluates the state after a step: the reward and its info."""

STOP_ACTION: Final = trusted(
    ActionSchema,
    {"name": "final_step", "description": "Stop the task execution.", "parameters": {}},
    {"name", "description"},
)
"""The action with which an agent ends a task. Offered by the harness; not part of a tool's action set."""


class TaskMetadata(TypedBaseModel, defer_build=True):
    """The light view of a task: listings, search, subsets. Benchmarks add typed fields by subclassing."""

    model_config = ConfigDict(extra="forbid")

    id: str
    split: Literal["train", "val", "test"] = "test"
    abstract_description: str = ""
    """For search and filtering; the objective itself is in the first observation."""
    recommended_max_steps: int | None = None
    """A hint for the harness, not enforced."""
    container_config: SerializeAsAny[ContainerConfig] | None = None


class TaskExecutionInfo(TypedBaseModel, defer_build=True):
    """Heavy, lazily loaded data of a task. Benchmarks subclass it with typed fields."""


class UnscoredError(Exception):
    """No score exists, and why. `evaluate` may raise it with details; any other exception means the same."""

    def __init__(
        self, reason: str, *, category: str = "verifier", phase: str = "verify", code: str = "evaluate-failed"
    ) -> None:
        super().__init__(reason)
        self.unscored = {"category": category, "phase": phase, "code": code, "reason": reason}


class InvalidRewardError(UnscoredError, ValueError):
    """`evaluate` returned a reward that is not a finite number, so that there is no score."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, code="reward-invalid")


TTMetadata = TypeVar("TTMetadata", bound=TaskMetadata, default=TaskMetadata)
TTool = TypeVar("TTool", bound=AbstractTool, default=AbstractTool)


class Task(TypedBaseModel, ABC, Generic[TTMetadata, TTool], defer_build=True):
    """A live task. Its tool, and its container if it has one, are up once it is constructed.

    `Task[Metadata, Tool]` names the classes of both for type checkers; the tool may be left out.

    Implementers provide `reset` and `evaluate` and may override the hooks below; `step` is final.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    metadata: SerializeAsAny[TTMetadata]
    execution_info: SerializeAsAny[TaskExecutionInfo] | None = None
    tool_config: SerializeAsAny[ToolConfig]
    container_backend: SerializeAsAny[ContainerBackend] | None = None
    runtime_context: RuntimeContext | None = None
    validate_per_step: bool = False
    """Evaluate on every step, not only when the task is done."""
    accept_agent_stop: bool = True
    """Whether the agent may end the task with `STOP_ACTION`."""

    _tool: AbstractTool | None = PrivateAttr(default=None)
    _container: Container | None = PrivateAttr(default=None)
    _resource_handle: ResourceHandle | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any, /) -> None:
        """Launch the container if there is who launches it, and create the tool; a failure leaves nothing running."""
        super().model_post_init(context)
        container_config = self.metadata.container_config
        if container_config is not None:
            self._launch_container(container_config)
        try:
            self._build_tool()
        except BaseException:
            try:
                self._stop_container()
            except Exception:  # logged; the tool's failure is the one to report
                import logging

                logging.getLogger(__name__).exception("Stopping the container of '%s' failed", self.metadata.id)
            raise

    def _launch_container(self, config: ContainerConfig) -> None:
        """By the infrastructure of the runtime context, if there is one, else by the backend."""
        if self.runtime_context is not None and self.runtime_context.get("infra") is not None:
            from cube.task_infra import launch_task_container  # few tasks have an infrastructure

            wanted = config.model_dump(include={"image", "ram_gb", "cpu_cores", "disk_gb", "gpu", "ports"})
            self._resource_handle, self._container = launch_task_container(
                self.runtime_context, name=self.metadata.id, **wanted
            )
        elif self.container_backend is not None:
            self._container = self.container_backend.launch(config)

    def _build_tool(self) -> None:
        """Create the tool; override it to prepare the container first, or to use other settings."""
        self._tool = self.tool_config.make(container=self._container)

    @abstractmethod
    def reset(self) -> tuple[Observation, dict[str, Any]]:
        """Set up the initial state, `self.tool.reset()` included; the observation states the objective."""

    @abstractmethod
    def evaluate(self, obs: Observation | None = None) -> tuple[float, dict[str, Any]]:
        """Score the current state, without changing it."""

    def filter_actions(self, actions: list[ActionSchema]) -> list[ActionSchema]:
        """The actions of the tool that this task offers."""
        return actions

    def obs_postprocess(self, obs: Observation) -> Observation:
        """Transform an observation before the agent sees it."""
        return obs

    def finished(self, obs: Observation | None = None) -> bool:
        """Whether the task is over although the agent did not stop."""
        del obs
        return False

    def get_privileged_info(self) -> Content:
        """Solution and internal state for debug agents and tests; never for the agent under test."""
        return StructuredContent(data={})

    def get_status(self) -> str:
        return ""

    def close(self) -> None:
        """Release the tool and the container; overrides call `super().close()`."""
        try:
            if self._tool is not None:
                self._tool.close()
        finally:
            self._stop_container()

    def _stop_container(self) -> None:
        container, self._container = self._container, None
        handle, self._resource_handle = self._resource_handle, None
        if handle is not None:
            handle.close()
        elif container is not None:
            container.stop()

    @property
    def id(self) -> str:
        return self.metadata.id

    @property
    def tool(self) -> TTool:
        # Read directly from pydantic's private attributes: `self._tool` costs more than a whole action.
        tool: TTool | None = (self.__pydantic_private__ or {}).get("_tool")
        if tool is None:
            raise RuntimeError(f"Task '{self.metadata.id}' has no tool: model_post_init must call super().")
        return tool

    @property
    def container(self) -> Container | None:
        return self._container

    @property
    def action_set(self) -> list[ActionSchema]:
        """The actions an agent may call now."""
        return self.filter_actions(self.tool.action_set)

    def problem_of(self, action: Action) -> str | None:
        """Why an action cannot be executed now, as a sentence; None if it can.

        It is not offered, it is a stop that is not accepted, or its arguments do not fit the schema.
        """
        if action.name == STOP_ACTION.name:
            return None if self.accept_agent_stop else self._problem_of_stop(action)
        return self._problem_of_filtered(action) if self._filters else problem_of(self.tool, action)

    def step(self, action: Action | list[Action]) -> EnvironmentOutput:
        """Execute one action, or several as one step, and evaluate when the task is done.

        The first stop or error ends the step and the task. An action that cannot be executed is answered with why.
        """
        return take_step(self, action, lambda obs: evaluate_task(self, obs))

    @property
    def _filters(self) -> bool:
        return type(self).filter_actions is not Task.filter_actions

    def _problem_of_filtered(self, action: Action) -> str | None:
        offered = self.action_set
        schema = next((schema for schema in offered if schema.name == action.name), None)
        if schema is None:
            names = ", ".join(known.name for known in offered)
            return f"Action {action.name[:100]!a} is not offered by this task; available: {names or 'none'}."
        return problem_of(self.tool, action, schema)

    def _problem_of_stop(self, action: Action) -> str | None:
        """Where the stop is not accepted, a tool may still have an action of that name."""
        if not _offers(self, action.name):
            return f"This task does not accept '{action.name}': it ends by itself."
        return problem_of(self.tool, action)

    def _refused(self, action: Action, problem: str) -> Observation:
        """The answer to an action that cannot be executed."""
        return refused(problem, action)

    def _result(self, action: Action, tool: AbstractTool) -> Any:
        """What the tool returns for an action that is not an accepted stop, or why it was not executed."""
        # Asking for the actions costs more than executing one; without a filter the tool itself knows its actions.
        if self._filters or action.name == STOP_ACTION.name:
            problem = self.problem_of(action)
            if problem is not None:
                return self._refused(action, problem)
        try:
            return tool.execute_action(action)
        except ValueError as error:  # how a tool of an author's own says that it has no such action
            if not isinstance(error, UnknownActionError) and _offers(tool, action.name):
                raise
            return refused(str(error), action)

    def _execute(self, actions: list[Action], obs: Observation) -> tuple[StepError | None, bool, float, int]:
        """Run actions until one stops or fails, adding to `obs`: the error, whether it is over, seconds, actions."""
        tool, stop = self.tool, STOP_ACTION.name if self.accept_agent_stop else None
        spent, executed = 0.0, 0
        for action in actions:
            if action.name == stop:
                obs.contents.append(TextContent(data="Task finished by the agent."))
                return None, True, spent, executed
            started = perf_counter()
            result = self._result(action, tool)
            spent += perf_counter() - started
            executed += 1
            if isinstance(result, Observation):
                obs.contents.extend(result.contents)
            elif isinstance(result, StepError):
                return result, True, spent, executed
            else:
                raise ValueError(
                    f"Unknown result type from calling action '{action.name}' with args {action.arguments}: "
                    f"got {type(result)}, expected Observation or StepError"
                )
        return None, False, spent, executed


def _offers(source: Task[Any, Any] | AbstractTool, name: str) -> bool:
    return any(schema.name == name for schema in source.action_set)


def evaluate_task(task: Task[Any, Any], obs: Observation | None = None) -> tuple[float, dict[str, Any]]:
    """The reward as a finite float and a copy of the info; `InvalidRewardError` for a reward that is not finite."""
    result: Any = task.evaluate(obs)
    try:
        reward, info = result
        if isinstance(reward, str | bytes):
            raise TypeError
        number, copied = float(reward), {**info}
    except OverflowError as error:
        raise InvalidRewardError("The reward is too large for a number.") from error
    except (TypeError, ValueError) as error:
        raise TypeError(f"{type(task).__name__}.evaluate() returned {result!r}, not (float, dict).") from error
    if not isfinite(number):
        raise InvalidRewardError(f"The reward {number} is not a finite number.")
    return number, copied


def take_step(task: Task[Any, Any], action: Action | list[Action], score: Score | None) -> EnvironmentOutput:
    """A step that `score` evaluates when the task is done, or after every step if it says so; None: never."""
    obs = trusted(Observation, {"contents": []})
    error, done, spent, executed = task._execute([action] if isinstance(action, Action) else _actions(action), obs)
    done = done or bool(task.finished(obs))
    profiling: dict[str, Any] = {}
    if executed:
        profiling["tool_execute"] = {"total": spent, "avg_per_action": spent / executed, "n_actions": executed}
    reward = 0.0
    info: dict[str, Any] = {}
    if score is not None and (done or task.validate_per_step):
        started = perf_counter()
        reward, info = score(obs)
        profiling["evaluate"] = perf_counter() - started
    started = perf_counter()
    obs = task.obs_postprocess(obs)
    profiling["obs_postprocess"] = perf_counter() - started
    if not isinstance(obs, Observation):
        raise TypeError(f"{type(task).__name__}.obs_postprocess() returned {type(obs).__name__}, not an Observation.")
    info["profiling"] = profiling
    return trusted(
        EnvironmentOutput,
        {"obs": obs, "reward": reward, "done": done, "truncated": False, "info": info, "error": error},
    )


def _actions(actions: Any) -> list[Action]:
    """Several actions as a list; anything else is a `TypeError` before an action is executed."""
    listed: list[Any] = list(actions) if isinstance(actions, Iterable) else [actions]
    for action in listed:
        if not isinstance(action, Action):
            raise TypeError(f"step() takes an Action or a list of them, not {type(actions).__name__}: {action!r}")
    return listed


class TaskConfig(TypedBaseModel, ABC, Generic[TTMetadata], defer_build=True):
    """Everything a worker needs to create a task, without importing the benchmark."""

    metadata: SerializeAsAny[TTMetadata]
    seed: int | None = None
    tool_config: SerializeAsAny[ToolConfig] | None = None
    sub_bench_name: str | None = None
    """The benchmark of a composite that this belongs to: names joined by `/`, outermost first."""

    _benchmark_cache_dir: ClassVar[Path | None] = None

    @property
    def task_id(self) -> str:
        """The id, prefixed with the name of its benchmark if that is part of a composite."""
        return self.metadata.id if self.sub_bench_name is None else f"{self.sub_bench_name}/{self.metadata.id}"

    @abstractmethod
    def make(
        self, runtime_context: RuntimeContext | None = None, container_backend: ContainerBackend | None = None
    ) -> Task[Any]:
        """The live task. By convention it begins with `self.verify_installed()`."""

    @classmethod
    def task_execution_cache_dir(cls) -> Path:
        """The folder that `install()` writes and workers read, in the cache of the benchmark or of the package."""
        package, owner = cls.__module__.partition(".")[0], None
        if "_benchmark_cache_dir" not in cls.__dict__:
            # A new worker has imported only this class. Its benchmark's source says the name; if not, an import may.
            owner = benchmark_name(cls.__module__, cls.__name__)
            if owner is None:
                import_benchmarks_of(package)
        folder = cls.__dict__.get("_benchmark_cache_dir") or cube.get_cache_dir(owner or package)
        return Path(folder) / "tasks_execution_info"

    def load_task_execution_info(self) -> dict[str, Any]:
        """What `install()` wrote for this task; if nothing, a `RuntimeError` names the command to run."""
        return read_info(type(self).task_execution_cache_dir(), (self.task_id, self.metadata.id))

    @classmethod
    def save_task_execution_info(cls, task_id: str, data: Mapping[str, Any]) -> Path:
        """For `install()`: write the data of a task atomically."""
        return write_info(cls.task_execution_cache_dir(), task_id, data)

    def verify_installed(self) -> None:
        """Fail early if data that this task needs is not on this worker; override to check."""
