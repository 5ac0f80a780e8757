"""Tools by the wire: what models called in one rollout, read from the records of its calls.

An agent may leave out of its trajectory what it does, and tools that a provider runs itself never pass through the
agent at all. Requests and answers show both. Calls of judges and simulated users, and those in branches, do not count.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchflow.models.gateway.endpoints import Family
from benchflow.models.gateway.provider_tools import (
    CODE,
    FETCH,
    REMOTE,
    SEARCH,
    normal_name,
    searching_model,
    without_tools,
)
from benchflow.models.gateway.wire_answers import events
from benchflow.record.layout import RolloutFolder
from benchflow.record.model_calls import CallParts, ModelCall, read_model_calls

_MARKS: Final = (
    b"_call",
    b"tool",
    b"functionCall",
    b"executableCode",
    b"Metadata",
    b"citation",
    b"search_results",
    b"num_sources_used",
)
"""An event without any of these names no tool; most are not parsed."""
_FIELDS: Final = ("tools", "web_search_options", "plugins", "mcp_servers", "model")
"""What of a request makes a provider run tools."""
_CONTAINERS: Final = ("functionDeclarations", "function_declarations", "tools")
_EXECUTED: Final = {"search": SEARCH, "visit": FETCH, "python": CODE}
"""How servers of chat completions that run tools themselves call them."""
_OWN_ITEMS: Final = ("function_call", "custom_tool_call")
_LISTED: Final = "mcp_list_tools"
_MOST_KEPT: Final = 1000


@dataclass(slots=True)
class WireTools:
    """How often which tools were called, as requests and answers show it."""

    provider: Counter[str] = field(default_factory=Counter)
    """Tools that the provider ran, by what they do, such as `web_search`."""
    functions: Counter[str] = field(default_factory=Counter)
    """Functions that a request offered and the model called; the agent runs them."""
    removed: Counter[str] = field(default_factory=Counter)
    """Forbidden tools of providers that the gateway took out of requests."""
    offered: Counter[str] = field(default_factory=Counter)
    """Forbidden tools of providers in requests that were sent: nothing proves that they were not used."""


def read_wire_tools(folder: RolloutFolder, forbidden: Iterable[str]) -> WireTools:
    """The tools of all calls of a rollout's agents; `ValueError` if a part of the record is missing or damaged."""
    found, banned, parts = WireTools(), frozenset(forbidden), _Tools(folder)
    for call in read_model_calls(folder.model_calls):
        if call.place.source != "agent" or call.place.branch is not None:
            continue
        found.removed.update(set(call.removed_tools))
        if call.outcome == "refused":
            continue
        family = _family(call)
        request = parts.request(call)
        _, offered = without_tools(family, request, banned)
        found.offered.update(set(map(normal_name, offered)))
        if searching_model(family, call.model, banned):
            found.offered[SEARCH] += 1
        if call.answer is None:
            continue
        called = called_tools(family, parts.answer(call))
        found.provider.update(called.provider)
        if called.functions:
            names = frozenset(_names(request.get("tools")))
            found.functions.update({name: count for name, count in called.functions.items() if name in names})
    return found


def called_tools(family: Family, body: bytes) -> WireTools:
    """The tools that one answer shows, whether it is a stream or not. What is not JSON shows none."""
    found = WireTools()
    items: dict[Any, Mapping[str, Any]] = {}
    seen: set[str] = set()
    for value in _values(body):
        if family == "anthropic":
            _of_anthropic(value, found)
        elif family == "gemini":
            _of_gemini(value, found, seen)
        else:
            _of_chat(value, found, seen)
            items |= _items(value)
    for item in items.values():
        _of_item(item, found)
    found.provider.update(seen - found.provider.keys())
    return found


class _Tools:
    """Requests as far as they name tools, and answers. Definitions of tools are repeated, so those are kept."""

    def __init__(self, folder: RolloutFolder) -> None:
        self._parts: Final = CallParts(folder)
        self._kept: dict[str, Any] = {}

    def request(self, call: ModelCall) -> dict[str, Any]:
        if not isinstance(call.request, dict):
            return {}
        return {key: self._whole(call.request[key]) for key in _FIELDS if key in call.request}

    def answer(self, call: ModelCall) -> bytes:
        return self._parts.answer(call)

    def _whole(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._whole(item) for item in value]
        digest = self._parts.named(value)
        if digest is None:
            return value
        if digest not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[digest] = self._parts.whole(value)
        return self._kept[digest]


