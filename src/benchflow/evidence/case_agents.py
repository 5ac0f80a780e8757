"""The agents that play cases: a command of the author, and an oracle that stops after some steps."""

from __future__ import annotations

from typing import Final

from benchflow.agents.oracle_agent import OracleAgent
from benchflow.agents.protocol import Agent, AgentContext, AgentRequest, TurnResult
from benchflow.agents.running import OutputLog, run_to_end
from benchflow.errors import AgentFailure


class CommandAgent(Agent):
    """Runs a shell command as root in the working folder, once per prompt."""

    def __init__(self, name: str, command: str) -> None:
        self.name = name
        self._command: Final = command
        self._context: AgentContext | None = None

    async def start(self, context: AgentContext) -> None:
        self._context = context

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        del text
        context = self._context
        if context is None:
            raise AgentFailure(f"The agent '{self.name}' is not running.", code="not-started")
        log = OutputLog(context.log_folder / "command.txt", context.redactor)
        try:
            command = ("sh", "-c", self._command)
            ended = await run_to_end(context, command, log, user="root", env=context.env, timeout=timeout)
        finally:
            log.close()
        return ended.turn()

    async def close(self) -> None:
        self._context = None


class OracleSteps:
    """Makes the agents of one rollout: the oracle for the first steps, and nobody for the rest."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def __call__(self) -> Agent:
        return _StoppingOracle(self)

    def take(self) -> bool:
        """Whether the oracle takes the step that begins."""
        self._left -= 1
        return self._left >= 0


class _StoppingOracle(OracleAgent):
    def __init__(self, steps: OracleSteps) -> None:
        super().__init__(AgentRequest("oracle"))
        self._steps: Final = steps
        self._plays = False

    async def start(self, context: AgentContext) -> None:
        self._plays = self._steps.take()
        if self._plays:
            await super().start(context)

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        return await super().prompt(text, timeout=timeout) if self._plays else TurnResult("end_turn")
