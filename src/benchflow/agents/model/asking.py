"""Requests the next reply of the model: counts usage, and shortens a conversation that is too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchflow.agents.model.budget import Budget
from benchflow.agents.model.conversation import Conversation
from benchflow.agents.protocol import AgentRequest
from benchflow.errors import AgentFailure, InfrastructureFailure, RuntimeFailure, UsageError
from benchflow.models import ChatModel, ModelFailure, Reply


class OutOfRoom(Exception):
    """The conversation is too long for the model and cannot be made any shorter."""


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
    """The model's next reply, added to the conversation. Raises `OutOfRoom` or a failure with its category."""
    while True:
        try:
            reply = await chat.complete(conversation.messages, tools=tools, reasoning_effort=reasoning_effort)
        except ModelFailure as failure:
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
