"""Scripted replies as Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchflow.testing.dialects import spoken
from benchflow.testing.dialects.scripted_chat import finish_reason
from benchflow.testing.dialects.spoken import Route
from benchflow.testing.replies import Answer, DialectName, Fault, Heard, ModelRequest

_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class Messages:
    """`/v1/messages` and `/v1/messages/count_tokens`."""

    name: DialectName = "messages"

    def route(self, path: str) -> Route | None:
        return {"/messages": "answer", "/messages/count_tokens": "count"}.get(path)  # type: ignore[return-value]

    def key(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str:
        del query
        return headers.get("x-api-key") or spoken.bearer(headers)

    def problem(self, body: Mapping[str, Any]) -> str | None:
        return spoken.model_problem(body) or spoken.list_problem(body, "messages")

    def hear(self, path: str, body: Mapping[str, Any]) -> Heard:
        del path
        messages = spoken.mappings(body.get("messages"))
        by_user = [spoken.text_of(message.get("content")) for message in messages if message.get("role") == "user"]
        blocks = [block for message in messages for block in spoken.mappings(message.get("content"))]
        results = [spoken.text_of(block.get("content")) for block in blocks if block.get("type") == "tool_result"]
        texts = [spoken.text_of(message.get("content")) for message in messages]
        return Heard(
            model=str(body.get("model", "")),
            stream=body.get("stream") is True,
            messages=messages,
            tools=tuple(str(tool.get("name")) for tool in spoken.mappings(body.get("tools"))),
            prompt=next((text for text in reversed(by_user) if text), ""),
            tool_results=tuple(results),
            words=spoken.words([spoken.text_of(body.get("system")), *texts, *results]),
        )

    def whole(self, answer: Answer, request: ModelRequest) -> Mapping[str, Any]:
        content = [block for block, _, _ in _blocks(answer, request)]
        end = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
        return {**_head(request), "content": content, **end, "usage": _usage(answer, request)}

    def events(self, answer: Answer, request: ModelRequest) -> Iterator[bytes]:
        for kind, data in _named(answer, request):
            yield spoken.event({"type": kind, **data}, kind)

    def error_event(self, fault: Fault, request: ModelRequest) -> bytes:
        return spoken.event(self.error(fault, request.path)[0], "error")

    def stream_type(self, request: ModelRequest) -> str:
        del request
        return f"{spoken.EVENTS}; charset=utf-8"

    def error(self, fault: Fault, path: str) -> tuple[Any, Mapping[str, str]]:
        del path
        kind = _KINDS.get(fault.status) or "api_error"
        error = {"type": kind, "message": fault.message}
        return {"type": "error", "error": error, "request_id": None}, spoken.retry_header(fault)

    def count(self, request: ModelRequest) -> Mapping[str, Any]:
        return {"input_tokens": request.heard.words}

    def model_list(self, models: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        names = [model["id"] for model in models]
        return {"data": list(models), "has_more": False, "first_id": names[0], "last_id": names[-1]}

    def model_entry(self, name: str) -> Mapping[str, Any]:
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def _head(request: ModelRequest) -> dict[str, Any]:
    return {"id": f"msg_{request.index}", "type": "message", "role": "assistant", "model": request.model}


def _stop_reason(answer: Answer) -> str:
    reason = "content_filter" if answer.refused and not answer.finish_reason else finish_reason(answer)
    return _REASONS.get(reason, reason)


def _usage(answer: Answer, request: ModelRequest) -> dict[str, int]:
    """Anthropic counts what was read from the cache beside the input, not as part of it."""
    counted = spoken.usage(answer, request)
    return {
        "input_tokens": counted.prompt_tokens - counted.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counted.cached_tokens,
        "output_tokens": counted.completion_tokens,
    }


def _blocks(
    answer: Answer, request: ModelRequest
) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]:
    """Each block as a whole, as it begins in a stream, and the deltas that follow."""
    if answer.reasoning is not None:
        thinking = {"type": "thinking", "thinking": answer.reasoning, "signature": f"signed-{request.index}"}
        deltas: list[dict[str, Any]] = [
            {"type": "thinking_delta", "thinking": piece} for piece in spoken.pieces(answer.reasoning, answer.piece)
        ]
        deltas.append({"type": "signature_delta", "signature": thinking["signature"]})
        yield thinking, {**thinking, "thinking": "", "signature": ""}, deltas
    if answer.content is not None:
        deltas = [{"type": "text_delta", "text": piece} for piece in spoken.pieces(answer.content, answer.piece)]
        yield {"type": "text", "text": answer.content}, {"type": "text", "text": ""}, deltas
    for index, call in enumerate(answer.tool_calls):
        start = {"type": "tool_use", "id": spoken.call_id(answer, request, index, "toolu"), "name": call.name}
        text = call.arguments_text
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in spoken.pieces(text, answer.piece)]
        yield {**start, "input": spoken.parsed(text)}, {**start, "input": {}}, deltas


def _named(answer: Answer, request: ModelRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    usage = _usage(answer, request)
    begun = {**_head(request), "content": [], "stop_reason": None, "stop_sequence": None}
    yield "message_start", {"message": {**begun, "usage": {**usage, "output_tokens": 1}}}
    yield "ping", {}
    for index, (_, start, deltas) in enumerate(_blocks(answer, request)):
        yield "content_block_start", {"index": index, "content_block": start}
        for delta in deltas:
            yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    end = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    yield "message_delta", {"delta": end, "usage": usage}
    yield "message_stop", {}
