"""What an arena leaves: its part of a result, `a2a/messages.jsonl` and `a2a/tool_calls.jsonl`, with their readers.

Every message between the assessor and a participant passes an endpoint of the driver, which writes one line when it has
been passed on. Parts of a message that are large lie beside the lines in `a2a/parts/`, named by their digest. Secrets
are removed before anything is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from benchflow.files.redaction import Redactor
from benchflow.record.codec import JsonLines, plain, read, read_lines
from benchflow.record.layout import RolloutFolder

RoleStatus = Literal["played", "unreachable", "crashed", "silent", "broke-protocol", "not-started"]
"""How a participant ended: `crashed` and `silent` (past its limit) during the game, `unreachable` when it was called,
`broke-protocol` with an answer that is not A2A or exceeds a limit, `not-started` if the game did not begin."""
MessageKind = Literal["message", "status", "artifact", "error", "cancel"]
"""`message` and `artifact` are what a peer said; `status` is an update while it works; `error` an answer
of the protocol or the endpoint instead of one."""

LARGE_PART: Final = 4096
"""Bytes from which on a part of a message lies beside the lines."""


@dataclass(frozen=True, slots=True)
class Player:
    """Who plays a role of an arena, as a caller says it."""

    agent: str
    """An agent, or the URL of one that somebody else runs."""
    model: str | None = None

    @property
    def url(self) -> str | None:
        """Where somebody else's agent answers; None for an agent of ours."""
        return self.agent if self.agent.startswith(("http://", "https://")) else None

    def __str__(self) -> str:
        return self.agent if self.model is None else f"{self.agent} {self.model}"


@dataclass(frozen=True, slots=True)
class ArenaRole:
    """One participant."""

    agent: str
    """The agent as it was named, or `url` for somebody else's."""
    model: str | None
    url: str | None
    """Of an agent that somebody else runs."""
    reward: float | None
    """None if the assessor gave it none, or if the game was not scored."""
    status: RoleStatus
    forfeited: bool = False
    """Whether the package counts the way it ended as a loss."""
    messages: int = 0
    """What it was sent and what it said, updates left out."""
    tool_calls: int = 0


@dataclass(frozen=True, slots=True)
class ArenaPart:
    """Who played which role, and how the game ended."""

    roles: Mapping[str, ArenaRole]
    scored_role: str
    """The role whose reward is the reward of the rollout: the one that `--agent` plays."""
    assessor: str
    """The agent that assessed: a name, or `built-in`."""
    winner: str | None
    """A role; None without a winner and if the game was not scored."""
    seed: int | None
    rotation: Mapping[str, str]
    """The agent that played each role, as it was named."""
    messages: int
    """The lines of `a2a/messages.jsonl`."""
    events: int
    """The reward events of the assessor while it worked."""
    tool_calls: int = 0
    """The lines of `a2a/tool_calls.jsonl`."""


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A part of a message: its text or data, or the digest of the file in `a2a/parts/` with the JSON of either."""

    kind: Literal["text", "data", "file"]
    bytes: int
    text: str | None = None
    data: Any = None
    part: str | None = None
    media_type: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaMessage:
    """One message, update or error on the way from one peer to another."""

    seq: int
    """Counts from 1, in the order of passing."""
    time: str
    sender: str
    """A role, or the role of the assessor."""
    receiver: str
    kind: MessageKind
    context: str | None
    message_id: str | None
    parts: tuple[MessagePart, ...]
    latency_ms: float | None
    """Of an answer: since the message that it answers came in."""
    reply_to: int | None = None
    """Of an answer: the number of the message that it answers."""
    task: str | None = None
    state: str | None = None
    """The state of the task with an update, as A2A 1.x names it: `working`, `completed`, …"""
    code: str | None = None
    """Of an error."""
    overhead_ms: float | None = None
    """Time in the endpoint itself: what it took to read, check, pass on and write the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleToolCall:
    """One call of a tool of the environment by a participant."""

    seq: int
    time: str
    role: str
    tool: str
    arguments: Mapping[str, Any]
    ok: bool
    output: str
    """What the participant was shown, shortened."""
    seconds: float


class MessageFile:
    """Appends messages and tool calls to the files of one rollout, which appear with the first."""

    def __init__(self, folder: RolloutFolder, redactor: Redactor) -> None:
        self._folder: Final = folder
        self._redactor: Final = redactor
        self._messages: Final = JsonLines(folder.a2a_messages)
        self._calls: Final = JsonLines(folder.a2a_tool_calls)
        self._known: set[str] = set()
        self.message_count = 0
        self.call_count = 0

    def append(self, *, parts: tuple[MessagePart, ...], **known: Any) -> ArenaMessage:
        """Write one message; the fields are those of `ArenaMessage` but for its number."""
        self.message_count += 1
        kept = tuple(self._kept(part) for part in parts)
        message = ArenaMessage(seq=self.message_count, parts=kept, **known)
        self._made()
        self._messages.append(plain(message))
        return message

    def append_call(self, **known: Any) -> RoleToolCall:
        """Write one tool call; the fields are those of `RoleToolCall` but for its number."""
        self.call_count += 1
        call = RoleToolCall(seq=self.call_count, **{name: self._redactor.data(value) for name, value in known.items()})
        self._made()
        self._calls.append(plain(call))
        return call

    def _made(self) -> None:
        self._folder.a2a.mkdir(parents=True, exist_ok=True)

    def _kept(self, part: MessagePart) -> MessagePart:
        clean = self._redactor.data({"text": part.text, "data": part.data})
        part = replace(part, text=clean["text"], data=clean["data"])
        if part.bytes < LARGE_PART:
            return part
        content = part.text if part.kind == "text" else part.data
        data = json.dumps(content, ensure_ascii=False).encode(errors="replace")
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._known:
            self._folder.a2a_parts.mkdir(parents=True, exist_ok=True)
            (self._folder.a2a_parts / digest).write_bytes(data)
            self._known.add(digest)
        return replace(part, text=None, data=None, part=f"sha256:{digest}")

    def close(self) -> None:
        """Idempotent."""
        self._messages.close()
        self._calls.close()


@dataclass(frozen=True, slots=True)
class MessageParts:
    """The contents of parts, whole."""

    folder: RolloutFolder
    max_bytes: int = field(default=64 << 20, kw_only=True)

    def content(self, part: MessagePart) -> Any:
        """The text or data of a part; `ValueError` if its file is missing, too large or damaged."""
        if part.part is None:
            return part.text if part.kind == "text" else part.data
        digest = part.part.removeprefix("sha256:")
        if len(digest) != 64 or not digest.isalnum():
            raise ValueError(f"{part.part[:80]!r} is not a digest")
        path = self.folder.a2a_parts / digest
        try:
            if path.stat().st_size > self.max_bytes:
                raise ValueError(f"the part {part.part} exceeds {self.max_bytes} bytes")
            data = path.read_bytes()
        except OSError as error:
            raise ValueError(f"the part {part.part} cannot be read: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"the part {part.part} is damaged")
        return json.loads(data)


def read_messages(path: Path) -> Iterator[ArenaMessage]:
    """The messages of a file, one at a time; lines that are torn or not messages are left out. No file: no messages."""
    for line in read_lines(path):
        try:
            yield read(ArenaMessage, line)
        except ValueError:
            continue


def read_tool_calls(path: Path) -> Iterator[RoleToolCall]:
    """The tool calls of a file, read as messages are."""
    for line in read_lines(path):
        try:
            yield read(RoleToolCall, line)
        except ValueError:
            continue
