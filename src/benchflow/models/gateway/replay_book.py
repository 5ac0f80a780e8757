"""The calls of an earlier rollout as answers for another one, byte for byte, so that no model is needed.

`strict`: a request is answered if the same role made the same request then; equal requests are answered in their order,
and anything else is an error. `loose`: the answer is that of the same position among the calls of the role in the
dialect; after the last one there is an error. What differs from run to run by itself does not count as a difference:
ids of sessions and users, cache keys, and what Codex draws for messages and writes above the output of a command.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from benchflow.errors import UsageError
from benchflow.record.layout import RolloutFolder
from benchflow.record.model_calls import CallParts, ModelCall, read_model_calls

ReplayMode = Literal["strict", "loose"]
_BY_CHANCE: Final = frozenset(
    {"metadata", "user", "prompt_cache_key", "safety_identifier", "client_metadata", "session_id"}
)
"""Keys of a request whose values differ from run to run by themselves."""
_OF_CODEX: Final = re.compile(
    r"(?<=Chunk ID: )[0-9a-f]+|(?<=Wall time: )[0-9.]+(?= seconds)"  # above the output of every command
    r'|(?<="id":")[a-z]+_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?=")'  # of items that no server has named
)
"""What Codex draws anew in every run, in a request without spaces between its parts."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One answer of the record."""

    call: ModelCall
    parts: CallParts

    @property
    def status(self) -> int:
        return self.call.status or 200

    @property
    def content_type(self) -> str:
        found = self.call.answer.content_type if self.call.answer is not None else None
        return found or "application/json"

    def body(self) -> bytes:
        """`ValueError` if the record is damaged."""
        return self.parts.answer(self.call)


@dataclass(slots=True)
class ReplayBook:
    """The answers of one rollout, each given once. A rollout that replays needs a book of its own: `fresh`."""

    path: Path
    mode: ReplayMode = "strict"
    providers: set[str] = field(default_factory=set)
    """Who was asked."""
    _left: dict[tuple[str, ...], deque[Replayed]] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: Path, mode: ReplayMode = "strict") -> ReplayBook:
        """The book of a rollout's folder; a `UsageError` if it has no calls."""
        book = cls(path, mode)
        folder = RolloutFolder(path)
        parts = CallParts(folder)
        found = False
        for call in read_model_calls(folder.model_calls):
            if call.answer is None or call.status is None or call.outcome not in ("answered", "failed"):
                continue
            found = True
            try:
                key = book._key(call.place.role, call.dialect, call.endpoint, parts.request(call))
            except ValueError as error:
                raise UsageError(f"{folder.model_calls}: call {call.seq}: {error}.", code="replay-damaged") from error
            book._left.setdefault(key, deque()).append(Replayed(call, parts))
            book.providers.add(call.provider)
        if not found:
            raise UsageError(f"{path} has no answered model calls to replay.", code="replay-empty")
        return book

    @property
    def name(self) -> str:
        """What is replayed, for the settings of a rollout."""
        return f"{self.path.name} {self.mode}"

    def fresh(self) -> ReplayBook:
        """The same book with all of its answers."""
        left = {key: deque(answers) for key, answers in self._left.items()}
        return ReplayBook(self.path, self.mode, self.providers, left)

    def take(self, role: str, dialect: str, endpoint: str, request: Any) -> Replayed | None:
        """The answer to a request, which is used up; None if there is none."""
        answers = self._left.get(self._key(role, dialect, endpoint, request))
        return answers.popleft() if answers else None

    def _key(self, role: str, dialect: str, endpoint: str, request: Any) -> tuple[str, ...]:
        if self.mode == "loose":
            return (role, dialect)
        return (role, dialect, endpoint, request_digest(request))


def request_digest(request: Any) -> str:
    """The digest of what a request asks for, without what differs by chance."""
    if isinstance(request, Mapping):
        request = {key: value for key, value in request.items() if key not in _BY_CHANCE}
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    text = _OF_CODEX.sub("", text)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
