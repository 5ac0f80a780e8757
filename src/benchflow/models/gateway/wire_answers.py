"""What an answer says of itself, in each dialect: tokens, why it ended, whether it is whole, whether it is an error.

Pure: bytes in, an `Answer` out. A stream is parsed once, at its end, and all of its events together.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchflow.record.model_calls import Dialect

_AT_ONCE: Final = 4 << 20
"""Bytes of a stream that are parsed together, which is much faster than one event at a time, and takes more memory."""
_LAST: Final = 6
"""Of a larger stream: how many events from its end are kept for tokens and the reason of its end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of an answer with status 200."""

    usage: Mapping[str, float] = field(default_factory=dict)
    """`input_tokens`, `output_tokens`, `cached_tokens`, as far as the server said."""
    finish_reason: str | None = None
    whole: bool = True
    """False where a stream ended before its end, or a body is not the JSON object that was expected."""
    error: str | None = None
    """The message of an error that came instead of an answer, or in the middle of it."""
    error_code: str | None = None
    model: str | None = None
    """The model that answered, as the server names it."""
    spoken: int = 0
    """Bytes of text that the model wrote, for an estimate; only where the server does not count them."""


def read_answer(dialect: Dialect, body: bytes, *, stream: bool) -> Answer:
    """What the whole body of an answer says."""
    if not stream:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return Answer(whole=False, error="the answer is not valid JSON", error_code="bad-answer")
        if dialect == "gemini-stream" and isinstance(value, list):  # without alt=sse a stream is one JSON list
            return _merged(dialect, [item for item in value if isinstance(item, dict)], done=True)
        if not isinstance(value, dict):
            return Answer(whole=False, error="the answer is not a JSON object", error_code="bad-answer")
        return _merged(dialect, [value], done=True)
    return _merged(dialect, _stream_values(body), done=b"[DONE]" in body[-4096:])


def is_first_error(chunk: bytes) -> bool:
    """Whether a stream begins with an error, as far as its first bytes tell."""
    head = chunk.lstrip()[:200].replace(b" ", b"")
    return head.startswith((b"event:error", b'data:{"error"', b'data:{"type":"error"'))


def events(body: bytes) -> Iterator[bytes]:
    """The data of every server-sent event."""
    return (data for block in body.split(_gap(body)) if (data := _data(block)))


def _gap(body: bytes) -> bytes:
    """What stands between two events."""
    return b"\r\n\r\n" if b"\r\n\r\n" in body[: 1 << 16] else b"\n\n"


def _data(block: bytes) -> bytes:
    found = [line[5:].strip() for line in block.splitlines() if line.startswith(b"data:")]
    data = b"\n".join(found)
    return data if data != b"[DONE]" else b""


def _stream_values(body: bytes) -> list[dict[str, Any]]:
    """What the events of a stream say; in place of one that is not JSON stands an error."""
    if len(body) > _AT_ONCE:
        return _values_that_matter(map(_value, events(body)))
    found = list(events(body))
    try:
        values = json.loads(b"[%s]" % b",".join(found))
    except (ValueError, RecursionError):
        values = []
    if len(values) != len(found):  # one is not JSON, or two of them only together
        values = [_value(data) for data in found]
    return [value for value in values if isinstance(value, dict)]


def _value(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return {"error": {"message": "an event is not valid JSON", "code": "bad-answer"}}


def _values_that_matter(values: Iterator[Any]) -> list[dict[str, Any]]:
    """The first event, which may name the model and count the input, the last ones, and the first error."""
    first: list[dict[str, Any]] = []
    last: deque[dict[str, Any]] = deque(maxlen=_LAST)
    for value in values:
        if isinstance(value, dict):
            if not first or _error(value) is not None:
                first.append(value)
            last.append(value)
            if len(first) > _LAST:
                break
    return [*first, *last]


def _merged(dialect: Dialect, values: list[dict[str, Any]], *, done: bool) -> Answer:
    """`done`: the answer says itself that it is whole, by an end mark or as one JSON value."""
    error = next((found for value in values if (found := _error(value)) is not None), None)
    usage = _usage(dialect, values)
    spoken = 0 if "output_tokens" in usage else _spoken(values)
    if error is not None:
        return Answer(usage, whole=False, error=error[0], error_code=error[1], spoken=spoken)
    finish = next((reason for value in reversed(values) if (reason := _finish(dialect, value))), None)
    model = next((name for value in values if (name := _model(value))), None)
    whole = bool(values) and (finish is not None or done)
    return Answer(usage, finish, whole=whole, model=model, spoken=spoken)


_SPOKEN: Final = frozenset(
    {"content", "text", "delta", "arguments", "input", "args", "partial_json", "thinking", "reasoning", "refusal"}
    | {"reasoning_content", "summary", "message", "choices", "candidates", "parts", "output", "tool_calls", "function"}
    | {"functionCall", "content_block", "name", "response"}
)
"""Keys below which models of all dialects write."""


def _spoken(values: list[dict[str, Any]]) -> int:
    """The size of what was written. A stream of responses repeats at its end what its deltas said."""
    deltas = [value for value in values if str(value.get("type", "")).endswith(".delta")]
    return sum(map(_size, deltas or values))


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    if isinstance(value, list):
        return sum(map(_size, value))
    if isinstance(value, dict):
        return sum(_size(item) for key, item in value.items() if key in _SPOKEN)
    return 0


def _error(value: Mapping[str, Any]) -> tuple[str, str] | None:
    """The error that an event or a body is: message and the server's own code."""
    found = value.get("error")
    if value.get("type") == "response.failed":
        response = value.get("response")
        found = response.get("error") if isinstance(response, dict) else None
        found = found or {"message": "the response failed"}
    elif value.get("type") == "error" and not found:
        found = value
    if not found:
        return None
    if not isinstance(found, dict):
        return str(found)[:500], "error"
    code = found.get("code") or found.get("type") or found.get("status") or "error"
    return str(found.get("message") or code)[:500], str(code)


