"""What peers say to each other over A2A, whatever its version: messages, the events of a task, and failures of a peer.

Events keep the JSON they came from. Numbers stay as written: an SDK on protobuf turns `2` in a data part into `2.0`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from uuid import uuid4

from benchflow.errors import AgentFailure

Version = Literal["1.0", "0.3"]
Speaker = Literal["user", "agent"]
State = Literal[
    "submitted",
    "working",
    "input-required",
    "auth-required",
    "completed",
    "failed",
    "canceled",
    "rejected",
    "unknown",
]
TERMINAL: Final[frozenset[State]] = frozenset({"completed", "failed", "canceled", "rejected"})
INTERRUPTED: Final[frozenset[State]] = frozenset({"input-required", "auth-required"})
"""States in which a task waits for its client: its stream ends."""
PeerProblem = Literal["unreachable", "silent", "protocol", "flood", "refused"]


class PeerFailure(AgentFailure):
    """A peer that cannot be reached, is silent past its limit, breaks the protocol, sends too much, or refuses.

    Its category is that of a participant; a driver that talks to an assessor attributes it to the verifier.
    """

    def __init__(self, problem: PeerProblem, message: str) -> None:
        super().__init__(message, code=f"peer-{problem}")
        self.problem: Final = problem


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a message or an artifact: a text, a JSON value, or a file that is passed on as it is."""

    kind: Literal["text", "data", "file"]
    value: Any

    @classmethod
    def of_text(cls, text: str) -> Part:
        return cls("text", text)

    @classmethod
    def of_data(cls, data: Any) -> Part:
        return cls("data", data)


def text_of(parts: tuple[Part, ...]) -> str:
    """The text parts, one per line."""
    return "\n".join(part.value for part in parts if part.kind == "text")


def data_of(parts: tuple[Part, ...]) -> tuple[Any, ...]:
    """The values of the data parts."""
    return tuple(part.value for part in parts if part.kind == "data")


def parts_of(text: str | None = None, data: Any = None) -> tuple[Part, ...]:
    """A text part and a data part, as far as given."""
    return (() if text is None else (Part.of_text(text),)) + (() if data is None else (Part.of_data(data),))


def json_parts(value: Any) -> tuple[Part, Part]:
    """A JSON value as a data part for programs and a text part that keeps integers and the order of keys."""
    return Part.of_data(value), Part.of_text(json.dumps(value, ensure_ascii=False))


def new_id() -> str:
    return str(uuid4())


@dataclass(frozen=True, slots=True)
class Message:
    """One message: of the client (`user`) or of the peer that answers (`agent`)."""

    parts: tuple[Part, ...]
    role: Speaker = "user"
    message_id: str = field(default_factory=new_id)
    context_id: str | None = None
    task_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return text_of(self.parts)

    @property
    def data(self) -> tuple[Any, ...]:
        return data_of(self.parts)


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """A whole answer without a task."""

    message: Message
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def context_id(self) -> str | None:
        return self.message.context_id


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """A task is in a state now, perhaps with a message."""

    task_id: str
    context_id: str
    state: State
    message: Message | None = None
    time: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL


@dataclass(frozen=True, slots=True)
class ArtifactEvent:
    """A task produced something, or more of it (`append`)."""

    task_id: str
    context_id: str
    artifact_id: str
    parts: tuple[Part, ...]
    name: str | None = None
    append: bool = False
    last: bool = True
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def text(self) -> str:
        return text_of(self.parts)

    @property
    def data(self) -> tuple[Any, ...]:
        return data_of(self.parts)


Event = MessageEvent | StatusEvent | ArtifactEvent


@dataclass(frozen=True, slots=True)
class Reply:
    """How an executor ends its answer: with parts, and the state of the task if there is one."""

    parts: tuple[Part, ...] = ()
    state: State = "completed"
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def text(cls, text: str, state: State = "completed") -> Reply:
        return cls((Part.of_text(text),), state)
