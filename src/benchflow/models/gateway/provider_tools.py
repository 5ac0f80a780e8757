"""Tools that the provider of a model runs itself, such as web search: found in requests of every dialect, taken out.

A package that forbids search, or tools by name, cannot rely on what an agent says it does: the request shows it. Tools
that the agent runs (functions) are its own business here, the trajectory audit judges those. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from benchflow.models.gateway.endpoints import Family

SEARCH: Final = "web_search"
FETCH: Final = "web_fetch"
CODE: Final = "code_execution"
REMOTE: Final = "mcp"
"""Servers of tools that a provider calls."""
_OWN: Final = frozenset({"function", "custom"})
"""Types of tools that the agent runs itself."""
_VERSION: Final = re.compile(r"(_preview)?(_20\d\d_?\d\d_?\d\d|_20\d{6}|-20\d\d-\d\d-\d\d)$")
_SAME: Final[Mapping[str, str]] = {
    "google_search": SEARCH,
    "google_search_retrieval": SEARCH,
    "enterprise_web_search": SEARCH,
    "google_maps": SEARCH,
    "websearch": SEARCH,
    "search_web": SEARCH,
    "browser": FETCH,
    "fetch": FETCH,
    "url_context": FETCH,
    "webfetch": FETCH,
    "code_interpreter": CODE,
}
"""What tools of providers are, by their names in each dialect."""


def normal_name(name: str) -> str:
    """The name of a tool as it is compared: lower case, underscores, without a version; known ones by what they do."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    plain = _VERSION.sub("", re.sub(r"[\s\-.]+", "_", spaced).lower())
    plain = _VERSION.sub("", plain)
    return _SAME.get(plain, plain)


def provider_names(forbidden: Iterable[str]) -> frozenset[str]:
    """The tools of providers that are meant by forbidden names; with search or fetch also remote servers of tools."""
    names = frozenset(map(normal_name, forbidden))
    return names | {REMOTE} if names & {SEARCH, FETCH} else names


def without_tools(
    family: Family, request: Mapping[str, Any], forbidden: Iterable[str]
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The request without tools of the provider that are forbidden, and what was taken out; None: nothing was.

    Where search or a fetch is forbidden, so are servers of tools that the provider would call, and chat options that
    make a model search.
    """
    banned = provider_names(forbidden)
    if not banned:
        return None, ()
    changed = dict(request)
    removed = [*_tools(changed, banned), *_options(family, changed, banned)]
    return (changed, tuple(removed)) if removed else (None, ())


def _tools(request: dict[str, Any], banned: frozenset[str]) -> list[str]:
    tools = request.get("tools")
    if not isinstance(tools, list):
        return []
    removed: list[str] = []
    kept: list[Any] = []
    for tool in tools:
        left, names = _without(tool, banned)
        removed += names
        if left is not None:
            kept.append(left)
    if not removed:
        return []
    if kept:
        request["tools"] = kept
    else:
        del request["tools"]
        for key in ("tool_choice", "toolConfig", "tool_config", "parallel_tool_calls"):
            request.pop(key, None)
    choice = request.get("tool_choice")
    if isinstance(choice, dict) and any(normal_name(str(choice.get(key, ""))) in banned for key in ("type", "name")):
        del request["tool_choice"]
    return removed


def _without(tool: Any, banned: frozenset[str]) -> tuple[Any, list[str]]:
    """What is left of one entry, or None, and the names that were taken out."""
    if not isinstance(tool, dict):
        return tool, []
    kind = tool.get("type")
    if isinstance(kind, str):  # OpenAI and Anthropic: the type of a tool of the provider is its name
        if kind in _OWN:
            return tool, []
        return (None, [kind]) if normal_name(kind) in banned else (tool, [])
    if "name" in tool or "function" in tool:  # a function of the agent, as Anthropic and old clients write it
        return tool, []
    hit = [key for key in tool if normal_name(key) in banned]  # Gemini: a key for each kind of tool
    left = {key: value for key, value in tool.items() if key not in hit}
    return (left or None, hit) if hit else (tool, [])


def _options(family: Family, request: dict[str, Any], banned: frozenset[str]) -> list[str]:
    """Options beside the tools that make a provider search."""
    removed: list[str] = []
    outside = bool(banned & {SEARCH, FETCH})

    def drop(key: str, wanted: bool, keep: Callable[[Any], Any] | None = None) -> None:
        if not wanted or key not in request:
            return
        left = keep(request[key]) if keep is not None else None
        if left == request[key]:
            return
        removed.append(key)
        if left:
            request[key] = left
        else:
            del request[key]

    if family == "openai":
        drop("web_search_options", SEARCH in banned)
        drop(
            "plugins", outside, lambda found: [p for p in found if not _is_web(p)] if isinstance(found, list) else None
        )
        model = request.get("model")
        if SEARCH in banned and isinstance(model, str) and model.endswith(":online"):
            request["model"] = model.removesuffix(":online")
            removed.append(":online")
    if family == "anthropic":
        drop("mcp_servers", outside)
    return removed


def _is_web(plugin: Any) -> bool:
    return isinstance(plugin, dict) and normal_name(str(plugin.get("id", ""))) in ("web", SEARCH, FETCH)


def searching_model(family: Family, model: str | None, forbidden: Iterable[str]) -> bool:
    """Whether a model searches whatever it is asked, although search is forbidden."""
    if SEARCH not in {normal_name(name) for name in forbidden} or model is None:
        return False
    return family == "openai" and ("search-preview" in model or "deep-research" in model or model.startswith("sonar"))
