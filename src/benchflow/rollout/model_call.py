"""One question to a model, for simulated users: the same way to providers that judges take."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping

from benchflow.errors import InfrastructureFailure, JudgeFailure

ModelCall = Callable[[str, str], Awaitable[str]]
"""Asks a model (its name, then the prompt) and gives its answer; raises `InfrastructureFailure`."""


def model_caller(machine: Mapping[str, str] | None = None) -> ModelCall:
    """Asks models with the keys among these variables; the process's own when left out."""

    async def ask(model: str, prompt: str) -> str:
        from benchflow.verifier.judging.client import JudgeModel

        variables = os.environ if machine is None else machine
        try:
            answer = await JudgeModel(model, variables).ask([{"role": "user", "content": prompt}])
        except JudgeFailure as error:
            message = f"The user, played by {model}, gave no answer: {error}"
            raise InfrastructureFailure(message, code="user-failed") from error
        return answer.text

    return ask
