"""Requests the next reply of the model: counts usage, and shortens a conversation that is too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from benchflow.agents.model.model_conversation import Conversation
from benchflow.agents.protocol import AgentLimits, AgentRequest, StopReason
from benchflow.errors import AgentFailure, InfrastructureFailure, RuntimeFailure, UsageError
from benchflow.models import ChatModel, ModelFailure, Reply
from benchflow.models.chat import LIMIT_CODES


class Budget:
    """Totals of one conversation, or of one turn of it. Values that were never reported are left out."""

    def __init__(self, model: str, limits: AgentLimits) -> None:
        self._model = model
        self._limits = limits
        self._totals: dict[str, float] = {}

    def add(self, usage: Mapping[str, float]) -> None:
        """Count one reply. A cost limit that cannot be checked is a failure; it must not be ignored."""
        if self._limits.max_cost_usd is not None and "cost_usd" not in usage:
            raise AgentFailure(
                f"The price of the model '{self._model}' is unknown, so its cost cannot be limited.",
                code="price-unknown",
            )
        for name, value in usage.items():
            self._totals[name] = self._totals.get(name, 0) + value
        self.count("steps")

    def count(self, name: str) -> None:
        self._totals[name] = self._totals.get(name, 0) + 1

    @property
    def totals(self) -> dict[str, float]:
        return dict(self._totals)

    def reached(self) -> StopReason | None:
        """The limit that was reached; None if there is none."""
        limits, used = self._limits, self._totals
        if limits.max_steps is not None and used.get("steps", 0) >= limits.max_steps:
            return "max_steps"
        tokens = used.get("input_tokens", 0) + used.get("output_tokens", 0)
        if limits.max_tokens is not None and tokens >= limits.max_tokens:
            return "max_tokens"
        if limits.max_cost_usd is not None and used.get("cost_usd", 0.0) >= limits.max_cost_usd:
            return "max_cost"
        return None


class OutOfRoom(Exception):
    """The conversation is too long for the model and cannot be made any shorter."""


class AtLimit(Exception):
    """A limit of the rollout or the job on calls of models was reached."""

    def __init__(self, limit: StopReason) -> None:
        super().__init__(limit)
        self.limit: StopReason = limit


def model_name(request: AgentRequest) -> str:
    """The model named by `model:MODEL` or by `--model`; `UsageError` if there is none, or if both are given."""
    if request.argument and request.model and request.argument != request.model:
        raise UsageError(
            f"The agent '{request.name}' already names a model; remove --model {request.model}.",
            code="agent-argument",
        )
    name = request.argument or request.model
    if not name:
        raise UsageError("The agent 'model' needs a model: model:MODEL.", code="agent-argument")
    return name


def check_model(model: str, environ: Mapping[str, str]) -> None:
    """Refuse a model that is unknown or has no key, before anything is started."""
    try:
        ChatModel(model, environ).check_now()
    except ModelFailure as failure:
        raise UsageError(str(failure), code=failure.code) from failure


async def next_reply(
    chat: ChatModel,
    conversation: Conversation,
    budget: Budget,
    tools: Sequence[Mapping[str, Any]],
    reasoning_effort: str | None = None,
) -> Reply:
    """The model's next reply, added to the conversation. Raises `OutOfRoom`, `AtLimit`, or a failure."""
    while True:
        try:
            reply = await chat.complete(conversation.messages, tools=tools, reasoning_effort=reasoning_effort)
        except ModelFailure as failure:
            if failure.code in LIMIT_CODES:
                raise AtLimit(cast("StopReason", failure.code)) from failure
            if failure.code != "context-overflow":
                raise as_failure(failure) from failure
            if not conversation.shrink():
                raise OutOfRoom(str(failure)) from failure
            continue
        budget.add(reply.usage)
        conversation.hear(reply)
        return reply


def as_failure(failure: ModelFailure) -> RuntimeFailure:
    """A wrong setup of the model is a failure of the agent; an unreachable model is one of the infrastructure."""
    kind = AgentFailure if failure.setup else InfrastructureFailure
    return kind(str(failure), code=failure.code)
