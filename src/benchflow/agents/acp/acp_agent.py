"""`acp:COMMAND`: any agent that speaks the Agent Client Protocol, started inside the sandbox as the agent's user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from benchflow.agents.acp.acp_launch import Launch
from benchflow.agents.protocol import Agent, AgentContext, AgentInfo, AgentKind, AgentRequest, TurnResult
from benchflow.errors import AgentFailure, UsageError
from benchflow.sandbox.protocol import Sandbox

if TYPE_CHECKING:
    from benchflow.agents.acp.acp_session import Session

EXTRA: Final = "the extra acp"
GATEWAY_EXTRA: Final = "the extra models"


class AcpAgent(Agent):
    """A process that takes prompts over its standard streams; one session from `start` to `close`."""

    asks_inside = True

    def __init__(self, request: AgentRequest, launch: Launch) -> None:
        self.name = request.name
        self._request = request
        self._launch = launch
        self._session: Session | None = None

    def variables(self) -> tuple[str, ...]:
        return self._launch.secrets

    def install_key(self) -> str | None:
        return self._launch.install_key

    async def install(self, sandbox: Sandbox) -> None:
        await self._launch.install(self.name, sandbox)

    def check(self, env: Mapping[str, str]) -> None:
        if find_spec("acp") is None:
            raise UsageError(self._missing(EXTRA), code="extra-missing")
        if self._launch.pointing is not None and not all(map(find_spec, ("httpx", "uvicorn"))):
            raise UsageError(self._missing(GATEWAY_EXTRA), code="extra-missing")
        try:
            self._launch.check(self.name, env, self._request.environ, self._request.model)
        except AgentFailure as error:
            raise UsageError(str(error), code=error.code) from error

    def _missing(self, extra: str) -> str:
        from cube.extras import extra_command

        return f"The agent '{self.name}' needs {extra}: {extra_command(extra.rpartition(' ')[2])}"

    async def start(self, context: AgentContext) -> None:
        if find_spec("acp") is None:
            raise AgentFailure(self._missing(EXTRA), code="extra-missing")
        from benchflow.agents.acp.acp_session import Session

        if self._session is not None:
            raise AgentFailure(f"The agent '{self.name}' is already running.", code="already-started")
        model = context.model or self._request.model
        launch = self._launch
        pointed = launch.environment(self.name, context.env, self._request.environ, context.models, model)
        machine = self._request.environ
        secrets = [machine[name] for name in launch.secrets if machine.get(name)]
        self._session = await Session.open(
            self.name,
            launch.command,
            pointed.variables,
            replace(context, redactor=context.redactor.with_values(secrets)),
            model=pointed.session_model,
            auth_method=launch.auth_method,
        )

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        if self._session is None:
            raise AgentFailure(f"The agent '{self.name}' is not running.", code="not-started")
        return await self._session.prompt(text, timeout)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _any_command(request: AgentRequest) -> Agent:
    if not (request.argument or "").strip():
        raise UsageError("The agent 'acp' needs a command: acp:COMMAND.", code="agent-argument")
    return AcpAgent(request, Launch(command=request.argument or ""))


KIND: Final = AgentKind(
    AgentInfo(
        "acp",
        "Any agent that speaks the Agent Client Protocol, started inside the sandbox.",
        "process",
        argument="COMMAND",
        needs=(EXTRA, "the command in the environment"),
        models="variables",
    ),
    agent=_any_command,
)
