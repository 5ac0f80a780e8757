"""The replies of a scripted model, and their form in the chat-completions protocol.

A reply is a text, a mapping (sent as JSON text), an `Answer`, or one of the ways to fail. Pure: no network
here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_PIECE: Final = 12
"""Characters per streamed piece; small, so that clients must put pieces together."""


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
    """Token counts of one answer."""

    prompt_tokens: int
    completion_tokens: int

    def to_dict(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer: a text, tool calls, or both."""

    content: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str | None = None
    """None: `tool_calls` when there are some, else `stop`."""
    usage: Usage | None = None
    """None: the words of the prompt and of the answer are counted."""
    delay_sec: float = 0.0
    """How long the server waits before it answers."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that the provider reports."""

    status: int
    message: str = "scripted fault"
    code: str | None = None
    retry_after_sec: float | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer for this long, then the connection closes: tests a client's timeout."""

    seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The connection breaks, at once or after some pieces of a streamed answer."""

    after: int = 0
    answer: Answer = Answer("cut short before the end of the answer")


@dataclass(frozen=True, slots=True)
class Malformed:
    """Status 200 with a body that is not a completion."""

    body: bytes = b'{"choices": ['
    content_type: str = "application/json"


SpelledReply = Answer | Fault | Silence | Disconnect | Malformed
Reply = str | Mapping[str, Any] | SpelledReply


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request as it arrived."""

    index: int
    """Counts from 0, over all requests of the server."""
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Mapping[str, Any]
    authorized: bool = True

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body.get("messages", ()))

    @property
    def tools(self) -> list[str]:
        """The names of the tools that are offered."""
        return [tool["function"]["name"] for tool in self.body.get("tools") or () if "function" in tool]

    @property
    def stream(self) -> bool:
        return self.body.get("stream") is True

    @property
    def prompt(self) -> str:
        """The text of the last message of the user."""
        said = [message for message in self.messages if message.get("role") == "user"]
        return message_text(said[-1]) if said else ""


def message_text(message: Mapping[str, Any]) -> str:
    """The text of a message, whether it is one string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str))


def spelled(reply: Reply) -> SpelledReply:
    """A reply without the short forms; raises `TypeError` for anything that is not a reply."""
    if isinstance(reply, str):
        return Answer(reply)
    if isinstance(reply, Mapping):
        return Answer(json.dumps(dict(reply)))
    if isinstance(reply, Answer | Fault | Silence | Disconnect | Malformed):
        return reply
    raise TypeError(f"a reply is a text, a mapping or one of the reply types, not {type(reply).__name__}")


def completion(answer: Answer, request: ModelRequest) -> dict[str, Any]:
    """The body of a whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.tool_calls:
        message["tool_calls"] = [_call(call, request, index) for index, call in enumerate(answer.tool_calls)]
    choices = [
        {"index": index, "message": message, "finish_reason": _finish_reason(answer), "logprobs": None}
        for index in range(_choices(request))
    ]
    usage = (answer.usage or _counted(answer, request)).to_dict()
    return {**_head(request, "chat.completion"), "choices": choices, "usage": usage}


def chunks(answer: Answer, request: ModelRequest) -> Iterator[dict[str, Any]]:
    """The bodies of a streamed answer, in order; usage comes last, if requested."""
    head = _head(request, "chat.completion.chunk")
    for choice in range(_choices(request)):
        for delta in _deltas(answer, request):
            yield {**head, "choices": [{"index": choice, "delta": delta, "finish_reason": None}]}
        yield {**head, "choices": [{"index": choice, "delta": {}, "finish_reason": _finish_reason(answer)}]}
    if (request.body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": (answer.usage or _counted(answer, request)).to_dict()}


def error_body(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """An error as providers report it."""
    kind = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}.get(status)
    kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _head(request: ModelRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{request.index}", "object": kind, "created": 0, "model": request.model}


def _choices(request: ModelRequest) -> int:
    wanted = request.body.get("n") or 1
    return wanted if isinstance(wanted, int) and 1 <= wanted <= 16 else 1


def _finish_reason(answer: Answer) -> str:
    return answer.finish_reason or ("tool_calls" if answer.tool_calls else "stop")


def _call(call: ToolCall, request: ModelRequest, index: int) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments_text}
    return {"id": call.id or f"call_{request.index}_{index}", "type": "function", "function": function}


def _deltas(answer: Answer, request: ModelRequest) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if answer.content is not None else None}
    for piece in _pieces(answer.content or ""):
        yield {"content": piece}
    for index, call in enumerate(answer.tool_calls):
        whole = _call(call, request, index)
        start = {**whole, "function": {"name": call.name, "arguments": ""}}
        yield {"tool_calls": [{"index": index, **start}]}
        for piece in _pieces(call.arguments_text):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE]


def _counted(answer: Answer, request: ModelRequest) -> Usage:
    said = " ".join([answer.content or "", *(call.arguments_text for call in answer.tool_calls)])
    heard = " ".join(message_text(message) for message in request.messages)
    return Usage(len(heard.split()), len(said.split()))
