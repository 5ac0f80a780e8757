"""`nop`: does nothing, to show what an untouched environment scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from benchflow.agents.protocol import Agent, AgentContext, AgentInfo, AgentKind, AgentRequest, Policy, TurnResult

if TYPE_CHECKING:
    from cube.core import Action, ActionSchema, Observation


class NopAgent(Agent):
    def __init__(self, request: AgentRequest) -> None:
        self.name = request.name

    async def start(self, context: AgentContext) -> None:
        del context

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        del text, timeout
        return TurnResult("end_turn")

    async def close(self) -> None:
        """Nothing to stop."""


class NopPolicy(Policy):
    def __init__(self, request: AgentRequest) -> None:
        self.name = request.name

    async def act(self, observation: Observation, actions: Sequence[ActionSchema]) -> list[Action]:
        del observation, actions
        return []


KIND: Final = AgentKind(AgentInfo("nop", "Does nothing.", "both", models="none"), agent=NopAgent, policy=NopPolicy)
