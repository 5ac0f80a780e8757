"""The contract between a rollout and an agent.

A rollout opens an agent once per role (`start`), sends it prompts (`prompt`, the one turn boundary), and closes it.
Process agents work inside the sandbox of their context; policy agents map an observation and an action set to actions
and can also drive gym tasks. Everything an agent does is reported as events, as it happens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

from benchflow.files.redaction import NO_SECRETS, Redactor
from benchflow.sandbox.protocol import Sandbox

if TYPE_CHECKING:
    from benchflow.models.gateway import Access
    from cube.core import Action, ActionSchema, Observation

StopReason = Literal[
    "end_turn",
    "max_tokens",
    "max_steps",
    "max_calls",
    "max_cost",
    "max_model_time",
    "refusal",
    "cancelled",
    "timeout",
    "exited",
]

ModelWay = Literal["none", "machine", "gateway", "variables"]
"""`none`: it calls no models. `machine`: from this machine, with the records and limits of the gateway. `gateway`: from
the sandbox, pointed at the gateway by its own settings. `variables`: as `gateway`, if it reads variables of providers.
"""

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

    The sender of a prompt records it (`user_message`); the agent records the rest.
    """

    def __call__(self, event: EventType, /, **fields: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class PermissionOption:
    """One answer that an agent offers when it asks; ids and kinds are kept as the agent sent them."""

    id: str
    kind: str
    """`allow_once`, `allow_always`, `reject_once`, `reject_always`, or another name used by the agent."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """A request of an agent for permission."""

    title: str
    options: tuple[PermissionOption, ...]
    tool_call: Mapping[str, Any] = field(default_factory=dict)


PermissionHandler = Callable[[PermissionRequest], Awaitable[str | None]]
"""Answers with the id of an option, or None to refuse. A handler that raises is a refusal."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Limits of an agent's turn; None means unlimited."""

    max_steps: int | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    idle_timeout_sec: float | None = 600.0
    """How long an agent may be silent; running tool calls do not count as silence."""
    start_timeout_sec: float = 120.0
    """Time limit until the agent is ready for its first prompt."""


NO_LIMITS: Final = AgentLimits()
"""No limit except on silence."""


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A tool that is not part of the sandbox."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


class RemoteTools(ABC):
    """Tools of an environment outside the sandbox; a model gets them in place of its own."""

    specs: tuple[RemoteTool, ...]
    finished: bool
    """Whether the episode is over: nothing more can be done in it."""

    @abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """What a call shows, and whether it was carried out."""


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What a rollout provides to an agent while it is open."""

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
    """None: the agent may do anything that the sandbox allows."""
    forbidden_tools: frozenset[str] = frozenset()
    mcp_servers: tuple[Mapping[str, Any], ...] = ()
    tools: RemoteTools | None = None
    """What a model calls in place of the sandbox's tools; None: those."""
    skills_dir: str | None = None
    package_dir: Path | None = None
    """The task's folder on this machine; only the oracle agent reads it."""
    oracle_dir: Path | None = None
    """The folder with `solve.sh` on this machine, of a step for instance; None: `oracle/`, else `solution/`, of the
    package. Only the oracle agent reads it."""
    oracle_script: str = "solve.sh"
    """The script of the oracle; a role of an arena may have its own."""
    peer: bool = False
    """Whether prompts are messages of a peer, to be answered: a script or an oracle gets each on its standard input and
    in the file `BENCHFLOW_PROMPT_FILE`, and prints its answer."""
    oracle_env: Mapping[str, str] = field(default_factory=dict)
    """The resolved `oracle.env`; only the oracle agent gets it."""
    keep_processes: bool = False
    """Whether processes may outlive the turn, because the package declares a running service as its solution."""
    redactor: Redactor = NO_SECRETS
    """Redacts the secrets of this phase in raw output before it is written to `log_folder`."""
    models: Access | None = None
    """The model gateway: for an agent that asks inside, base URLs and a token that work in the sandbox, for others the
    same limits and records. None: there is no gateway, or the sandbox cannot be reached by one."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How one prompt ended."""

    stop_reason: StopReason
    text: str = ""
    """The last message of the agent."""
    exit_code: int | None = None
    timed_out: bool = False
    usage: Mapping[str, float] = field(default_factory=dict)
    """`input_tokens`, `output_tokens`, `cached_tokens`, `cost_usd`, `steps`, `tool_calls`, …"""


class Agent(ABC):
    """An agent on a task.

    `start` and `prompt` raise `AgentFailure` if it cannot start or its connection is lost, and
    `InfrastructureFailure` if its model cannot be reached; an agent that gives up or exits is a `TurnResult`.
    """

    name: str
    """The name as given, such as `acp:my-agent --stdio`."""
    asks_inside: ClassVar[bool] = False
    """Whether its processes call models from inside the sandbox: then `context.models` works there."""

    def variables(self) -> tuple[str, ...]:
        """Variables of this machine that it uses (keys, addresses); their values are redacted."""
        return ()

    def check(self, env: Mapping[str, str]) -> None:
        """Raise `UsageError` if it is already clear that it cannot start, for example because a key is missing.

        Called before anything is started, outside an event loop, and may take a moment; `env` holds the variables that
        its phase adds to those of the machine.
        """
        del env

    async def install(self, sandbox: Sandbox) -> None:
        """Install what the agent needs in the environment; done once per environment and agent, then reused."""
        del sandbox

    def install_key(self) -> str | None:
        """What `install` depends on; None if there is nothing to install."""
        return None

    @abstractmethod
    async def start(self, context: AgentContext) -> None:
        """Start the agent in the sandbox of the context."""

    @abstractmethod
    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        """One turn. At the time limit, everything the turn started is ended and the result says so."""

    @abstractmethod
    async def close(self) -> None:
        """Stop the agent; idempotent, and never raises for an agent that has already ended."""


class Policy(ABC):
    """An agent that decides, one observation at a time; drives gym tasks, and packages through their gym tools."""

    name: str

    def check(self) -> None:
        """Raise `UsageError` if it is already clear that it cannot decide, for example because a key is missing."""

    def reset(self) -> None:
        """Forget the last episode."""

    @abstractmethod
    async def act(self, observation: Observation, actions: Sequence[ActionSchema]) -> list[Action]:
        """The next actions; an empty list ends the episode."""

    @property
    def usage(self) -> Mapping[str, float]:
        """Totals since the last reset."""
        return {}

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the last `act` returned nothing, such as a limit that was reached; None while the episode continues."""
        return None


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """What `bench agents` shows about an agent."""

    name: str
    description: str
    kind: Literal["process", "policy", "both"]
    argument: str | None = None
    """The argument after the colon, such as `FILE`; None if there is none."""
    needs: tuple[str, ...] = ()
    """Variables, programs or extras, in words."""
    takes: tuple[str, ...] = ()
    """Variables that are passed on to it if they are set."""
    install: str | None = None
    """What is installed for it, in words; None if nothing is."""
    aliases: tuple[str, ...] = ()
    models: ModelWay | None = None
    """How it reaches models; None: nobody said, so nothing of the gateway can be relied on."""
    dialects: tuple[str, ...] = ()
    """The dialects that it speaks with the gateway: `openai`, `anthropic`, `gemini`."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request for an agent by name."""

    name: str
    """As the user wrote it: `NAME` or `NAME:ARGUMENT`."""
    argument: str | None = None
    model: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables of this machine that the agent itself needs, such as a key."""
    limits: AgentLimits = NO_LIMITS
    """Limits of a policy; an agent gets its limits from its context."""
    models: Access | None = None
    """Where calls of a policy are limited and recorded; an agent has it in its context."""


@dataclass(frozen=True, slots=True)
class AgentKind:
    """The implementation behind an agent's name. Plugins register one in the entry-point group `benchflow.agents`.

    Either may be None; both raise `UsageError` for an invalid request.
    """

    info: AgentInfo
    agent: Callable[[AgentRequest], Agent] | None = None
    policy: Callable[[AgentRequest], Policy] | None = None