def _family(call: ModelCall) -> Family:
    if call.dialect.startswith("anthropic"):
        return "anthropic"
    return "gemini" if call.dialect.startswith("gemini") else "openai"


def _values(body: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of an answer that may name a tool."""
    whole = body.lstrip()[:1] in (b"{", b"[")
    for data in (body,) if whole else events(body):
        if not any(mark in data for mark in _MARKS):
            continue
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            continue
        yield from _objects(value if isinstance(value, list) else [value])  # Gemini: a stream may be one JSON list


def _of_anthropic(value: Mapping[str, Any], found: WireTools) -> None:
    """Blocks of a message, or the block that an event begins."""
    for block in _objects([*_list(value, "content"), value.get("content_block")]):
        kind, name = block.get("type"), _text(block.get("name"))
        if kind == "tool_use":
            found.functions[name] += 1
        elif kind == "server_tool_use":
            plain = normal_name(name)
            found.provider[CODE if plain.endswith(CODE) else plain] += 1
        elif kind == "mcp_tool_use":
            found.provider.update((REMOTE, normal_name(name)))


def _of_gemini(value: Mapping[str, Any], found: WireTools, seen: set[str]) -> None:
    for candidate in _objects(_list(value, "candidates")):
        grounding = candidate.get("groundingMetadata")
        if isinstance(grounding, dict) and any(grounding.values()):
            seen.add(SEARCH)
        if candidate.get("urlContextMetadata"):
            seen.add(FETCH)
        for part in _objects(_list(candidate.get("content"), "parts")):
            called, ran = part.get("functionCall"), part.get("toolCall")
            if isinstance(called, dict):
                found.functions[_text(called.get("name"))] += 1
            if isinstance(ran, dict):
                name = normal_name(_text(ran.get("toolType")))
                found.provider[SEARCH if name.startswith("google_search") else name] += 1
            if "executableCode" in part:
                found.provider[CODE] += 1


def _of_chat(value: Mapping[str, Any], found: WireTools, seen: set[str]) -> None:
    """Chat completions: calls of functions have their name once, in the first piece of a stream."""
    for choice in _objects(_list(value, "choices")):
        for message in _objects([choice.get("message"), choice.get("delta")]):
            for call in _objects([*_list(message, "tool_calls"), {"function": message.get("function_call")}]):
                for function in _objects([call.get("function"), call.get("custom")]):
                    if name := _text(function.get("name")):
                        found.functions[name] += 1
            if any(item.get("type") == "url_citation" for item in _objects(_list(message, "annotations"))):
                seen.add(SEARCH)
            for tool in _objects(_list(message, "executed_tools")):
                kind = _text(tool.get("type"))
                seen.add(_EXECUTED.get(kind, normal_name(kind)))
    used = value.get("usage")
    if value.get("citations") or value.get("search_results") or (isinstance(used, dict) and _searched(used)):
        seen.add(SEARCH)


def _searched(usage: Mapping[str, Any]) -> bool:
    used = usage.get("server_tool_use")
    return bool(usage.get("num_sources_used") or (isinstance(used, dict) and used.get("web_search_requests")))


def _items(value: Mapping[str, Any]) -> dict[Any, Mapping[str, Any]]:
    """Responses: the items of an answer by their place; a stream names each several times."""
    if isinstance(item := value.get("item"), dict):
        return {value.get("output_index"): item}
    response = value.get("response")
    output = _list(response if isinstance(response, dict) else value, "output")
    return {index: item for index, item in enumerate(output) if isinstance(item, dict)}


def _of_item(item: Mapping[str, Any], found: WireTools) -> None:
    kind = _text(item.get("type"))
    if kind in _OWN_ITEMS:
        found.functions[_text(item.get("name"))] += 1
    elif kind == _LISTED:
        found.provider[REMOTE] += 1
    elif kind.endswith("_call"):
        found.provider[normal_name(kind.removesuffix("_call"))] += 1
        if kind == f"{REMOTE}_call":
            found.provider[normal_name(_text(item.get("name")))] += 1


def _names(tools: Any) -> Iterator[str]:
    """The names of functions that a list of tools offers, in every dialect."""
    for tool in _objects(tools if isinstance(tools, list) else []):
        for holder in _objects([tool, tool.get("function"), tool.get("custom")]):
            if name := _text(holder.get("name")):
                yield name
        for key in _CONTAINERS:
            yield from _names(tool.get(key))


def _list(value: Any, key: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _objects(values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return (value for value in values if isinstance(value, dict))


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else ""
