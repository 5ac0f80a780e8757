"""The contract between a rollout and an agent.

A rollout opens an agent once per role (`start`), sends it prompts (`prompt`, the one turn boundary), and closes it.
Process agents work inside the sandbox of their context; policy agents map an observation and an action set to actions
and can also drive gym tasks. Whatever an agent does is told as events, as it happens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from benchflow.files.redaction import NO_SECRETS, Redactor
from benchflow.sandbox.protocol import Sandbox

if TYPE_CHECKING:
    from cube.core import Action, ActionSchema, Observation

StopReason = Literal["end_turn", "max_tokens", "max_steps", "max_cost", "refusal", "cancelled", "timeout", "exited"]

EventType = Literal[
    "user_message",
    "agent_message",
    "agent_thought",
    "tool_call",
    "tool_result",
    "permission",
    "plan",
    "usage",
    "agent_started",
    "agent_ended",
    "agent_timeout",
    "oracle",
    "error",
]


class EventSink(Protocol):
    """Where events go: the rollout's trajectory, which stamps, redacts and writes them at once.

    Whoever sends a prompt writes it (`user_message`); the agent writes the rest.
    """

    def __call__(self, event: EventType, /, **fields: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class PermissionOption:
    """One answer that an agent offers when it asks; ids and kinds are kept as the agent sent them."""

    id: str
    kind: str
    """`allow_once`, `allow_always`, `reject_once`, `reject_always`, or what else the agent calls it."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """An agent asks before it does something."""

    title: str
    options: tuple[PermissionOption, ...]
    tool_call: Mapping[str, Any] = field(default_factory=dict)


PermissionHandler = Callable[[PermissionRequest], Awaitable[str | None]]
"""Answers with the id of an option, or None to refuse. A handler that raises is a refusal."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """When an agent's turn is cut off; None leaves it open."""

    max_steps: int | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    idle_timeout_sec: float | None = 600.0
    """How long a turn may pass without a sign of the agent, tool calls that are under way not counted."""
    start_timeout_sec: float = 120.0
    """How long it may take until the agent is ready for its first prompt."""


NO_LIMITS: Final = AgentLimits()
"""Nothing is limited but silence."""


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What a rollout gives an agent for as long as it is open."""

    sandbox: Sandbox
    workdir: str
    user: str | None
    env: Mapping[str, str]
    """Variables of the agent phase, declared secrets included; never those of other phases."""
    events: EventSink
    log_folder: Path
    """The rollout's `agent/` folder on this machine, for capped raw output."""
    model: str | None = None
    reasoning_effort: str | None = None
    limits: AgentLimits = NO_LIMITS
    ask: PermissionHandler | None = None
    """None: the agent may do whatever the sandbox lets it."""
    forbidden_tools: frozenset[str] = frozenset()
    mcp_servers: tuple[Mapping[str, Any], ...] = ()
    skills_dir: str | None = None
    package_dir: Path | None = None
    """The task's folder on this machine; only the oracle agent reads it."""
    oracle_dir: Path | None = None
    """The folder with `solve.sh` on this machine, of a step for instance; None: `oracle/`, else `solution/`, of the
    package. Only the oracle agent reads it."""
    oracle_env: Mapping[str, str] = field(default_factory=dict)
    """The resolved `oracle.env`; only the oracle agent gets it."""
    keep_processes: bool = False
    """What the agent starts may outlive its turn, because the package says that its solution is a running service."""
    redactor: Redactor = NO_SECRETS
    """Knows the secrets of this phase; raw output goes through it before it is written to `log_folder`."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How one prompt ended."""

    stop_reason: StopReason
    text: str = ""
    """What the agent said last."""
    exit_code: int | None = None
    timed_out: bool = False
    usage: Mapping[str, float] = field(default_factory=dict)
    """`input_tokens`, `output_tokens`, `cached_tokens`, `cost_usd`, `steps`, `tool_calls`, …"""


class Agent(ABC):
    """An agent on a task.

    `start` and `prompt` raise `AgentFailure` when it cannot start or its connection is lost, and
    `InfrastructureFailure` when its model cannot be reached; an agent that gives up or exits is a `TurnResult`.
    """

    name: str
    """As it was asked for, such as `acp:my-agent --stdio`."""

    def variables(self) -> tuple[str, ...]:
        """Variables of this machine that it takes for itself (keys, addresses); their values are to be redacted."""
        return ()

    def check(self, env: Mapping[str, str]) -> None:
        """Raise `UsageError` when it is known beforehand that it cannot begin: a key that is missing, for instance.

        Called before anything is started; `env` are the variables that its phase adds to those of the machine. May take
        a moment, and is not called from an event loop.
        """
        del env

    async def install(self, sandbox: Sandbox) -> None:
        """Put into the environment what the agent needs; done once per environment and agent, then reused."""
        del sandbox

    def install_key(self) -> str | None:
        """What `install` depends on; None when there is nothing to install."""
        return None

    @abstractmethod
    async def start(self, context: AgentContext) -> None:
        """Bring it up in the sandbox of the context."""

    @abstractmethod
    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        """One turn. When the time is over, everything the turn started has ended and the result says so."""

    @abstractmethod
    async def close(self) -> None:
        """End it; idempotent, never raises for an agent that is gone already."""


class Policy(ABC):
    """An agent that decides, one observation at a time; drives gym tasks, and packages through their gym tools."""

    name: str

    def check(self) -> None:
        """Raise `UsageError` when it is known beforehand that it cannot decide: a key that is missing, for instance."""

    def reset(self) -> None:
        """Forget the last episode."""

    @abstractmethod
    async def act(self, observation: Observation, actions: Sequence[ActionSchema]) -> list[Action]:
        """What to do next; nothing ends the episode."""

    @property
    def usage(self) -> Mapping[str, float]:
        """Totals since the last reset."""
        return {}

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the last `act` gave nothing, such as a limit that was reached; None while the episode goes on."""
        return None


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """What `bench agents` says about an agent."""

    name: str
    description: str
    kind: Literal["process", "policy", "both"]
    argument: str | None = None
    """What stands after the colon, such as `FILE`; None when there is nothing."""
    needs: tuple[str, ...] = ()
    """Variables, programs or extras, in words."""
    takes: tuple[str, ...] = ()
    """Variables that are passed on to it when they are set."""
    install: str | None = None
    """What is put into an environment for it, in words; None when nothing is."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """How an agent was asked for."""

    name: str
    """As the user wrote it: `NAME` or `NAME:ARGUMENT`."""
    argument: str | None = None
    model: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables of this machine, for what the agent needs itself, such as a key."""
    limits: AgentLimits = NO_LIMITS
    """Those of a policy; an agent gets its limits from its context."""


@dataclass(frozen=True, slots=True)
class AgentKind:
    """What an agent's name stands for. Plugins register one in the entry-point group `benchflow.agents`.

    Either may be None; both raise `UsageError` for a request that makes no sense.
    """

    info: AgentInfo
    agent: Callable[[AgentRequest], Agent] | None = None
    policy: Callable[[AgentRequest], Policy] | None = None
