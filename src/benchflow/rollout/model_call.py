"""One question to a model, for simulated users."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from benchflow.errors import InfrastructureFailure

MAX_TOKENS: Final = 512

ModelCall = Callable[[str, str], Awaitable[str]]
"""Asks a model (its name, then the prompt) and gives its answer; raises `InfrastructureFailure`."""


def model_caller(machine: Mapping[str, str] | None = None) -> ModelCall:
    """Asks models with the keys among these variables; the process's own when left out."""

    async def ask(model: str, prompt: str) -> str:
        from benchflow.models import ChatModel, ModelFailure

        messages = [{"role": "user", "content": prompt}]
        try:
            reply = await ChatModel(model, machine).complete(messages, max_output_tokens=MAX_TOKENS)
        except ModelFailure as error:
            raise InfrastructureFailure(f"The simulated user failed: {error}", code=error.code) from error
        return reply.text

    return ask
