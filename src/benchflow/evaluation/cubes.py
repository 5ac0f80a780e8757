"""Installed cubes as a source of tasks: a policy plays one episode per item, with the same records as packages.

`debug` plays with the agent of the cube's own debug module; every other agent is a policy of the agent registry. What a
cube does runs in threads that can be left behind, so that limits of time and interrupts hold whatever it is.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio

from benchflow.agents.protocol import AgentLimits, Policy
from benchflow.agents.registry import create_policy
from benchflow.errors import AgentFailure, Category, EnvironmentFailure, UsageError
from benchflow.evaluation.own_thread import OwnThread
from benchflow.evaluation.step_errors import trouble_of
from benchflow.evaluation.work import TaskRef, WorkItem
from benchflow.record import (
    AgentPart,
    ErrorRecord,
    JobRequest,
    Outcome,
    Phase,
    Result,
    RolloutFolder,
    SandboxPart,
    Score,
    TaskId,
    Trajectory,
    write_document,
)
from benchflow.rewards import Attributed, RewardError, Unscored, attribute, attributed
from benchflow.rewards.numbers import finite, shown
from benchflow.rollout.plan import time_for_agents
from benchflow.rollout.redaction import make_redactor, secret_values
from cube.benchmark import Benchmark, BenchmarkConfig, close_quietly
from cube.core import Action, ActionSchema, EnvironmentOutput, Observation
from cube.episodes import DebugAgent
from cube.registry import installed
from cube.task import Task, TaskConfig

DEFAULT_MAX_STEPS: Final = 100
DEBUG: Final = "debug"
GRACE_SEC: Final = 5.0
"""How long an action that is under way when the agent's time is over may take, so that its state can be scored."""
CLOSE_SEC: Final = 10.0
"""How long a task or a benchmark may take to close before it is left behind."""


class CubeRunner:
    """Plays tasks of installed benchmarks. A benchmark is set up when its first task runs, and shared by all."""

    def __init__(self, names: Sequence[str], request: JobRequest) -> None:
        self._names: Final = list(names)
        self._request: Final = request
        self._configs: dict[str, BenchmarkConfig[Any]] = {}
        self._live: dict[str, Benchmark[Any]] = {}
        self._thread: Final = OwnThread("benchmarks")
        self._starting: Final = anyio.Lock()
        """A benchmark is set up once, however many of its tasks begin at the same time."""

    def tasks(self) -> list[TaskRef]:
        """Every task of the named benchmarks, one per seed; an agent that cannot decide is a `UsageError`."""
        if self._names and self._request.agent != DEBUG:
            create_policy(self._request.agent, self._request.model).check()
        refs = []
        for name in self._names:
            config = self._configs[name] = _benchmark(name)
            refs += [_task(name, task_config) for task_config in config.get_task_configs()]
        return refs

    async def prepare(self, task: TaskRef) -> None:
        """Cubes build nothing beforehand."""

    async def run(self, item: WorkItem, folder: Path) -> Result:
        """One episode; what fails is attributed, and cancelling closes the task."""
        await anyio.Path(folder).mkdir(parents=True)
        name, task_config = item.task.payload
        episode = _Episode(item, self._request, folder)
        with anyio.move_on_after(self._request.timeout_sec) as deadline:
            try:
                benchmark = await self._benchmark(name)
                policy = _policy(name, task_config.task_id, self._request)
                await episode.play(benchmark, task_config, policy)
            except Exception as error:  # noqa: BLE001  # the boundary: every failure becomes one unscored result
                episode.fail(error)
        if deadline.cancelled_caught:
            episode.out_of_time()
        result = episode.result()
        write_document(RolloutFolder(folder).result, result.to_dict())
        return result

    def can_score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> bool:
        """The state of a cube's task ends with its episode."""
        del item, folder, result
        return False

    async def score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> Result | None:
        del item, folder, result
        return None

    async def _benchmark(self, name: str) -> Benchmark[Any]:
        async with self._starting:
            if name not in self._live:
                self._live[name] = await self._thread.run(self._configs[name].make)
        return self._live[name]

    async def close(self) -> None:
        """Close the benchmarks."""
        for benchmark in self._live.values():
            with anyio.move_on_after(CLOSE_SEC, shield=True):
                await self._thread.run(close_quietly, benchmark)
        self._live.clear()
        self._thread.close()


