"""Tools that models called, read from answers of every dialect and from the records of a rollout."""

import json

import pytest

from benchflow.files.redaction import Redactor
from benchflow.models.called_tools import called_tools, read_wire_tools
from benchflow.record import CallPlace, ModelCalls, RolloutFolder
from benchflow.rollout.policies import SEARCH_TOOLS, audit
from benchflow.task.config.namespace import AgentPolicy

SEARCHED = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
FUNCTION = {"type": "function_call", "name": "bash", "arguments": "{}"}


def sse(*values):
    return b"".join(b"event: x\ndata: " + json.dumps(value).encode() + b"\n\n" for value in values)


def one(value):
    return json.dumps(value).encode()


def item(index, found, kind="done"):
    return {"type": f"response.output_item.{kind}", "output_index": index, "item": found}


def chat(**message):
    return {"choices": [{"message": message}]}


def gemini(*parts, **candidate):
    return {"candidates": [{"content": {"parts": list(parts)}, **candidate}]}


def block(**found):
    return {"type": "content_block_start", "index": 0, "content_block": found}


ANSWERS = {
    "responses": ("openai", one({"output": [SEARCHED, FUNCTION]}), {"web_search": 1}, {"bash": 1}),
    "responses-stream": (
        "openai",
        sse(
            item(0, SEARCHED, "added"),
            item(0, SEARCHED),
            item(1, FUNCTION),
            {"type": "response.completed", "response": {"output": [SEARCHED, FUNCTION]}},
        ),
        {"web_search": 1},
        {"bash": 1},
    ),
    "responses-cut": ("openai", sse(item(0, {"type": "code_interpreter_call"}, "added")), {"code_execution": 1}, {}),
    "responses-mcp": ("openai", one({"output": [{"type": "mcp_call", "name": "deploy"}]}), {"mcp": 1, "deploy": 1}, {}),
    "chat": ("openai", one(chat(tool_calls=[{"function": {"name": "a"}}, {"custom": {"name": "b"}}])), {}, "ab"),
    "chat-old": ("openai", one(chat(function_call={"name": "a"})), {}, "a"),
    "chat-stream": (
        "openai",
        sse(
            {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "a", "arguments": ""}}]}}]},
            {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}}]},
        ),
        {},
        "a",
    ),
    "chat-cites": ("openai", one(chat(annotations=[{"type": "url_citation"}] * 3)), {"web_search": 1}, {}),
    "router": ("openai", one({"usage": {"server_tool_use": {"web_search_requests": 2}}}), {"web_search": 1}, {}),
    "executed": ("openai", one(chat(executed_tools=[{"type": "python"}])), {"code_execution": 1}, {}),
    "anthropic": (
        "anthropic",
        one({"content": [{"type": "server_tool_use", "name": "web_search"}, {"type": "tool_use", "name": "bash"}]}),
        {"web_search": 1},
        {"bash": 1},
    ),
    "anthropic-stream": (
        "anthropic",
        sse(
            block(type="server_tool_use", name="web_fetch"),
            block(type="server_tool_use", name="bash_code_execution"),
            block(type="mcp_tool_use", name="x"),
        ),
        {"web_fetch": 1, "code_execution": 1, "mcp": 1, "x": 1},
        {},
    ),
    "gemini": (
        "gemini",
        one(gemini({"functionCall": {"name": "ls"}}, groundingMetadata={"webSearchQueries": ["x"]})),
        {"web_search": 1},
        {"ls": 1},
    ),
    "gemini-list": (
        "gemini",
        json.dumps([gemini({"executableCode": {}}), gemini(urlContextMetadata={"urlMetadata": []})]).encode(),
        {"code_execution": 1, "web_fetch": 1},
        {},
    ),
    "gemini-no-search": ("gemini", sse(gemini({"text": "a"}, groundingMetadata={})), {}, {}),
    "words": ("openai", one(chat(content="I made a web_search_call with a tool")), {}, {}),
    "garbage": ("anthropic", b'data: {"tool": [[[\n\ndata: 7\n\ndata: {"content": {"tool": 1}}\n\n', {}, {}),
    "odd": ("openai", one({"output": [{"type": ["x_call"]}, 7], "choices": [{"message": "tool"}, None]}), {}, {}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_shows_which_tools_were_called(name):
    family, body, provider, functions = ANSWERS[name]
    found = called_tools(family, body)
    assert dict(found.provider) == provider
    assert dict(found.functions) == (functions if isinstance(functions, dict) else dict.fromkeys(functions, 1))


@pytest.fixture
def folder(tmp_path):
    return RolloutFolder(tmp_path)


def record(folder, *calls):
    """Calls of an agent through the gateway, with an answer each; further fields as given."""
    written = ModelCalls(folder, Redactor({}))
    for call in calls:
        known = {
            "time": "2026-11-16T09:12:41.120Z",
            "place": CallPlace("agent"),
            "dialect": "openai-responses",
            "provider": "openai",
            "model": "gpt-4o",
            "endpoint": "POST /v1/responses",
            "outcome": "answered",
            "status": 200,
            "usage": {},
            "timing": {"total": 1.0},
        }
        written.append(**{**known, **call})
    written.close()


OFFLINE = AgentPolicy(search="disabled", forbidden_tools=("deploy",))
DEPLOYS = one({"output": [{"type": "function_call", "name": "Deploy"}], "filler": "x" * 2000})


def audited(folder, calls=()):
    return audit(OFFLINE, dict(calls), read_wire_tools(folder, SEARCH_TOOLS | {"deploy"}))


def test_what_an_agent_leaves_out_of_its_trajectory_is_in_the_audit(folder):
    deploy = {"type": "function", "name": "Deploy", "description": "x" * 2000}
    record(
        folder,
        {"request": {"tools": [deploy]}, "body": DEPLOYS},
        {"request": {"tools": [deploy]}, "body": DEPLOYS},
        {"body": one({"output": [SEARCHED]})},
    )
    assert dict(audited(folder).forbidden) == {"Deploy": 2, "web_search": 1}
    both = audited(folder, {frozenset({"deploy"}): 1, frozenset({"WebSearch"}): 3})
    assert dict(both.forbidden) == {"deploy": 2, "WebSearch": 3}


def test_what_no_agent_of_the_rollout_called_is_not_its_fault(folder):
    searched = {"body": one({"output": [SEARCHED]})}
    record(
        folder,
        {**searched, "place": CallPlace("judge", "judge")},
        {**searched, "place": CallPlace("agent", branch="2")},
        {"request": {"tools": [{"type": "function", "name": "bash"}]}, "body": DEPLOYS},
        {"outcome": "refused", "status": 403, "model": "sonar", "code": "forbidden-tool"},
        {"removed_tools": ("web_search_preview", "mcp"), "body": one({"output": []})},
    )
    found = audited(folder)
    assert (found.passed, found.record().passed) == (True, True)
    assert dict(found.record().removed_tools) == {"web_search_preview": 1, "mcp": 1}


def test_a_forbidden_tool_in_a_request_that_was_sent_fails_the_audit(folder):
    tool = {"type": "web_search_2025_08_26", "filters": "x" * 2000}
    record(folder, {"request": {"tools": [tool]}, "body": one({"output": []})}, {"model": "sonar-pro", "body": b"{}"})
    found = audited(folder)
    assert (dict(found.offered), dict(found.forbidden), found.passed) == ({"web_search": 2}, {}, False)


def test_a_record_that_is_damaged_proves_nothing(folder):
    record(folder, {"body": DEPLOYS})
    [part] = folder.model_call_parts.iterdir()
    part.write_bytes(b"{}")
    with pytest.raises(ValueError, match="damaged"):
        read_wire_tools(folder, SEARCH_TOOLS)
