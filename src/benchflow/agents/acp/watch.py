"""Decides when a turn of an ACP agent is finished or must be interrupted: time, silence, or a limit."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

from benchflow.agents.acp.acp_client import Client
from benchflow.agents.protocol import AgentLimits, StopReason

_LOOK_EVERY_SEC: Final = 1.0
_LAST_ANSWER_SEC: Final = 1.0
"""How long to wait for a reply in the pipe of a process that has ended."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Why a turn is interrupted."""

    stop: StopReason
    reason: str
    limit: float | None = None


class Watch:
    """Watches one turn."""

    def __init__(self, client: Client, limits: AgentLimits, timeout: float | None) -> None:
        self._client = client
        self._limits = limits
        self._timeout = timeout
        self._began = time.monotonic()

    async def until_over(self, request: asyncio.Task[Any], exited: asyncio.Task[int]) -> Cut | None:
        """Wait for the reply, the end of the process, or a reason to interrupt the turn."""
        while not request.done():
            if exited.done():
                await asyncio.wait({request}, timeout=_LAST_ANSWER_SEC)
                return None
            now = time.monotonic()
            if (cut := self._breach(now)) is not None:
                return cut
            await asyncio.wait({request, exited}, timeout=self._pause(now), return_when="FIRST_COMPLETED")
        return None

    def _breach(self, now: float) -> Cut | None:
        limits, turn = self._limits, self._client.turn
        if self._timeout is not None and now - self._began >= self._timeout:
            return Cut("timeout", "it reached its time limit", self._timeout)
        idle = limits.idle_timeout_sec
        if idle is not None and not self._client.busy and now - self._client.last_sign >= idle:
            return Cut("timeout", f"it was silent for {idle:g} s", idle)
        if limits.max_steps is not None and turn.tool_calls > limits.max_steps:
            return Cut("max_steps", f"it made more than {limits.max_steps} tool calls", limits.max_steps)
        if limits.max_cost_usd is not None and (turn.cost_usd or 0.0) > limits.max_cost_usd:
            return Cut("max_cost", f"it cost more than {limits.max_cost_usd:g} USD", limits.max_cost_usd)
        if limits.max_tokens is not None and (turn.context_tokens or 0) > limits.max_tokens:
            return Cut("max_tokens", f"it used more than {limits.max_tokens} tokens", limits.max_tokens)
        return None

    def _pause(self, now: float) -> float:
        """Seconds until the next check: the next deadline, but at most one second."""
        pauses = [_LOOK_EVERY_SEC]
        if self._timeout is not None:
            pauses.append(self._began + self._timeout - now)
        if self._limits.idle_timeout_sec is not None:
            pauses.append(self._client.last_sign + self._limits.idle_timeout_sec - now)
        return max(min(pauses), 0.01)
