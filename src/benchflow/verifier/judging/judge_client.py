"""One call of a judge, through the model client. A judge that fails raises `JudgeFailure`: it never scores.

Keys come from the verifier's own variables first, then from the machine that runs the judge; they are passed with the
call and never put into this process's environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchflow.errors import JudgeFailure
from benchflow.models import ChatModel, ModelFailure, Reply
from benchflow.verifier.judging.deliverables import MAX_TOTAL_CHARS, Deliverable, within

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
_TOO_MUCH: Final = ("context-overflow", "request-refused")
"""What the length of the work can be the reason of."""
_LEAST_CHARS: Final = 4_000
Messages = list[dict[str, str]]


@dataclass(slots=True)
class Room:
    """How much of the work a judge is shown at once."""

    chars: int = MAX_TOTAL_CHARS


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

    async def ask(self, messages: Messages) -> Reply:
        """The model's answer; raises `JudgeFailure` after the last try, or at once if a retry cannot help."""
        try:
            reply = await self._reply(messages)
        except ModelFailure as failure:
            raise _failed(failure) from failure
        if not reply.text.strip():
            raise JudgeFailure(f"The judge '{self.model}' gave an empty answer.", code="judge-answer-invalid")
        return reply

    async def ask_about(
        self, files: Sequence[Deliverable], prompt: Callable[[list[Deliverable]], Messages], room: Room
    ) -> tuple[Messages, Reply]:
        """The question and its answer, about as much of the files as the model takes: it is asked again with half of it
        for as long as it refuses a question that is mostly the work. Too much work is no way out of being judged.

        `room` remembers how much that was. Raises `JudgeFailure`, like `ask`.
        """
        while True:
            shown = within(files, room.chars)
            messages = prompt(shown)
            try:
                return messages, await self.ask(messages)
            except JudgeFailure as failure:
                cause = failure.__cause__
                smaller = min(room.chars, sum(len(item.name) + len(item.text) for item in shown)) // 2
                if not (isinstance(cause, ModelFailure) and cause.code in _TOO_MUCH) or smaller < _LEAST_CHARS:
                    raise
                room.chars = smaller

    async def _reply(self, messages: Messages) -> Reply:
        client = ChatModel(
            self.model,
            self.variables,
            retries=TRIES - 1,
            first_pause_sec=PAUSE_SEC,
            request_timeout_sec=self.timeout_sec,
            access=self.access,
        )
        return await client.complete(messages, max_output_tokens=MAX_TOKENS, reasoning_effort=self.reasoning_effort)


def _failed(failure: ModelFailure) -> JudgeFailure:
    message = str(failure).replace("The model", "The judge", 1)
    return JudgeFailure(message, code=_CODES.get(failure.code, "judge-unavailable"))
