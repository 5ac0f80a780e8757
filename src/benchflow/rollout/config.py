"""The request of a caller: `RolloutConfig`, and the roles if the document does not declare them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchflow.agents.protocol import Agent, AgentLimits, PermissionHandler
from benchflow.errors import UsageError
from benchflow.record import Player, Settings, TaskId, WorkKey, work_key
from benchflow.sandbox.pulling import PullSettings

if TYPE_CHECKING:
    from benchflow.agents.running import Installations
    from benchflow.models.gateway import CallLimits, Gateway
    from benchflow.models.gateway.replay_book import ReplayBook
    from benchflow.rollout.proving import Proofs
    from benchflow.rollout.users import BaseUser
    from benchflow.sandbox.protocol import SandboxBackend
    from benchflow.task.package import TaskPackage

DEFAULT_ROUNDS: Final = 5
DEFAULT_ROLE: Final = "agent"


@dataclass(frozen=True, slots=True)
class Role:
    """One agent of a rollout."""

    name: str
    agent: str
    model: str | None = None
    reasoning_effort: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_sec: float | None = None
    """Time limit of one turn of this role."""
    idle_timeout_sec: float | None = None
    skills_dir: str | None = None
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt to one role; without a text it is the task's prompt."""

    role: str
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """An interaction checkpoint: who takes part, and who is prompted in which order."""

    name: str
    roles: tuple[Role, ...]
    turns: tuple[Turn, ...]
    skills_dir: str | None = None

    def __post_init__(self) -> None:
        names = {role.name for role in self.roles}
        unknown = next((turn.role for turn in self.turns if turn.role not in names), None)
        if unknown is not None:
            raise UsageError(f"The scene {self.name!r} has a turn by {unknown!r}, who is not one of its roles.")

    @classmethod
    def single(
        cls,
        *,
        agent: str,
        model: str | None = None,
        prompts: Sequence[str | None] = (None,),
        role_name: str = DEFAULT_ROLE,
        name: str = "scene-0",
    ) -> Scene:
        """A scene of one role that is prompted in order."""
        role = Role(role_name, agent, model)
        return cls(name, (role,), tuple(Turn(role_name, prompt) for prompt in prompts))


