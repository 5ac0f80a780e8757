"""The calls of models by all rollouts of a job: one gateway, with the limits of the job, and those of each rollout."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from benchflow.record import JobRequest, always_wins

if TYPE_CHECKING:
    from benchflow.models.gateway import CallLimits, Gateway


class JobModels:
    """The gateway is made when the first rollout needs it, and belongs to this object."""

    def __init__(self, request: JobRequest, machine: Mapping[str, str]) -> None:
        self._request: Final = request
        self._machine: Final = machine

    @cached_property
    def gateway(self) -> Gateway | None:
        """None for agents that ask no model."""
        agent = self._request.agent.partition(":")[0]
        if always_wins(agent) and agent != "script":
            return None
        from benchflow.models.gateway import CallLimits, Gateway

        request = self._request
        limits = CallLimits(
            request.job_max_calls,
            request.job_max_tokens,
            request.job_max_cost_usd,
            request.job_max_model_time,
            request.concurrent_calls,
        )
        return Gateway(self._machine, limits=limits)

    @property
    def limits(self) -> CallLimits:
        """Those of each rollout."""
        from benchflow.models.gateway import CallLimits

        request = self._request
        return CallLimits(request.max_calls, request.max_tokens, request.max_cost_usd, request.max_model_time)

    async def close(self) -> None:
        """Idempotent."""
        gateway: Gateway | None = self.__dict__.pop("gateway", None)
        if gateway is not None:
            await gateway.close()
