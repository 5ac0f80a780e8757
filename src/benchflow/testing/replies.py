"""The replies of a scripted model, and the requests that it gets; the same in every dialect.

A reply is a text, a mapping (sent as JSON text), an `Answer`, or one of the ways to fail. Pure: no network
here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

DialectName = Literal["chat", "responses", "messages", "gemini"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model makes. Arguments are a mapping, or a text to send unchanged, for example invalid
    JSON.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None
    """None: numbered by the server."""

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(dict(self.arguments))


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer, as OpenAI counts: the parts are included in their totals."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """The part of the prompt that was read from a cache."""
    reasoning_tokens: int = 0
    """The part of the answer that was reasoning."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer."""

    text: str
    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer: a text, tool calls, or both."""

    content: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str | None = None
    """As chat completions name it (`stop`, `length`, `tool_calls`, `content_filter`), translated for other
    dialects; any other text is sent unchanged. None: `tool_calls` when there are some, else `stop`.
    """
    usage: Usage | None = None
    """None: the words of the prompt and of the answer are counted."""
    delay_sec: float = 0.0
    """How long the server waits before it answers."""
    reasoning: str | None = None
    """What the model thought before it answered."""
    refused: bool = False
    """Whether the content is a refusal."""
    tokens: Sequence[Token] | None = None
    """The tokens of the content, for requests that ask for ids or log-probabilities. None: one for each word."""
    piece: int = 12
    """Characters per streamed piece; small, so that clients must put pieces together."""
    pause_sec: float = 0.0
    """How long the server waits between two streamed events."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that the provider reports."""

    status: int
    message: str = "scripted fault"
    code: str | None = None
    """The `code` of OpenAI's dialects; the others name errors by their status."""
    retry_after_sec: float | None = None
    after: int = 0
    """In a stream: how many events of an answer come before the error, which is then an event itself."""


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer for this long, then the connection closes: tests a client's timeout."""

    seconds: float = 3600.0


CUT: Answer = Answer("cut short before the end of the answer")


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The connection breaks, at once or after some events of a streamed answer."""

    after: int = 0
    answer: Answer = CUT
    hang_sec: float = 0.0
    """How long it stays open after the last event."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Status 200 with a body that is not an answer."""

    body: bytes = b'{"choices": ['
    content_type: str = "application/json"


SpelledReply = Answer | Fault | Silence | Disconnect | Malformed
Reply = str | Mapping[str, Any] | SpelledReply


@dataclass(frozen=True, slots=True)
class Heard:
    """What a request says, read in its dialect."""

    model: str
    stream: bool
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[str, ...]
    prompt: str
    tool_results: tuple[str, ...]
    words: int


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request as it arrived."""

    index: int
    """Counts from 0, over all requests of the server."""
    dialect: DialectName
    path: str
    """With its query."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Mapping[str, Any]
    heard: Heard
    authorized: bool = True

    @property
    def model(self) -> str:
        return self.heard.model

    @property
    def stream(self) -> bool:
        return self.heard.stream

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """The conversation, in the form of the dialect."""
        return list(self.heard.messages)

    @property
    def tools(self) -> list[str]:
        """The names of the tools that are offered, those of the provider included."""
        return list(self.heard.tools)

    @property
    def prompt(self) -> str:
        """The text of the last message of the user."""
        return self.heard.prompt

    @property
    def tool_results(self) -> list[str]:
        """The texts of all results of tools."""
        return list(self.heard.tool_results)


def spelled(reply: Reply) -> SpelledReply:
    """A reply without the short forms; raises `TypeError` for anything that is not a reply."""
    if isinstance(reply, str):
        return Answer(reply)
    if isinstance(reply, Mapping):
        return Answer(json.dumps(dict(reply)))
    if isinstance(reply, Answer | Fault | Silence | Disconnect | Malformed):
        return reply
    raise TypeError(f"a reply is a text, a mapping or one of the reply types, not {type(reply).__name__}")
