"""Installed cubes as a source of tasks: a policy plays one episode per item, with the same records as packages.

`debug` plays with the agent of the cube's own debug module; every other agent is a policy of the agent registry.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from benchflow.agents.protocol import AgentLimits, Policy
from benchflow.agents.registry import create_policy, policy_names
from benchflow.errors import AgentFailure, UsageError, did_you_mean
from benchflow.evaluation.cube_driver import CLOSE_SEC, CubeDriver, OwnThread
from benchflow.evaluation.job_models import JobModels
from benchflow.evaluation.work import TaskRef, WorkItem
from benchflow.files.redaction import make_redactor, secret_values
from benchflow.record import (
    AgentPart,
    CallPlace,
    JobRequest,
    ModelCalls,
    Result,
    RolloutFolder,
    SandboxPart,
    TaskId,
    Trajectory,
)
from benchflow.rewards import Verdict, attributed
from benchflow.rollout.lifecycle import Draft, carry_out
from cube.benchmark import Benchmark, BenchmarkConfig, close_quietly
from cube.core import Action, ActionSchema, Observation
from cube.episodes import DebugAgent
from cube.registry import installed
from cube.task import TaskConfig

if TYPE_CHECKING:
    from benchflow.models.gateway import Access, Grant

DEBUG: Final = "debug"


class CubeRunner:
    """Plays tasks of installed benchmarks. A benchmark is set up when its first task runs, and shared by all."""

    def __init__(self, names: Sequence[str], request: JobRequest, models: JobModels) -> None:
        self._names: Final = list(names)
        self._request: Final = request
        self._models: Final = models
        self._configs: dict[str, BenchmarkConfig[Any]] = {}
        self._live: dict[str, Benchmark[Any]] = {}
        self._thread: Final = OwnThread("benchmarks")
        self._starting: Final = anyio.Lock()
        """A benchmark is set up once, even if many of its tasks begin at the same time."""

    def tasks(self, *, agents_here: bool = True) -> list[TaskRef]:
        """Every task of the named benchmarks, one per seed; an agent that is not a policy is a `UsageError`."""
        if self._names and self._request.agent != DEBUG:
            _require_policy(self._request, here=agents_here)
        return self.listed()

    def listed(self) -> list[TaskRef]:
        """Every task of the named benchmarks, regardless of the agent."""
        refs = []
        for name in self._names:
            config = self._configs[name] = _benchmark(name)
            refs += [_task(name, task_config) for task_config in config.get_task_configs()]
        return refs

    async def prepare(self, task: TaskRef) -> None:
        """Cubes need no build."""

    async def run(self, item: WorkItem, folder: Path) -> Result:
        """One episode; failures are attributed, and cancelling closes the task."""
        await anyio.Path(folder).mkdir(parents=True)
        request, places = self._request, RolloutFolder(folder)
        agent = AgentPart(request.agent, request.model, exit_code=None, timed_out=False)
        draft = Draft(item.task.record(), agent, SandboxPart(None, None, None), item.key, item.attempt)
        draft.redactor = make_redactor(secret_values(os.environ))

        async def play() -> Verdict:
            calls = ModelCalls(places, draft.redactor)
            with Trajectory(places.trajectory, draft.redactor) as trajectory, closing(calls):
                grant = self._grant(calls)
                draft.driver = await self._driver(item, draft, trajectory, grant)
                return await draft.driver.walk()

        return await carry_out(draft, places, play, timeout_sec=request.timeout_sec, durable=False)

    def _grant(self, calls: ModelCalls) -> Grant | None:
        """What the policy may ask of models; `Attributed` if the job has used it up."""
        gateway = self._models.gateway if self._request.agent != DEBUG else None
        if gateway is None:
            return None
        gateway.require_room()
        from benchflow.models.gateway import GrantRequest

        return gateway.open(GrantRequest(calls, self._models.limits))

    async def _driver(self, item: WorkItem, draft: Draft, trajectory: Trajectory, grant: Grant | None) -> CubeDriver:
        name, config = item.task.payload
        began = anyio.current_time()
        with draft.timed("plan"), attributed("infrastructure", "plan"):
            benchmark = await self.benchmark(name)
            access = grant.seat(CallPlace("agent")) if grant is not None else None
            policy = _policy(name, config.task_id, self._request, access)
        spawn = partial(benchmark.spawn, config)
        return CubeDriver(spawn, policy, self._request, draft, trajectory, began=began, grant=grant)

    def can_score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> bool:
        """The state of a cube's task ends with its episode."""
        del item, folder, result
        return False

    async def score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> Result | None:
        del item, folder, result
        return None

    async def benchmark(self, name: str) -> Benchmark[Any]:
        """The benchmark, set up when it is asked for first."""
        async with self._starting:
            if name not in self._live:
                if name not in self._configs:
                    self._configs[name] = await self._thread.run(_benchmark, name)
                self._live[name] = await self._thread.run(self._configs[name].make)
        return self._live[name]

    async def close(self) -> None:
        """Close the benchmarks."""
        for benchmark in self._live.values():
            with anyio.move_on_after(CLOSE_SEC, shield=True):
                await self._thread.run(close_quietly, benchmark)
        self._live.clear()
        self._thread.close()


