"""The calls of models by all rollouts of a job: one gateway, with the limits of the job, and those of each rollout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    def gateway_for(self, agents: Iterable[str]) -> Gateway | None:
        """The gateway of the job; None for agents that call no model."""
        return self.gateway if any(map(_calls_models, agents)) else None

    @cached_property
    def gateway(self) -> Gateway:
        """With the limits of the job."""
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


def _calls_models(agent: str) -> bool:
    name = agent.partition(":")[0]
    return name == "script" or not always_wins(name)
