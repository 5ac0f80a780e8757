"""Tools that a provider would run itself: taken out of requests in every dialect, whatever they are called today."""

import pytest

from benchflow.models.gateway.provider_tools import normal_name, without_tools
from benchflow.rollout.policies import SEARCH_TOOLS
from raw_upstream import OPENAI, answer

BASH = {"type": "function", "function": {"name": "web_search", "parameters": {}}}
REQUESTS = {
    "responses": (
        "openai",
        {"tools": [{"type": "web_search_preview_2025_03_11"}, {"type": "function", "name": "bash"}]},
        1,
    ),
    "responses-new": ("openai", {"tools": [{"type": "web_search_2025_08_26"}], "tool_choice": "required"}, 0),
    "remote-mcp": ("openai", {"tools": [{"type": "mcp", "server_url": "https://x"}]}, 0),
    "chat": ("openai", {"web_search_options": {}, "tools": [BASH]}, 1),
    "router": ("openai", {"model": "gpt-4o:online", "plugins": [{"id": "web"}, {"id": "pdf"}]}, 0),
    "anthropic": ("anthropic", {"tools": [{"type": "web_search_20250305", "name": "web_search"}, {"name": "bash"}]}, 1),
    "anthropic-fetch": ("anthropic", {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, 0),
    "anthropic-mcp": ("anthropic", {"mcp_servers": [{"url": "https://x"}], "tools": [{"name": "bash"}]}, 1),
    "gemini": ("gemini", {"tools": [{"googleSearch": {}}, {"functionDeclarations": [{"name": "bash"}]}]}, 1),
    "gemini-snake": ("gemini", {"tools": [{"google_search_retrieval": {}, "function_declarations": []}]}, 1),
    "gemini-url": ("gemini", {"tools": [{"urlContext": {}}]}, 0),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_search_is_taken_out_and_what_the_agent_runs_itself_stays(name):
    family, request, left = REQUESTS[name]
    changed, removed = without_tools(family, request, SEARCH_TOOLS)
    assert changed is not None
    assert removed
    assert len(changed.get("tools", [])) == left
    again, more = without_tools(family, changed, SEARCH_TOOLS)
    assert (again, more) == (None, ())


def test_what_nobody_forbids_stays_as_it_is():
    request = {"tools": [{"type": "web_search"}, {"type": "code_interpreter"}]}
    assert without_tools("openai", request, ()) == (None, ())
    changed, removed = without_tools("openai", request, {"code_execution"})
    assert (changed, removed) == ({"tools": [{"type": "web_search"}]}, ("code_interpreter",))


@pytest.mark.parametrize("name", ["code_interpreter", "code_execution_20250522", "codeExecution", "CodeExecution"])
def test_running_code_has_one_name(name):
    assert normal_name(name) == "code_execution"


@pytest.mark.anyio
async def test_the_record_says_what_was_taken_out(wired):
    async with wired(answer(OPENAI), forbidden_tools=SEARCH_TOOLS) as it:
        tools = [{"type": "web_search"}, {"type": "function", "name": "bash"}]
        await it.post("/openai/v1/responses", {"model": "gpt-4o", "input": "x", "tools": tools})
        assert it.upstream.asked[0].json["tools"] == tools[1:]
        assert it.calls[0].removed_tools == ("web_search",)
        refused = await it.post(body={"model": "gpt-4o-search-preview", "messages": []})
        assert (refused.status_code, len(it.upstream.asked)) == (403, 1)
