"""Turns: the agents that are open in a sandbox, their contexts, the answers to their questions, and one deadline.

An agent stays open between its turns, so that it remembers them; one that has ended or overrun is opened again. A
permission request is answered by the caller's handler; in doubt there is no answer, and that is a refusal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import anyio

from benchflow.agents.protocol import (
    Agent,
    AgentContext,
    EventSink,
    PermissionHandler,
    PermissionRequest,
    StopReason,
    TurnResult,
)
from benchflow.environment import Environment
from benchflow.errors import UnsupportedError
from benchflow.files.redaction import Redactor
from benchflow.record import AgentEnd, Event, JsonLines, RolloutFolder, Trajectory
from benchflow.rewards import attributed
from benchflow.rollout.config import RolloutConfig
from benchflow.rollout.phases.step_bounds import keeps_processes
from benchflow.rollout.plan import MODEL, ORACLE, PlannedTurn, RolloutPlan, StepPlan
from benchflow.rollout.users import RoundResult
from benchflow.sandbox.protocol import Change, Sandbox
from benchflow.sandbox.task_policy import mcp_servers, resolve_variables
from benchflow.task.package import TaskPackage
from benchflow.task.taken import require_intact
from benchflow.verifier import Verifier

if TYPE_CHECKING:
    from benchflow.models.gateway import Access, Grant
    from benchflow.rollout.ors_tools import OrsTools

GRACE_SEC: Final = 30.0
"""How long an agent may take to end its turn on its own after its time limit."""
CLOSE_SEC: Final = 30.0
LIMIT_SEC: Final = 10.0
"""How long an agent may take to end its turn on its own after a limit on its calls of models."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What all turns of a rollout share: the plan, the environment, the records, the factory of agents."""

    config: RolloutConfig
    package: TaskPackage
    plan: RolloutPlan
    environment: Environment
    verifier: Verifier
    folder: RolloutFolder
    trajectory: Trajectory
    rounds: JsonLines
    redactor: Redactor
    machine: Mapping[str, str] = field(repr=False)
    agents_until: float | None = None
    """When the agents of all steps have to end, on the clock of the event loop."""
    tools: OrsTools | None = None
    """The tools of an environment outside the sandbox."""
    installed: frozenset[Change] = frozenset()
    """What differs from the environment because agents were installed, before any of them began."""
    grant: Grant | None = None
    """The calls of models; None for agents that make none."""
    adapt: Callable[[AgentContext], AgentContext] | None = None
    """Changes what agents are given; None: nothing."""

    def make_agent(self, name: str, model: str | None) -> Agent:
        return make_agent(self.config, name, model, self.machine)

    def agent_context(
        self,
        step: StepPlan,
        turn: PlannedTurn,
        sandbox: Sandbox,
        logs: Path,
        ask: PermissionHandler | None,
        events: EventSink,
        models: Access | None = None,
    ) -> AgentContext:
        """The context of a role while it is open in a sandbox: variables and files of its own scope only."""
        view, role = self.plan.view, turn.role
        is_oracle = role.agent == ORACLE
        user = step.agent.user
        limits = self.config.limits
        env, machine = self._agent_env(role.env, is_oracle=is_oracle), self.machine
        if models is not None and models.listening is not None:  # no key enters the box: the token stands for all
            env, machine = models.without_keys({**self._named_keys(models), **env}), models.without_keys(machine)
        made = AgentContext(
            sandbox=sandbox,
            workdir=sandbox.spec.workdir,
            user=str(user) if user is not None else None,
            env=env,
            events=events,
            log_folder=logs,
            model=role.model,
            reasoning_effort=role.reasoning_effort,
            limits=replace(limits, idle_timeout_sec=role.idle_timeout_sec or limits.idle_timeout_sec),
            ask=ask,
            forbidden_tools=self.plan.forbidden_tools,
            mcp_servers=(*mcp_servers(view, machine), *self._relay(role.agent)),
            tools=self.tools if role.agent.partition(":")[0] == MODEL else None,
            skills_dir=turn.skills_dir,
            package_dir=view.files.root,
            oracle_dir=self._oracle_dir(step) if is_oracle else None,
            oracle_env=self._oracle_env() if is_oracle else {},
            keep_processes=keeps_processes(self.environment.preparation, step.name),
            redactor=self.redactor if models is None else self.redactor.with_values([models.token]),
            models=models,
        )
        return made if self.adapt is None else self.adapt(made)

    def _relay(self, agent: str) -> tuple[Mapping[str, Any], ...]:
        """The server of such tools, for agents inside the sandbox."""
        return self.tools.mcp_servers if self.tools is not None and agent.partition(":")[0] != MODEL else ()

    def _named_keys(self, models: Access) -> dict[str, str]:
        """Variables of the environment that name a key: the sandbox was started without it."""
        declared = resolve_variables(self.plan.view.config.environment.env, self.machine)
        declared |= self.plan.secrets.of("environment")
        return {name: value for name, value in declared.items() if models.without_keys({name: value})[name] != value}

    def _agent_env(self, role_env: Mapping[str, str], *, is_oracle: bool) -> dict[str, str]:
        if is_oracle:
            return {}
        own = resolve_variables(role_env, self.machine, path="agents.roles.env")
        return {**self.plan.secrets.of("agent"), **self.config.agent_env, **own}

    def _oracle_env(self) -> dict[str, str]:
        declared = resolve_variables(self.plan.view.config.oracle.env, self.machine, path="oracle.env")
        return {**self.plan.secrets.of("oracle"), **declared}

    def _oracle_dir(self, step: StepPlan) -> Path | None:
        require_intact(self.plan.view.files)
        own = step.view.oracle_dir if step.view is not None else None
        return own or self.plan.view.oracle_dir

    def solution(self, step: StepPlan) -> str | None:
        """The oracle's script as text, for users that were granted it."""
        folder = self._oracle_dir(step)
        script = folder / "solve.sh" if folder is not None else None
        return script.read_text(errors="replace") if script is not None and script.is_file() else None


