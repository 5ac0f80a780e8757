"""What all parts of a running rollout share: the plan, the environment, where records go, how agents are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchflow.agents.protocol import Agent, AgentContext, PermissionHandler
from benchflow.environment import Environment
from benchflow.files.redaction import Redactor
from benchflow.record import JsonLines, RolloutFolder, Trajectory
from benchflow.rollout.config import RolloutConfig
from benchflow.rollout.phases.freeze import keeps_processes
from benchflow.rollout.plan import ORACLE, PlannedTurn, RolloutPlan, StepPlan
from benchflow.sandbox.envvars import resolve_variables
from benchflow.sandbox.protocol import Change, Sandbox
from benchflow.sandbox.task_policy import mcp_servers
from benchflow.task.package import TaskPackage
from benchflow.verifier import Verifier


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """One rollout that has its environment."""

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
    installed: frozenset[Change] = frozenset()
    """What differs from the environment because agents were installed, before any of them began."""

    def make_agent(self, name: str, model: str | None) -> Agent:
        return make_agent(self.config, name, model, self.machine)

    def agent_context(
        self, step: StepPlan, turn: PlannedTurn, sandbox: Sandbox, logs: Path, ask: PermissionHandler | None
    ) -> AgentContext:
        """What a role is given as long as it is open in a sandbox: variables and files of its own scope only."""
        view, role = self.plan.view, turn.role
        is_oracle = role.agent == ORACLE
        user = step.agent.user
        limits = self.config.limits
        return AgentContext(
            sandbox=sandbox,
            workdir=sandbox.spec.workdir,
            user=str(user) if user is not None else None,
            env=self._agent_env(role.env, is_oracle=is_oracle),
            events=self.trajectory,
            log_folder=logs,
            model=role.model,
            reasoning_effort=role.reasoning_effort,
            limits=replace(limits, idle_timeout_sec=role.idle_timeout_sec or limits.idle_timeout_sec),
            ask=ask,
            forbidden_tools=self.plan.forbidden_tools,
            mcp_servers=tuple(mcp_servers(view, self.machine)),
            skills_dir=turn.skills_dir,
            package_dir=view.task_dir,
            oracle_dir=self._oracle_dir(step) if is_oracle else None,
            oracle_env=self._oracle_env() if is_oracle else {},
            keep_processes=keeps_processes(view, step.name),
            redactor=self.redactor,
        )

    def _agent_env(self, role_env: Mapping[str, str], *, is_oracle: bool) -> dict[str, str]:
        if is_oracle:
            return {}
        own = resolve_variables(role_env, self.machine, path="agents.roles.env")
        return {**self.plan.secrets.of("agent"), **self.config.agent_env, **own}

    def _oracle_env(self) -> dict[str, str]:
        declared = resolve_variables(self.plan.view.config.oracle.env, self.machine, path="oracle.env")
        return {**self.plan.secrets.of("oracle"), **declared}

    def _oracle_dir(self, step: StepPlan) -> Path | None:
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
