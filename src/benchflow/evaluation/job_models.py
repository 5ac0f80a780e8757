"""The calls of models by all rollouts of a job: one gateway, with the limits of the job, and those of each rollout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from benchflow.models.gateway.call_limits import CallLimits
from benchflow.models.gateway.shared_gateway import SharedGateway
from benchflow.record import JobRequest, always_wins

if TYPE_CHECKING:
    from benchflow.models.gateway import Gateway


class JobModels(SharedGateway):
    """The gateway of a job."""

    def __init__(self, request: JobRequest, machine: Mapping[str, str]) -> None:
        each = CallLimits(request.max_calls, request.max_tokens, request.max_cost_usd, request.max_model_time)
        whole = CallLimits(
            request.job_max_calls,
            request.job_max_tokens,
            request.job_max_cost_usd,
            request.job_max_model_time,
            request.concurrent_calls,
        )
        super().__init__(machine, each, whole)

    def gateway_for(self, agents: Iterable[str]) -> Gateway | None:
        """The gateway of the job; None for agents that call no model, without limits that judges could reach."""
        return self.gateway if self.limited or any(map(_calls_models, agents)) else None


def _calls_models(agent: str) -> bool:
    name = agent.partition(":")[0]
    return name == "script" or not always_wins(name)