def make_agent(config: RolloutConfig, name: str, model: str | None, machine: Mapping[str, str]) -> Agent:
    """The agent of a role, not started; an unknown one is a `UsageError`."""
    if config.make_agent is not None:
        return config.make_agent(name, model)
    from benchflow.agents.registry import create_agent

    return create_agent(name, model, environ=machine)


def confirms(policy: str | Mapping[str, str] | None) -> bool:
    """Whether a confirmation policy requires a human; the scope of its keys is unknown, so every request needs one."""
    return bool(policy)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and its answer: the id of an option, or None when the request was cancelled."""

    request: PermissionRequest
    answer: str | None
    by: Literal["handler", "policy", "branch", "failure"]


@dataclass(slots=True)
class Gatekeeper:
    """The permission handler of one line of work, as agents are given it.

    It keeps the agent's option ids and kinds as they are and remembers every request with its answer. It refuses when
    the caller's handler raises, gives an id that was not offered, or is missing although a human has to confirm.
    """

    handler: PermissionHandler | None = None
    needs_human: bool = False
    decisions: list[str] = field(default_factory=list)
    """Answers that a branch has decided on, for the first requests of its first turn."""
    asked: list[Asked] = field(default_factory=list)
    """Requests of the current turn."""

    def active(self) -> bool:
        """Whether agents are made to ask at all."""
        return self.handler is not None or self.needs_human or bool(self.decisions)

    def begin_turn(self) -> None:
        """Forget the requests of the last turn."""
        self.asked = []

    def end_turn(self) -> None:
        """Answers that the turn did not use do not count for the next."""
        self.decisions.clear()

    async def __call__(self, request: PermissionRequest) -> str | None:
        asked = await self._answer(request)
        self.asked.append(asked)
        return asked.answer

    async def _answer(self, request: PermissionRequest) -> Asked:
        from benchflow.agents.permission_requests import refusal  # most agents ask for nothing

        offered = {option.id for option in request.options}
        refused = refusal(request, "").option_id
        if self.decisions:
            decided = self.decisions.pop(0)
            return Asked(request, decided if decided in offered else refused, "branch")
        if self.handler is None:
            return Asked(request, refused, "policy")
        try:
            answer = await self.handler(request)
        except Exception:  # noqa: BLE001 - a handler of the caller that fails is a refusal, never an approval
            return Asked(request, refused, "failure")
        if answer is not None and answer not in offered:
            return Asked(request, refused, "failure")
        return Asked(request, refused if answer is None else answer, "handler")


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """One turn: how it ended, what happened, what was asked."""

    result: TurnResult
    events: list[Event]
    wall_sec: float
    asked: tuple[Asked, ...] = ()

    @property
    def tool_calls(self) -> int:
        return sum(event["type"] == "tool_call" for event in self.events)


@dataclass(slots=True)
class AgentTally:
    """The totals of the agents of a step."""

    exit_code: int | None = None
    timed_out: bool = False
    stop_reason: str | None = None
    usage: Counter[str] = field(default_factory=Counter)

    def add(self, result: TurnResult) -> None:
        self.stop_reason = result.stop_reason
        self.timed_out = self.timed_out or result.timed_out
        if result.exit_code is not None:
            self.exit_code = result.exit_code
        for name, value in result.usage.items():
            self.usage[name] += value  # type: ignore[assignment] # a Counter adds up any number

    def join(self, other: AgentTally) -> None:
        """Add what another line of the same step used; a failing exit code counts more than one that is not."""
        self.stop_reason = other.stop_reason or self.stop_reason
        self.timed_out = self.timed_out or other.timed_out
        if other.exit_code is not None and not self.exit_code:
            self.exit_code = other.exit_code
        self.usage.update(other.usage)

    def end(self) -> AgentEnd:
        return AgentEnd(self.exit_code, self.timed_out, self.stop_reason)


class OpenAgents:
    """One line of work in one sandbox."""

    def __init__(
        self,
        context: TurnContext,
        step: StepPlan,
        sandbox: Sandbox,
        logs: Path,
        gatekeeper: Gatekeeper,
        *,
        began: float | None = None,
    ) -> None:
        """The deadline of the step begins now, or at `began` for one of several lines."""
        self.context: Final = context
        self.step: Final = step
        self.sandbox: Final = sandbox
        self.tally: Final = AgentTally()
        self.gatekeeper: Final = gatekeeper
        self._logs: Final = logs
        self.line: Final = context.trajectory.line()
        """Where its events go."""
        self._several: Final = len({turn.role.name for turn in step.turns}) > 1
        self._open: dict[str, Agent] = {}
        self._access: dict[str, Access] = {}
        began = anyio.current_time() if began is None else began
        own = None if step.timeout_sec is None else began + step.timeout_sec
        limits = [limit for limit in (own, context.agents_until) if limit is not None]
        self._deadline: Final = min(limits, default=None)

    @property
    def exhausted(self) -> bool:
        """Whether the step has reached its time limit, or a limit on calls of models."""
        if self.context.grant is not None and self.context.grant.limit is not None:
            return True
        return self._deadline is not None and anyio.current_time() >= self._deadline

    def _time_left(self, turn: PlannedTurn) -> float | None:
        limits = [turn.role.timeout_sec]
        if self._deadline is not None:
            limits.append(max(self._deadline - anyio.current_time(), 0.0))
        return min((limit for limit in limits if limit is not None), default=None)

    async def take_turn(self, turn: PlannedTurn, prompt: str, **where: Any) -> TurnOutcome:
        """Prompt a role and wait until its turn has ended; `where` is added to every event of the turn."""
        line = self.line
        began = anyio.current_time()
        self.gatekeeper.begin_turn()
        role = turn.role.name if turn.scene is not None else None
        with line.context(scene=turn.scene, role=role, **where), line.collected() as events:
            line("user_message", text=prompt)
            with attributed("agent", "agent"):
                result = await self._prompt(turn, prompt, where)
        self.gatekeeper.end_turn()
        self.tally.add(result)
        return TurnOutcome(result, events, anyio.current_time() - began, tuple(self.gatekeeper.asked))

    async def _prompt(self, turn: PlannedTurn, prompt: str, where: Mapping[str, Any]) -> TurnResult:
        grant = self.context.grant
        agent = await self.opened(turn)
        if (access := self._access.get(turn.role.name)) is not None:
            place = {"step": where.get("step"), "turn": where.get("round", 0), "branch": where.get("branch")}
            access.at(**place, scene=turn.scene)
        limit = self._time_left(turn)
        result: TurnResult | None = None
        failed: Exception | None = None
        with anyio.move_on_after(None if limit is None else limit + GRACE_SEC) as scope:
            async with _ended_at_limit(grant, scope):
                try:
                    result = await agent.prompt(prompt, timeout=limit)
                except Exception as error:  # noqa: BLE001 - raised again below, unless the gateway knows why
                    failed = error
        if result is None or result.timed_out:  # calls under way are over before anything is said of them
            await self._shut(turn.role.name)
        if grant is not None and grant.limit is not None:
            self.line("error", code=grant.limit.name, message=str(grant.limit))
            await self._shut(turn.role.name)
            ended = result or TurnResult("end_turn")
            return replace(ended, stop_reason=cast("StopReason", grant.limit.name), timed_out=False)
        if grant is not None and (unreached := grant.failure_of(turn.role.name)) is not None:
            raise unreached.error() from failed
        if failed is not None:
            raise failed
        if result is None:
            self.line("agent_timeout", reason="did not end by itself", timeout_sec=limit)
            result = TurnResult("timeout", timed_out=True)
        if result.stop_reason == "exited":
            await self._shut(turn.role.name)
        return result

    async def opened(self, turn: PlannedTurn) -> Agent:
        """The agent of a turn, started if it is not open."""
        role = turn.role
        agent = self._open.get(role.name)
        if agent is None:
            agent = self.context.make_agent(role.agent, role.model)
            logs = self._logs / role.name if self._several else self._logs
            ask = self.gatekeeper if self.gatekeeper.active() else None
            models = await self._admitted(agent, role.name)
            settings = self.context.agent_context(self.step, turn, self.sandbox, logs, ask, self.line, models)
            self._open[role.name] = agent  # before it is started, so that a cancelled start is closed too
            await agent.start(settings)
        return agent

    async def _admitted(self, agent: Agent, role: str) -> Access | None:
        """The way to models of a role that is opened; it ends with the role."""
        grant = self.context.grant
        if grant is None:
            return None
        from benchflow.models.gateway import PORT
        from benchflow.record.model_calls import CallPlace

        place = CallPlace(role, step=self.step.name)
        if not agent.asks_inside:
            access = grant.seat(place)
        elif not grant.upstreams:
            return None
        else:
            try:
                access = grant.admit(place, await self.sandbox.listen(PORT))
            except UnsupportedError:  # agents that need it refuse to start
                return None
        self._access[role] = access
        return access

    async def _shut(self, role: str) -> None:
        agent, access = self._open.pop(role, None), self._access.pop(role, None)
        with anyio.CancelScope(shield=True):
            if agent is not None:
                with anyio.move_on_after(CLOSE_SEC):
                    await agent.close()
            if access is not None:
                await access.close()

    async def close(self) -> None:
        """End all agents, also while being cancelled; their files in the sandbox are removed."""
        for role in {**self._open, **self._access}:
            await self._shut(role)


@asynccontextmanager
async def _ended_at_limit(grant: Grant | None, scope: anyio.CancelScope) -> AsyncIterator[None]:
    """End the block if a limit on calls of models is reached and it does not end by itself soon after."""
    if grant is None or not grant.bounded:
        yield
        return

    async def watch() -> None:
        await grant.reached.wait()
        await anyio.sleep(LIMIT_SEC)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        yield
        group.cancel_scope.cancel()


def log_round(
    context: TurnContext, step: StepPlan, result: RoundResult, prompt: str, outcome: TurnOutcome, **more: Any
) -> None:
    """Append a round to `user_rounds.jsonl`; `more` is left out where it is None."""
    record: dict[str, Any] = {
        "round": result.round,
        "scene": result.scene,
        "role": result.role,
        "prompt": prompt,
        "rewards": dict(result.rewards) if result.rewards is not None else None,
        "verifier_error": result.verifier_error,
        "stop_reason": outcome.result.stop_reason,
        "n_tool_calls": result.n_tool_calls,
        "n_trajectory_events": len(result.trajectory),
        "wall_sec": round(outcome.wall_sec, 3),
        "tokens": _tokens(outcome.result.usage),
    }
    handed = {"handoff_from": result.handoff_from, "handoff_to": result.handoff_to}
    optional = {"step": step.name, **handed, **more}
    kept = {key: value for key, value in optional.items() if value is not None}
    context.rounds.append(context.redactor.data({**record, **kept}))


def _tokens(usage: Mapping[str, float]) -> float | None:
    known = [usage[name] for name in ("input_tokens", "output_tokens") if name in usage]
    return sum(known) if known else None
