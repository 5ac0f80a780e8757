"""Scripted replies as OpenAI's responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchflow.testing.dialects import spoken
from benchflow.testing.dialects.scripted_chat import OpenAI, logprob
from benchflow.testing.dialects.spoken import Route
from benchflow.testing.replies import Answer, DialectName, Fault, Heard, ModelRequest

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_LOGPROBS: Final = "message.output_text.logprobs"


class Responses(OpenAI):
    """`/responses`, and `/responses/input_tokens` for counts."""

    name: DialectName = "responses"

    def route(self, path: str) -> Route | None:
        return {"/responses": "answer", "/responses/input_tokens": "count"}.get(path)  # type: ignore[return-value]

    def problem(self, body: Mapping[str, Any]) -> str | None:
        if isinstance(body.get("input"), str):
            return spoken.model_problem(body)
        return spoken.model_problem(body) or spoken.list_problem(body, "input")

    def hear(self, path: str, body: Mapping[str, Any]) -> Heard:
        del path
        given = body.get("input")
        items = ({"role": "user", "content": given},) if isinstance(given, str) else spoken.mappings(given)
        results = [spoken.text_of(item.get("output")) for item in items if "output" in item]
        texts = [spoken.text_of(item.get("content")) for item in items]
        by_user = [text for item, text in zip(items, texts, strict=True) if item.get("role") == "user"]
        return Heard(
            model=str(body.get("model", "")),
            stream=body.get("stream") is True,
            messages=items,
            tools=tuple(str(tool.get("name") or tool.get("type")) for tool in spoken.mappings(body.get("tools"))),
            prompt=by_user[-1] if by_user else "",
            tool_results=tuple(results),
            words=spoken.words([spoken.text_of(body.get("instructions")), *texts, *results]),
        )

    def whole(self, answer: Answer, request: ModelRequest) -> Mapping[str, Any]:
        reason = _INCOMPLETE.get(answer.finish_reason or "")
        status = "incomplete" if reason else "completed"
        output = [done for _, done, _ in _items(answer, request)]
        extra: dict[str, Any] = {"usage": _usage(answer, request), "output": output}
        if reason:
            extra["incomplete_details"] = {"reason": reason}
        return {**_head(request, status), **extra}

    def events(self, answer: Answer, request: ModelRequest) -> Iterator[bytes]:
        for number, (kind, data) in enumerate(self._named(answer, request)):
            yield spoken.event({"type": kind, "sequence_number": number, **data}, kind)

    def _named(self, answer: Answer, request: ModelRequest) -> Iterator[tuple[str, dict[str, Any]]]:
        begun = _head(request, "in_progress")
        yield "response.created", {"response": begun}
        yield "response.in_progress", {"response": begun}
        for index, (start, done, between) in enumerate(_items(answer, request)):
            place = {"output_index": index}
            yield "response.output_item.added", {**place, "item": start}
            for kind, data in between:
                yield kind, {**place, "item_id": done["id"], **data}
            yield "response.output_item.done", {**place, "item": done}
        whole = self.whole(answer, request)
        yield f"response.{whole['status']}", {"response": dict(whole)}

    def error_event(self, fault: Fault, request: ModelRequest) -> bytes:
        code = fault.code or ("rate_limit_exceeded" if fault.status == 429 else "server_error")
        failed = {**_head(request, "failed"), "error": {"code": code, "message": fault.message}}
        data = {"type": "response.failed", "sequence_number": fault.after, "response": failed}
        return spoken.event(data, "response.failed")

    def count(self, request: ModelRequest) -> Mapping[str, Any]:
        return {"object": "response.input_tokens", "input_tokens": request.heard.words}


_Item = tuple[dict[str, Any], dict[str, Any], Iterator[tuple[str, dict[str, Any]]]]
"""An item as it begins, as it ends, and the events between."""


def _head(request: ModelRequest, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{request.index}",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": request.body.get("instructions"),
        "metadata": {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _usage(answer: Answer, request: ModelRequest) -> dict[str, Any]:
    counted = spoken.usage(answer, request)
    return {
        "input_tokens": counted.prompt_tokens,
        "input_tokens_details": {"cached_tokens": counted.cached_tokens},
        "output_tokens": counted.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counted.reasoning_tokens},
        "total_tokens": counted.prompt_tokens + counted.completion_tokens,
    }


def _items(answer: Answer, request: ModelRequest) -> Iterator[_Item]:
    if answer.reasoning is not None:
        yield _reasoning(answer, request)
    if answer.content is not None:
        yield _message(answer, request)
    custom = {tool.get("name") for tool in spoken.mappings(request.body.get("tools")) if tool.get("type") == "custom"}
    for index, call in enumerate(answer.tool_calls):
        yield (_custom if call.name in custom else _function)(answer, request, index)


def _reasoning(answer: Answer, request: ModelRequest) -> _Item:
    text = answer.reasoning or ""
    item: dict[str, Any] = {"id": f"rs_{request.index}", "type": "reasoning", "summary": []}
    part = {"type": "summary_text", "text": text}
    place = {"summary_index": 0}

    def between() -> Iterator[tuple[str, dict[str, Any]]]:
        kind = "response.reasoning_summary"
        yield f"{kind}_part.added", {**place, "part": {**part, "text": ""}}
        for piece in spoken.pieces(text, answer.piece):
            yield f"{kind}_text.delta", {**place, "delta": piece}
        yield f"{kind}_text.done", {**place, "text": text}
        yield f"{kind}_part.done", {**place, "part": part}

    return item, {**item, "summary": [part]}, between()


def _message(answer: Answer, request: ModelRequest) -> _Item:
    text = answer.content or ""
    item = {"id": f"msg_{request.index}", "type": "message", "role": "assistant"}
    wanted = _LOGPROBS in (request.body.get("include") or ())
    known = spoken.tokens(text, answer.tokens) if wanted else ()
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
    part["logprobs"] = [logprob(token) for token in known]
    empty = {**part, "text": "", "logprobs": []}
    name, key = "output_text", "text"
    if answer.refused:
        part, name, key = {"type": "refusal", "refusal": text}, "refusal", "refusal"
        empty = {**part, "refusal": ""}
    place = {"content_index": 0}

    def between() -> Iterator[tuple[str, dict[str, Any]]]:
        yield "response.content_part.added", {**place, "part": empty}
        pieces = [(token.text, [logprob(token)]) for token in known]
        for piece, logprobs in pieces or [(piece, []) for piece in spoken.pieces(text, answer.piece)]:
            extra = {} if answer.refused else {"logprobs": logprobs}
            yield f"response.{name}.delta", {**place, "delta": piece, **extra}
        extra = {} if answer.refused else {"logprobs": part["logprobs"]}
        yield f"response.{name}.done", {**place, key: text, **extra}
        yield "response.content_part.done", {**place, "part": part}

    start = {**item, "status": "in_progress", "content": []}
    return start, {**item, "status": "completed", "content": [part]}, between()


def _function(answer: Answer, request: ModelRequest, index: int) -> _Item:
    call = answer.tool_calls[index]
    text = call.arguments_text
    item = {"id": f"fc_{request.index}_{index}", "type": "function_call"}
    item |= {"call_id": spoken.call_id(answer, request, index), "name": call.name}

    def between() -> Iterator[tuple[str, dict[str, Any]]]:
        for piece in spoken.pieces(text, answer.piece):
            yield "response.function_call_arguments.delta", {"delta": piece}
        yield "response.function_call_arguments.done", {"name": call.name, "arguments": text}

    start = {**item, "arguments": "", "status": "in_progress"}
    return start, {**item, "arguments": text, "status": "completed"}, between()


def _custom(answer: Answer, request: ModelRequest, index: int) -> _Item:
    """A call of a tool that takes any text: the arguments as they are."""
    call = answer.tool_calls[index]
    text = call.arguments_text
    item = {"id": f"ctc_{request.index}_{index}", "type": "custom_tool_call"}
    item |= {"call_id": spoken.call_id(answer, request, index), "name": call.name}

    def between() -> Iterator[tuple[str, dict[str, Any]]]:
        for piece in spoken.pieces(text, answer.piece):
            yield "response.custom_tool_call_input.delta", {"delta": piece}
        yield "response.custom_tool_call_input.done", {"input": text}

    start = {**item, "input": "", "status": "in_progress"}
    return start, {**item, "input": text, "status": "completed"}, between()