MakeAgent = Callable[[str, str | None], Agent]
"""An agent by name (`NAME` or `NAME:ARGUMENT`) and model; an unknown one is a `UsageError`."""


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """One agent on one task."""

    task: TaskPackage | Path | str
    agent: str
    model: str | None = None
    participants: Mapping[str, Player] = field(default_factory=dict)
    """Who plays the other roles of an arena; one that is not named is played by whom the document says. `agent` plays
    the first participant."""
    seed: int | None = None
    """Of an arena: passed to its assessor, unless the package has one."""
    sandbox: str | SandboxBackend = "auto"
    """A name, or a backend that the caller keeps and closes."""
    base_image: str | None = None
    pull: PullSettings = field(default_factory=PullSettings, repr=False)
    """How a backend that the rollout chooses itself pulls images; it does not change what the work is."""
    attempt: int = 1
    key: WorkKey | None = None
    """What the work is, by content; made from task, settings and attempt when left out."""
    ordinal: int = 1
    """The place of the task among equal ones of its job."""
    prompts: tuple[str, ...] | None = None
    """Prompts that replace those of the document, in order."""
    scenes: tuple[Scene, ...] | None = None
    """Scenes that replace those of the document."""
    user: BaseUser | None = None
    """A user that replaces that of the document."""
    max_user_rounds: int | None = None
    oracle_access: bool = False
    """Whether the user (never the agent) is given the oracle's script."""
    on_ask_user: PermissionHandler | None = None
    """Answers permission requests of agents."""
    max_branches: int = 16
    """Maximum number of branches of `branch_execution: forked-snapshot`."""
    agent_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    limits: AgentLimits = field(default_factory=AgentLimits)
    environment_timeout_sec: float | None = None
    agent_timeout_sec: float | None = None
    """Replaces the value of the package."""
    timeout_sec: float | None = None
    """The deadline of the whole rollout."""
    machine: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables of the machine; the process's own when left out."""
    task_path: str | None = None
    """The path of the task as the caller names it, for the record."""
    make_agent: MakeAgent | None = field(default=None, repr=False)
    """Creates agents instead of the registry."""
    installations: Installations | None = field(default=None, repr=False)
    """Environments with agents installed, shared by the rollouts of a backend; without it each installs its own."""
    judge_cache: Path | None = None
    """The folder of cached baseline and ceiling scores; default: a folder of the user's cache."""
    durable: bool = True
    """Whether the record has reached the disk when the rollout ends; a job that keeps it in its own log, which
    has, need not wait twice."""
    isolation: str | None = None
    """What verifiers see of the agent's changes, a rung or `auto`; replaces what the package declares."""
    proofs: Proofs | None = field(default=None, repr=False)
    """Isolations that were proven, shared by the rollouts of a job; without it each rollout looks for its own."""
    keep_workspace: bool = True
    """Whether the workspace is kept beside the record, so that the rollout can be rescored."""
    gateway: Gateway | None = field(default=None, repr=False)
    """The model gateway, shared by the rollouts of a job; without it each rollout has its own."""
    call_limits: CallLimits | None = None
    """Limits on the calls of models by all agents of the rollout together."""
    replay: ReplayBook | None = field(default=None, repr=False)
    """The calls of another rollout: models are answered from it, and nothing is sent to a provider."""
    token_ids: bool = False
    """Ask servers of the OpenAI dialects for token ids and log-probabilities, which are then in the record."""

    def settings(self) -> Settings:
        """What determines the outcome besides the task and the attempt; plain data without secrets."""
        limits, calls = self.limits, self.call_limits
        return Settings(
            agent=self.agent,
            model=self.model,
            participants={role: str(player) for role, player in sorted(self.participants.items())} or None,
            seed=self.seed,
            sandbox=self.sandbox if isinstance(self.sandbox, str) else self.sandbox.name,
            base_image=self.base_image,
            prompts=self.prompts,
            scenes=tuple(_scene(scene) for scene in self.scenes) if self.scenes is not None else None,
            user=type(self.user).__name__ if self.user is not None else None,
            max_user_rounds=self.max_user_rounds,
            oracle_access=self.oracle_access,
            agent_env=tuple(sorted(self.agent_env)),
            max_steps=limits.max_steps,
            max_tokens=limits.max_tokens if calls is None else calls.max_tokens,
            max_cost_usd=limits.max_cost_usd if calls is None else calls.max_cost_usd,
            max_calls=calls.max_calls if calls is not None else None,
            max_model_time=calls.max_seconds if calls is not None else None,
            replay=self.replay.name if self.replay is not None else None,
            agent_timeout_sec=self.agent_timeout_sec,
            timeout_sec=self.timeout_sec,
            isolation=self.isolation,
        )

    def variables(self) -> Mapping[str, str]:
        """The variables of the machine; a replay asks nobody, so any key of those who were asked then will do."""
        known = dict(os.environ) if self.machine is None else self.machine
        if self.replay is None:
            return known
        from benchflow.models.gateway import PROVIDERS

        names = PROVIDERS if "litellm" in self.replay.providers else self.replay.providers  # it may have asked anybody
        asked = [PROVIDERS[name] for name in names if name in PROVIDERS]
        missing = [provider.keys[0] for provider in asked if not any(known.get(name) for name in provider.keys)]
        return {**known, **dict.fromkeys(missing, "no-key-in-a-replay")}

    def work_key(self, task: TaskId) -> WorkKey:
        """`key`, or the one of this task under these settings."""
        return self.key or work_key(task, self.settings().digest(), self.attempt)


def _scene(scene: Scene) -> dict[str, Any]:
    """A scene for the record: variables by name only."""
    roles = [
        {"name": role.name, "agent": role.agent, "model": role.model, "env_keys": sorted(role.env)}
        for role in scene.roles
    ]
    turns = [{"role": turn.role, "has_prompt": turn.prompt is not None} for turn in scene.turns]
    return {"name": scene.name, "roles": roles, "turns": turns}
