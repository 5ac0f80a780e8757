"""One call of a judge, through the model client. A judge that fails raises `JudgeFailure`: it never scores.

Keys come from the verifier's own variables first, then from the machine that runs the judge; they are passed with the
call and never put into this process's environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchflow.errors import JudgeFailure
from benchflow.models import ChatModel, ModelFailure, Reply

if TYPE_CHECKING:
    from benchflow.models.gateway import Access

TRIES: Final = 3
MAX_TOKENS: Final = 2048
PAUSE_SEC = 1.0
"""Delay before the second try; doubled before the third."""
_CODES: Final[Mapping[str, str]] = {
    "extra-missing": "judge-not-installed",
    "key-missing": "judge-key-missing",
    "key-refused": "judge-key-refused",
    "model-timeout": "judge-timeout",
}


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A model that acts as a judge."""

    model: str
    variables: Mapping[str, str]
    """Those of the verifier; they take precedence over the machine's."""
    timeout_sec: float = 120.0
    reasoning_effort: str | None = None
    access: Access | None = None
    """Where its calls are recorded and counted."""

    def __repr__(self) -> str:
        return f"JudgeModel({self.model!r})"

    async def ask(self, messages: list[dict[str, str]]) -> Reply:
        """The model's answer; raises `JudgeFailure` after the last try, or at once if a retry cannot help."""
        client = ChatModel(
            self.model,
            self.variables,
            retries=TRIES - 1,
            first_pause_sec=PAUSE_SEC,
            request_timeout_sec=self.timeout_sec,
            access=self.access,
        )
        try:
            reply = await client.complete(
                messages, max_output_tokens=MAX_TOKENS, reasoning_effort=self.reasoning_effort
            )
        except ModelFailure as failure:
            message = str(failure).replace("The model", "The judge", 1)
            raise JudgeFailure(message, code=_CODES.get(failure.code, "judge-unavailable")) from failure
        if not reply.text.strip():
            raise JudgeFailure(f"The judge '{self.model}' gave an empty answer.", code="judge-answer-invalid")
        return reply