def _finish(dialect: Dialect, value: Mapping[str, Any]) -> str | None:
    match dialect:
        case "openai-chat" | "openai-completions" | "litellm":
            return _text(_first(value.get("choices")).get("finish_reason"))
        case "openai-responses":
            response = value.get("response") if isinstance(value.get("response"), dict) else value
            status = response.get("status") if isinstance(response, dict) else None
            return _text(status) if status not in (None, "in_progress", "queued") else None
        case "anthropic-messages":
            delta = value.get("delta") if value.get("type") == "message_delta" else value
            return _text(delta.get("stop_reason")) if isinstance(delta, dict) else None
        case "gemini-generate" | "gemini-stream":
            feedback = value.get("promptFeedback")
            blocked = feedback.get("blockReason") if isinstance(feedback, dict) else None
            return _text(_first(value.get("candidates")).get("finishReason")) or _text(blocked)
        case _:
            return None


def _usage(dialect: Dialect, values: list[dict[str, Any]]) -> dict[str, float]:
    """The tokens; of several counts of one call the largest is the last."""
    known: dict[str, float] = {}
    for value in values:
        for name, number in _counts(dialect, value).items():
            known[name] = max(known.get(name, 0), number)
    return known


def _counts(dialect: Dialect, value: Mapping[str, Any]) -> dict[str, float]:
    if dialect.startswith("gemini"):
        found = value.get("usageMetadata")
        return _gemini_counts(found) if isinstance(found, dict) else {}
    found = value.get("usage")
    for holder in ("response", "message"):
        inner = value.get(holder)
        if found is None and isinstance(inner, dict):
            found = inner.get("usage")
    if not isinstance(found, dict):
        return {}
    return _anthropic_counts(found) if dialect.startswith("anthropic") else _openai_counts(found)


def _openai_counts(found: Mapping[str, Any]) -> dict[str, float]:
    details = found.get("prompt_tokens_details") or found.get("input_tokens_details")
    return _numbers(
        input_tokens=found.get("prompt_tokens", found.get("input_tokens")),
        output_tokens=found.get("completion_tokens", found.get("output_tokens")),
        cached_tokens=details.get("cached_tokens") if isinstance(details, dict) else None,
    )


def _anthropic_counts(found: Mapping[str, Any]) -> dict[str, float]:
    """Anthropic counts cached input apart; here, as elsewhere, `input_tokens` includes it."""
    plain, cached, written = (
        found.get(name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    parts = [part for part in (plain, cached, written) if isinstance(part, int)]
    return _numbers(
        input_tokens=sum(parts) if parts else None,
        output_tokens=found.get("output_tokens"),
        cached_tokens=cached,
        cache_write_tokens=written,
    )


def _gemini_counts(found: Mapping[str, Any]) -> dict[str, float]:
    spoken = [found.get(name) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    counted = [part for part in spoken if isinstance(part, int)]
    return _numbers(
        input_tokens=found.get("promptTokenCount"),
        output_tokens=sum(counted) if counted else None,
        cached_tokens=found.get("cachedContentTokenCount"),
    )


def _numbers(**found: Any) -> dict[str, float]:
    """What is a count; anything else a server may say is left out."""
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40
    }


def _first(value: Any) -> Mapping[str, Any]:
    return value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}


def _text(value: Any) -> str | None:
    return value[:100] if isinstance(value, str) and value else None


def _model(value: Mapping[str, Any]) -> str | None:
    for holder in (value, value.get("message"), value.get("response")):
        if isinstance(holder, dict):
            found = _text(holder.get("model")) or _text(holder.get("modelVersion"))
            if found:
                return found
    return None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one answer, as far as a server of chat completions gave them."""

    prompt_ids: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


def read_tokens(dialect: Dialect, body: bytes, *, stream: bool) -> Tokens:
    """Token ids and log-probabilities of the first choice; empty where there are none."""
    if dialect not in ("openai-chat", "openai-completions"):
        return Tokens()
    prompt: list[int] = []
    ids: list[int] = []
    logprobs: list[float] = []
    for value in _values(body, stream=stream):
        choice = _first(value.get("choices"))
        prompt = prompt or _integers(value.get("prompt_token_ids")) or _integers(choice.get("prompt_token_ids"))
        ids += _integers(choice.get("token_ids"))
        given = choice.get("logprobs")
        content = given.get("content") if isinstance(given, dict) else None
        found = [item.get("logprob") for item in content or () if isinstance(item, dict)]
        logprobs += [float(item) for item in found if isinstance(item, int | float)]
    return Tokens(tuple(prompt), tuple(ids), tuple(logprobs))


def _values(body: bytes, *, stream: bool) -> Iterator[dict[str, Any]]:
    for data in events(body) if stream else (body,):
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _integers(value: Any) -> list[int]:
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []
