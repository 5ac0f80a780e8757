"""Scripted replies as OpenAI's chat completions, with the token ids of vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from benchflow.testing.dialects import spoken
from benchflow.testing.dialects.spoken import Route
from benchflow.testing.replies import Answer, DialectName, Fault, Heard, ModelRequest, Token

DONE: Final = b"data: [DONE]\n\n"
_KINDS: Final = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class OpenAI:
    """What the two dialects of OpenAI share: keys, errors, models."""

    def key(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str:
        del query
        return spoken.bearer(headers)

    def stream_type(self, request: ModelRequest) -> str:
        del request
        return spoken.EVENTS

    def error(self, fault: Fault, path: str) -> tuple[Any, Mapping[str, str]]:
        del path
        kind = _KINDS.get(fault.status) or ("server_error" if fault.status >= 500 else "invalid_request_error")
        error = {"message": fault.message, "type": kind, "param": None, "code": fault.code}
        return {"error": error}, spoken.retry_header(fault)

    def model_list(self, models: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"object": "list", "data": list(models)}

    def model_entry(self, name: str) -> Mapping[str, Any]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "test"}


class Chat(OpenAI):
    """`/chat/completions`."""

    name: DialectName = "chat"

    def route(self, path: str) -> Route | None:
        return "answer" if path == "/chat/completions" else None

    def problem(self, body: Mapping[str, Any]) -> str | None:
        return spoken.model_problem(body) or spoken.list_problem(body, "messages")

    def hear(self, path: str, body: Mapping[str, Any]) -> Heard:
        del path
        messages = spoken.mappings(body.get("messages"))
        by_user = [message for message in messages if message.get("role") == "user"]
        results = [message for message in messages if message.get("role") == "tool"]
        return Heard(
            model=str(body.get("model", "")),
            stream=body.get("stream") is True,
            messages=messages,
            tools=tuple(filter(None, map(_tool_name, spoken.mappings(body.get("tools"))))),
            prompt=spoken.text_of(by_user[-1].get("content")) if by_user else "",
            tool_results=tuple(spoken.text_of(message.get("content")) for message in results),
            words=spoken.words(spoken.text_of(message.get("content")) for message in messages),
        )

    def whole(self, answer: Answer, request: ModelRequest) -> Mapping[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.refused:
            message |= {"content": None, "refusal": answer.content}
        if answer.reasoning is not None:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [_call(answer, request, index) for index in range(len(answer.tool_calls))]
        known = _all_tokens(answer)
        choice: dict[str, Any] = {"message": message, "finish_reason": finish_reason(answer), "logprobs": None}
        if request.body.get("logprobs") is True:
            choice["logprobs"] = _logprobs(spoken.tokens(answer.content or "", answer.tokens))
        body = {**_head(request, "chat.completion"), "usage": _usage(answer, request)}
        if _wants_ids(request):
            choice["token_ids"] = [token.id for token in known]
            body["prompt_token_ids"] = _prompt_ids(request)
        return {**body, "choices": [{"index": index, **choice} for index in range(_choices(request))]}

    def events(self, answer: Answer, request: ModelRequest) -> Iterator[bytes]:
        head = _head(request, "chat.completion.chunk")
        first: dict[str, Any] = {"prompt_token_ids": _prompt_ids(request)} if _wants_ids(request) else {}
        for index in range(_choices(request)):
            for choice in _deltas(answer, request):
                yield spoken.event({**head, **first, "choices": [{"index": index, **choice, "finish_reason": None}]})
                first = {}
            end = {"index": index, "delta": {}, "finish_reason": finish_reason(answer)}
            yield spoken.event({**head, "choices": [end]})
        if (request.body.get("stream_options") or {}).get("include_usage"):
            yield spoken.event({**head, "choices": [], "usage": _usage(answer, request)})
        yield DONE

    def error_event(self, fault: Fault, request: ModelRequest) -> bytes:
        return spoken.event(self.error(fault, request.path)[0])

    def count(self, request: ModelRequest) -> Mapping[str, Any]:
        raise NotImplementedError("chat completions count no tokens")


def finish_reason(answer: Answer) -> str:
    return answer.finish_reason or ("tool_calls" if answer.tool_calls else "stop")


def logprob(token: Token) -> dict[str, Any]:
    """A token as both dialects of OpenAI write it."""
    return {
        "token": token.text,
        "bytes": list(token.text.encode()),
        "logprob": token.logprob,
        "top_logprobs": [],
    }


def _tool_name(tool: Mapping[str, Any]) -> str | None:
    kind = tool.get("type")
    inner = tool.get(str(kind))
    return str(inner["name"]) if isinstance(inner, Mapping) and "name" in inner else None


def _head(request: ModelRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{request.index}", "object": kind, "created": 0, "model": request.model}


def _choices(request: ModelRequest) -> int:
    wanted = request.body.get("n") or 1
    return wanted if isinstance(wanted, int) and 1 <= wanted <= 16 else 1


def _usage(answer: Answer, request: ModelRequest) -> dict[str, Any]:
    counted = spoken.usage(answer, request)
    body: dict[str, Any] = {
        "prompt_tokens": counted.prompt_tokens,
        "completion_tokens": counted.completion_tokens,
        "total_tokens": counted.prompt_tokens + counted.completion_tokens,
    }
    if counted.cached_tokens:
        body["prompt_tokens_details"] = {"cached_tokens": counted.cached_tokens}
    if counted.reasoning_tokens:
        body["completion_tokens_details"] = {"reasoning_tokens": counted.reasoning_tokens}
    return body


def _wants_ids(request: ModelRequest) -> bool:
    return request.body.get("return_token_ids") is True


def _prompt_ids(request: ModelRequest) -> list[int]:
    heard = " ".join(spoken.text_of(message.get("content")) for message in request.messages)
    return [token.id for token in spoken.tokens(heard)]


def _all_tokens(answer: Answer) -> list[Token]:
    content = spoken.tokens(answer.content or "", answer.tokens)
    return [*content, *(token for call in answer.tool_calls for token in spoken.tokens(call.arguments_text))]


def _logprobs(known: Sequence[Token]) -> dict[str, Any]:
    return {"content": [logprob(token) for token in known], "refusal": None}


def _call(answer: Answer, request: ModelRequest, index: int) -> dict[str, Any]:
    call = answer.tool_calls[index]
    function = {"name": call.name, "arguments": call.arguments_text}
    return {"id": spoken.call_id(answer, request, index), "type": "function", "function": function}


def _deltas(answer: Answer, request: ModelRequest) -> Iterator[dict[str, Any]]:
    yield {"delta": {"role": "assistant", "content": "" if answer.content is not None else None}}
    for piece in spoken.pieces(answer.reasoning or "", answer.piece):
        yield {"delta": {"reasoning_content": piece}}
    yield from _text_deltas(answer, request)
    for index, call in enumerate(answer.tool_calls):
        whole = _call(answer, request, index)
        start = {**whole, "function": {"name": call.name, "arguments": ""}}
        yield {"delta": {"tool_calls": [{"index": index, **start}]}}
        for text, extra in _told(replace(answer, tokens=None), request, call.arguments_text, logprobs=False):
            yield {"delta": {"tool_calls": [{"index": index, "function": {"arguments": text}}]}, **extra}


def _text_deltas(answer: Answer, request: ModelRequest) -> Iterator[dict[str, Any]]:
    key = "refusal" if answer.refused else "content"
    logprobs = request.body.get("logprobs") is True
    for text, extra in _told(answer, request, answer.content or "", logprobs=logprobs):
        yield {"delta": {key: text}, **extra}


def _told(answer: Answer, request: ModelRequest, text: str, *, logprobs: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """A text in pieces; in tokens, where the request asks for them."""
    ids = _wants_ids(request)
    if not (ids or logprobs):
        for piece in spoken.pieces(text, answer.piece):
            yield piece, {}
        return
    for token in spoken.tokens(text, answer.tokens):
        extra: dict[str, Any] = {"logprobs": _logprobs([token])} if logprobs else {}
        yield token.text, extra | ({"token_ids": [token.id]} if ids else {})
