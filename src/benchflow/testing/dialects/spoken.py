"""What every dialect of the model server does, and the parts that they share. Pure: requests in, bytes out."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from benchflow.testing.replies import Answer, DialectName, Fault, Heard, ModelRequest, Token, Usage

Route = Literal["answer", "count"]
EVENTS: Final = "text/event-stream"
_TOKEN: Final = re.compile(r"\s*\S+|\s+")
_VOCABULARY: Final = 100_000


class Dialect(Protocol):
    """How one kind of provider reads requests and writes answers."""

    @property
    def name(self) -> DialectName: ...

    def route(self, path: str) -> Route | None:
        """What a path asks for: an answer or a count of tokens; None: it is not of this dialect."""

    def key(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str:
        """The API key of a request, or an empty text."""

    def problem(self, body: Mapping[str, Any]) -> str | None:
        """Why a body is not a request of this dialect."""

    def hear(self, path: str, body: Mapping[str, Any]) -> Heard: ...

    def whole(self, answer: Answer, request: ModelRequest) -> Mapping[str, Any]:
        """The body of an answer that is not streamed."""

    def events(self, answer: Answer, request: ModelRequest) -> Iterator[bytes]:
        """A streamed answer, one event at a time."""

    def error_event(self, fault: Fault, request: ModelRequest) -> bytes:
        """An error in the middle of a stream."""

    def stream_type(self, request: ModelRequest) -> str:
        """The content type of a stream."""

    def error(self, fault: Fault, path: str) -> tuple[Any, Mapping[str, str]]:
        """An error as the provider reports it: its body and headers."""

    def count(self, request: ModelRequest) -> Mapping[str, Any]:
        """The body of a count of tokens."""

    def model_list(self, models: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The body of a list of models."""

    def model_entry(self, name: str) -> Mapping[str, Any]: ...


def event(data: Mapping[str, Any], name: str | None = None, end: str = "\n") -> bytes:
    """One server-sent event."""
    head = f"event: {name}{end}" if name else ""
    return f"{head}data: {json.dumps(data)}{end}{end}".encode()


def pieces(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), max(1, size)):
        yield text[start : start + max(1, size)]


def bearer(headers: Mapping[str, str]) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def retry_header(fault: Fault) -> dict[str, str]:
    return {} if fault.retry_after_sec is None else {"Retry-After": f"{fault.retry_after_sec:g}"}


def said(answer: Answer) -> str:
    parts = [answer.reasoning or "", answer.content or "", *(call.arguments_text for call in answer.tool_calls)]
    return " ".join(parts)


def usage(answer: Answer, request: ModelRequest) -> Usage:
    """The usage that the script states, or the number of words."""
    counted = Usage(
        request.heard.words, len(said(answer).split()), reasoning_tokens=len((answer.reasoning or "").split())
    )
    return answer.usage or counted


def tokens(text: str, given: Sequence[Token] | None = None) -> tuple[Token, ...]:
    """The tokens of a text: those of the script, or one for each word, with an id that depends on it alone."""
    if given is not None:
        return tuple(given)
    return tuple(Token(word, zlib.crc32(word.encode()) % _VOCABULARY, -len(word) / 16) for word in _TOKEN.findall(text))


def text_of(content: Any) -> str:
    """The text of a content, whether it is one string, a list of parts, or something else."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str))


def mappings(value: Any) -> tuple[Mapping[str, Any], ...]:
    """The mappings of a list; nothing for anything else."""
    return tuple(item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()


def words(texts: Iterable[str]) -> int:
    return sum(len(text.split()) for text in texts)


def call_id(answer: Answer, request: ModelRequest, index: int, prefix: str = "call") -> str:
    return answer.tool_calls[index].id or f"{prefix}_{request.index}_{index}"


def parsed(arguments: str) -> Any:
    """Arguments for dialects that send them as JSON; a text that is not JSON stays a text."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def list_problem(body: Mapping[str, Any], key: str) -> str | None:
    """Why a body has no list of objects at a key."""
    found = body.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(item, dict) for item in found):
        return f"{key} must be a list of at least one object"
    return None


def model_problem(body: Mapping[str, Any]) -> str | None:
    return None if isinstance(body.get("model"), str) else "model must be a string"
