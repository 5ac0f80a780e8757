"""Scripted replies as Gemini's `generateContent` and `streamGenerateContent`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from benchflow.testing.dialects import spoken
from benchflow.testing.dialects.scripted_chat import finish_reason
from benchflow.testing.dialects.spoken import Route
from benchflow.testing.replies import Answer, DialectName, Fault, Heard, ModelRequest, Token

_PATH: Final = re.compile(r"/models/[^:/]+:(?P<method>\w+)")
_REASONS: Final = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY"}
_STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_RETRY: Final = "type.googleapis.com/google.rpc.RetryInfo"
_STREAM: Final = "streamGenerateContent"


class Gemini:
    """`/models/MODEL:generateContent`, `:streamGenerateContent` (events with `alt=sse`, else an array) and
    `:countTokens`.
    """

    name: DialectName = "gemini"

    def route(self, path: str) -> Route | None:
        found = _PATH.fullmatch(path)
        if found is None:
            return None
        routes: dict[str, Route] = {"generateContent": "answer", _STREAM: "answer", "countTokens": "count"}
        return routes.get(found["method"])

    def key(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str:
        return headers.get("x-goog-api-key") or query.get("key", "")

    def problem(self, body: Mapping[str, Any]) -> str | None:
        nested = body.get("generateContentRequest")
        return spoken.list_problem(nested if isinstance(nested, Mapping) else body, "contents")

    def hear(self, path: str, body: Mapping[str, Any]) -> Heard:
        model, _, method = urlsplit(path).path.rpartition("/")[2].partition(":")
        nested = body.get("generateContentRequest")
        said = nested if isinstance(nested, Mapping) else body
        contents = spoken.mappings(said.get("contents"))
        texts = [spoken.text_of(content.get("parts")) for content in contents]
        by_user = [text for content, text in zip(contents, texts, strict=True) if content.get("role") != "model"]
        results = _results(contents)
        system = said.get("systemInstruction") or said.get("system_instruction")
        instructions = spoken.text_of(system.get("parts")) if isinstance(system, Mapping) else ""
        return Heard(
            model=unquote(model),
            stream=method == _STREAM,
            messages=contents,
            tools=_tool_names(said.get("tools")),
            prompt=next((text for text in reversed(by_user) if text), ""),
            tool_results=results,
            words=spoken.words([instructions, *texts, *results]),
        )

    def whole(self, answer: Answer, request: ModelRequest) -> Mapping[str, Any]:
        parts = [{"text": answer.reasoning, "thought": True}] if answer.reasoning is not None else []
        parts += [{"text": answer.content}] if answer.content is not None else []
        parts += _calls(answer, request)
        known = spoken.tokens(answer.content or "", answer.tokens) if _wants_logprobs(request) else ()
        return _body(answer, request, parts, known, last=True)

    def events(self, answer: Answer, request: ModelRequest) -> Iterator[bytes]:
        """Tool calls come whole, with the last event, as from Google."""
        bodies = list(_bodies(answer, request))
        for index, body in enumerate(bodies):
            if _as_events(request):
                yield spoken.event(body, end="\r\n")
            else:
                end = "]" if index == len(bodies) - 1 else ""
                yield f"{',' if index else '['}{json.dumps(body)}\r\n{end}".encode()

    def error_event(self, fault: Fault, request: ModelRequest) -> bytes:
        body = self._error(fault)
        if _as_events(request):
            return spoken.event(body, end="\r\n")
        return f"{',' if fault.after else '['}{json.dumps(body)}\r\n]".encode()

    def stream_type(self, request: ModelRequest) -> str:
        return spoken.EVENTS if _as_events(request) else "application/json; charset=UTF-8"

    def error(self, fault: Fault, path: str) -> tuple[Any, Mapping[str, str]]:
        """Google asks for a wait in the body only, and wraps errors of the array form in an array."""
        split = urlsplit(path)
        array = split.path.endswith(_STREAM) and parse_qs(split.query).get("alt") != ["sse"]
        body = self._error(fault)
        return [body] if array else body, {}

    def _error(self, fault: Fault) -> dict[str, Any]:
        status = _STATUSES.get(fault.status) or "UNKNOWN"
        error: dict[str, Any] = {"code": fault.status, "message": fault.message, "status": status}
        if fault.retry_after_sec is not None:
            error["details"] = [{"@type": _RETRY, "retryDelay": f"{fault.retry_after_sec:g}s"}]
        return {"error": error}

    def count(self, request: ModelRequest) -> Mapping[str, Any]:
        return {"totalTokens": request.heard.words}

    def model_list(self, models: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"models": list(models)}

    def model_entry(self, name: str) -> Mapping[str, Any]:
        methods = ["generateContent", "countTokens"]
        return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}


def _as_events(request: ModelRequest) -> bool:
    return parse_qs(urlsplit(request.path).query).get("alt") == ["sse"]


def _wants_logprobs(request: ModelRequest) -> bool:
    settings = request.body.get("generationConfig")
    return isinstance(settings, Mapping) and settings.get("responseLogprobs") is True


def _results(contents: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    parts = [part for content in contents for part in spoken.mappings(content.get("parts"))]
    answered = [part["functionResponse"] for part in parts if isinstance(part.get("functionResponse"), Mapping)]
    return tuple(json.dumps(response.get("response")) for response in answered)


def _tool_names(tools: Any) -> tuple[str, ...]:
    """Declared functions by their names, the provider's own tools by their keys."""
    names: list[str] = []
    for tool in spoken.mappings(tools):
        for key, value in tool.items():
            if key in ("functionDeclarations", "function_declarations"):
                names += [str(function.get("name")) for function in spoken.mappings(value)]
            else:
                names.append(key)
    return tuple(names)