class _Episode:
    """One episode and what becomes of it."""

    def __init__(self, item: WorkItem, request: JobRequest, folder: Path) -> None:
        self._item = item
        self._request = request
        self._started = datetime.now(UTC)
        self._clock = time.monotonic()
        self._began = anyio.current_time()
        self._redactor = make_redactor(secret_values(os.environ))
        self._trajectory = Trajectory(RolloutFolder(folder).trajectory, self._redactor)
        self._thread = OwnThread(item.task.name)
        self._phase: Phase = "plan"
        self._error: ErrorRecord | None = None
        self._output: EnvironmentOutput | None = None
        self._usage: Mapping[str, float] = {}
        self._timing: dict[str, float] = {}
        self._timed_out = False

    async def play(self, benchmark: Benchmark[Any], config: TaskConfig[Any], policy: Policy) -> None:
        """Reset, act until done or out of steps, evaluate; the task is closed whatever happens."""
        self._enter("environment")
        task = await self._thread.run(benchmark.spawn, config)
        try:
            observation, _ = await self._thread.run(task.reset)
            self._trajectory("user_message", text=observation.to_markdown())
            self._enter("agent")
            policy.reset()
            await self._act(task, policy, observation, self._agents_until())
            self._usage = dict(policy.usage)
            self._enter("verify")
            if self._output is None or not self._output.done:
                reward, info = await self._thread.run(task.evaluate)
                self._output = EnvironmentOutput(obs=Observation(), reward=reward, done=True, info=info)
            if finite(self._output.reward) is None:
                raise RewardError(
                    f"The cube gave the reward {shown(self._output.reward)}, which is not a finite number."
                )
        finally:
            with anyio.move_on_after(CLOSE_SEC, shield=True):
                await self._thread.run(task.close)
            self._thread.close()

    def _agents_until(self) -> float:
        """When an agent that begins now has to end; a deadline of the whole leaves time to evaluate."""
        whole, limit = self._request.timeout_sec, self._request.agent_timeout_sec
        latest = math.inf if whole is None else self._began + time_for_agents(whole, whole)
        return latest if limit is None else min(latest, anyio.current_time() + limit)

    async def _act(self, task: Task[Any], policy: Policy, observation: Observation, until: float) -> None:
        most = self._request.max_steps or task.metadata.recommended_max_steps or DEFAULT_MAX_STEPS
        for _ in range(most):
            with anyio.CancelScope(deadline=until) as limit:
                actions = await policy.act(observation, task.action_set)
            self._timed_out = limit.cancelled_caught or anyio.current_time() >= until
            if self._timed_out or not actions:
                return
            for action in actions:
                self._trajectory("tool_call", tool=action.name, arguments=action.arguments, tool_call_id=action.id)
            self._output = output = await self._step(task, actions, until)
            observation = output.obs
            error = output.error.exception_str if output.error else None
            self._trajectory("tool_result", text=observation.to_markdown(), reward=output.reward, error=error)
            trouble = trouble_of(output.error) if output.error else None
            if trouble is not None:
                raise Attributed(trouble)
            if output.done:
                return

    async def _step(self, task: Task[Any], actions: list[Action], until: float) -> EnvironmentOutput:
        """One step; one that does not end leaves a state that nobody can score."""
        with attributed("environment", "agent"):
            with anyio.CancelScope(deadline=until + GRACE_SEC):
                return await self._thread.run(task.step, actions)
            self._timed_out = True
            called = ", ".join(action.name for action in actions)
            raise EnvironmentFailure(
                f"The action {called} was still running {GRACE_SEC:g} s after the agent's time limit.",
                code="timeout",
            )

    def _enter(self, phase: Phase) -> None:
        now = time.monotonic()
        self._timing[self._phase] = now - self._clock
        self._phase, self._clock = phase, now

    def fail(self, error: Exception) -> None:
        boundary: Mapping[Phase, Category] = {"agent": "agent", "verify": "verifier", "environment": "environment"}
        verdict = attribute(error, boundary.get(self._phase, "infrastructure"), self._phase)
        self._tell(verdict)

    def out_of_time(self) -> None:
        message = f"The rollout exceeded its limit of {self._request.timeout_sec:g} s."
        self._tell(Unscored("infrastructure", self._phase, "deadline", message))

    def _tell(self, verdict: Unscored) -> None:
        reason = self._redactor.text(verdict.reason)
        self._error = ErrorRecord(verdict.category, verdict.code, self._phase, reason)

    def _outcome(self) -> Outcome:
        if self._error is not None or self._output is None:
            return self._error or ErrorRecord("cancelled", "cancelled", self._phase, "The episode was not finished.")
        return Score(self._output.reward, {"reward": self._output.reward})

    def result(self) -> Result:
        self._enter("record")
        self._trajectory.close()
        return Result(
            task=self._item.task.record(),
            agent=AgentPart(self._request.agent, self._request.model, exit_code=None, timed_out=self._timed_out),
            sandbox=SandboxPart(None, None, None),
            attempt=self._item.attempt,
            key=self._item.key,
            outcome=self._outcome(),
            verifier=None,
            timing=self._timing,
            usage=self._usage,
            started_at=_iso(self._started),
            finished_at=_iso(datetime.now(UTC)),
        )


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


def _policy(benchmark: str, task_id: str, request: JobRequest) -> Policy:
    if request.agent != DEBUG:
        limits = AgentLimits(max_steps=request.max_steps, max_cost_usd=request.max_cost_usd)
        return create_policy(request.agent, request.model, limits=limits)
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
    except Exception as error:  # whatever a cube raises while it is loaded
        raise UsageError(f"The cube '{name}' cannot be loaded: {error}", code="broken-cube") from error
    return config


def _task(benchmark: str, config: TaskConfig[Any]) -> TaskRef:
    digest = hashlib.sha256(config.model_dump_json().encode()).hexdigest()
    seed = "" if config.seed is None else f"#{config.seed}"
    name = f"{benchmark}/{config.task_id}{seed}"
    identity = TaskId(name, f"sha256:{digest}")
    return TaskRef(identity, f"cube:{benchmark}", f"sha256:{digest}", None, payload=(benchmark, config))


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
