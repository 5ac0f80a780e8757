"""What peers say to each other, as the record has it: lines of `a2a/messages.jsonl` and events of the trajectory.

Only the driver writes here, from what passed its own endpoints, so no peer can make up what another said.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from benchflow.arena.a2a_types import Part, text_of
from benchflow.record import ArenaMessage, MessageFile, MessagePart, Trajectory
from benchflow.record.arena_record import MessageKind
from benchflow.record.trajectory import timestamp

_SAID: Final = frozenset({"message", "artifact", "error"})
MAX_STATUS: Final = 500
"""Updates of one answer that are written down; further ones are only counted."""


class MessageLog:
    """The messages of one game, numbered in the order of passing."""

    def __init__(self, file: MessageFile, trajectory: Trajectory) -> None:
        self._file: Final = file
        self._events: Final = trajectory.line()
        self.by_role: Final[Counter[str]] = Counter()
        """What each peer was sent and said, updates left out."""
        self.said: Final[list[tuple[str, str, str]]] = []
        """Sender, receiver and text of everything but updates, for the audit; bounded."""
        self._audited = 0

    @property
    def count(self) -> int:
        return self._file.message_count

    def add(
        self, sender: str, receiver: str, parts: tuple[Part, ...], kind: MessageKind = "message", **known: Any
    ) -> ArenaMessage:
        """Write one message; `known` are further fields of `ArenaMessage`."""
        defaults = {"context": None, "message_id": None, "latency_ms": None}
        message = self._file.append(
            parts=tuple(recorded(part) for part in parts),
            time=timestamp(),
            sender=sender,
            receiver=receiver,
            kind=kind,
            **{**defaults, **known},
        )
        if kind in _SAID:
            text = shown(parts)
            for role in (sender, receiver):
                self.by_role[role] += 1
            self._events(
                "a2a_message", role=sender, to=receiver, text=text, kind=kind, message=message.seq, code=message.code
            )
            if self._audited < _MOST_AUDITED:
                self._audited += len(text)
                self.said.append((sender, receiver, text))
        return message


_MOST_AUDITED: Final = 16 << 20


def recorded(part: Part) -> MessagePart:
    """A part as the record has it; of a file only what the message says about it."""
    if part.kind == "text":
        return MessagePart("text", len(part.value.encode(errors="replace")), text=part.value)
    size = len(json.dumps(part.value, ensure_ascii=False, default=str).encode(errors="replace"))
    about = part.value if part.kind == "file" and isinstance(part.value, dict) else {}
    named = {"media_type": about.get("mediaType") or about.get("mimeType"), "name": about.get("filename")}
    return MessagePart(
        part.kind, size, data=part.value, **{key: value for key, value in named.items() if isinstance(value, str)}
    )


def shown(parts: tuple[Part, ...]) -> str:
    """A message as one text: its texts, and data that they do not already say as JSON."""
    text = text_of(parts)
    said = [text] if text else []
    for part in parts:
        if part.kind == "data" and not _says(text, part.value):
            said.append(json.dumps(part.value, ensure_ascii=False))
        elif part.kind == "file":
            said.append("[a file]")
    return "\n".join(said)


def size_of(parts: tuple[Part, ...]) -> int:
    """Bytes of a message."""
    return sum(recorded(part).bytes for part in parts)


def _says(text: str, value: Any) -> bool:
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False