class DebugPolicy(Policy):
    """The agent of a cube's own debug module."""

    name = DEBUG

    def __init__(self, make_agent: Callable[[str], DebugAgent], task_id: str) -> None:
        self._make = make_agent
        self._task_id = task_id
        self._agent = make_agent(task_id)

    def reset(self) -> None:
        self._agent = self._make(self._task_id)

    async def act(self, observation: Observation, actions: Sequence[ActionSchema]) -> list[Action]:
        chosen = self._agent(observation, list(actions))
        return chosen if isinstance(chosen, list) else [chosen]


def _require_policy(request: JobRequest, *, here: bool) -> None:
    """Refuse an agent that cannot play, with the names of those that can."""
    try:
        policy = create_policy(request.agent, request.model)
        if here:
            policy.check()
    except UsageError as error:
        if error.code not in ("unknown-agent", "agent-kind"):
            raise
        known = [DEBUG, *policy_names()]
        first = f"Unknown agent '{request.agent}'" if error.code == "unknown-agent" else str(error).rstrip(".")
        near = did_you_mean(request.agent, known)
        raise UsageError(f"{first}; agents that play cubes: {', '.join(known)}.{near}", code=error.code) from None


def _policy(benchmark: str, task_id: str, request: JobRequest, models: Access | None) -> Policy:
    if request.agent != DEBUG:
        limits = AgentLimits(max_steps=request.max_steps, max_cost_usd=request.max_cost_usd)
        return create_policy(request.agent, request.model, limits=limits, models=models)
    module = installed()[benchmark].module.rpartition(".")[0] + ".debug"
    try:
        return DebugPolicy(importlib.import_module(module).make_debug_agent, task_id)
    except (ImportError, AttributeError, LookupError) as error:
        raise AgentFailure(
            f"The cube '{benchmark}' has no debug agent for '{task_id}': {error}", code="no-debug-agent"
        ) from error


def _benchmark(name: str) -> BenchmarkConfig[Any]:
    entries = installed()
    if name not in entries:
        known = ", ".join(entries) or "none"
        raise UsageError(f"The cube '{name}' is not installed; installed: {known}.", code="unknown-cube")
    try:
        config: BenchmarkConfig[Any] = entries[name].load()()
    except Exception as error:  # a cube may raise anything while it is loaded
        raise UsageError(f"The cube '{name}' cannot be loaded: {error}", code="broken-cube") from error
    return config


def _task(benchmark: str, config: TaskConfig[Any]) -> TaskRef:
    digest = hashlib.sha256(config.model_dump_json().encode()).hexdigest()
    seed = "" if config.seed is None else f"#{config.seed}"
    name = f"{benchmark}/{config.task_id}{seed}"
    identity = TaskId(name, f"sha256:{digest}")
    return TaskRef(identity, f"cube:{benchmark}", f"sha256:{digest}", None, payload=(benchmark, config))