def _calls(answer: Answer, request: ModelRequest) -> list[dict[str, Any]]:
    return [
        {
            "functionCall": {
                "id": spoken.call_id(answer, request, index),
                "name": call.name,
                "args": spoken.parsed(call.arguments_text),
            }
        }
        for index, call in enumerate(answer.tool_calls)
    ]


def _bodies(answer: Answer, request: ModelRequest) -> Iterator[dict[str, Any]]:
    for piece in spoken.pieces(answer.reasoning or "", answer.piece):
        yield _body(answer, request, [{"text": piece, "thought": True}])
    if _wants_logprobs(request):
        for token in spoken.tokens(answer.content or "", answer.tokens):
            yield _body(answer, request, [{"text": token.text}], [token])
    else:
        for piece in spoken.pieces(answer.content or "", answer.piece):
            yield _body(answer, request, [{"text": piece}])
    yield _body(answer, request, _calls(answer, request) or [{"text": ""}], last=True)


def _body(
    answer: Answer,
    request: ModelRequest,
    parts: list[dict[str, Any]],
    known: Sequence[Token] = (),
    *,
    last: bool = False,
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if last:
        reason = "content_filter" if answer.refused and not answer.finish_reason else finish_reason(answer)
        candidate["finishReason"] = _REASONS.get(reason, reason)
    if known:
        chosen = [{"token": token.text, "tokenId": token.id, "logProbability": token.logprob} for token in known]
        candidate["avgLogprobs"] = sum(token.logprob for token in known) / len(known)
        candidate["logprobsResult"] = {"chosenCandidates": chosen}
    head = {"modelVersion": request.model, "responseId": f"response-{request.index}"}
    usage = _usage(answer, request, last=last)
    return {"candidates": [candidate], "usageMetadata": usage, **head}


def _usage(answer: Answer, request: ModelRequest, *, last: bool) -> dict[str, int]:
    """Gemini counts thoughts beside the answer, not as part of it; a stream counts the answer at its end."""
    counted = spoken.usage(answer, request)
    body = {"promptTokenCount": counted.prompt_tokens, "totalTokenCount": counted.prompt_tokens}
    if counted.cached_tokens:
        body["cachedContentTokenCount"] = counted.cached_tokens
    if last:
        body["candidatesTokenCount"] = counted.completion_tokens - counted.reasoning_tokens
        body["totalTokenCount"] += counted.completion_tokens
        if counted.reasoning_tokens:
            body["thoughtsTokenCount"] = counted.reasoning_tokens
    return body
