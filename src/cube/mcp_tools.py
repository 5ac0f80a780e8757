"""A task's tools as an MCP server: list them, call them. Needs the extra `serve`.

A call goes straight to the tool: it neither evaluates nor ends the task, which is left to the harness.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.server import Server, ServerRequestContext

import cube
from cube.core import (
    Action,
    ActionSchema,
    AudioContent,
    Content,
    ImageContent,
    Observation,
    StepError,
    StructuredContent,
)

ListActions = Callable[[], Awaitable[list[ActionSchema]]]
CallAction = Callable[[Action], Awaitable[Any]]


def mcp_server(name: str, list_actions: ListActions, call_action: CallAction) -> Server[Any]:
    """A server that speaks MCP for a tool, given how to list its actions and how to call one."""

    async def on_list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        del context, params
        return types.ListToolsResult(tools=[_tool(action) for action in await list_actions()])

    async def on_call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        del context
        try:
            result = await call_action(Action(name=params.name, arguments=params.arguments or {}))
        except ValueError as error:  # an unknown action, reported to the model so that it can choose another one
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        return _result(result)

    return Server(name, version=cube.__version__, on_list_tools=on_list_tools, on_call_tool=on_call_tool)


def _tool(action: ActionSchema) -> types.Tool:
    schema = {"type": "object", "properties": {}, **action.parameters}
    return types.Tool(name=action.name, description=action.description, input_schema=schema)


def _result(result: Observation | StepError) -> types.CallToolResult:
    if isinstance(result, StepError):
        text = f"{result.error_type}: {result.exception_str}"
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
    only = result.contents[0] if len(result.contents) == 1 else None
    structured = only.data if isinstance(only, StructuredContent) and isinstance(only.data, dict) else None
    return types.CallToolResult(content=[_block(content) for content in result.contents], structured_content=structured)


def _block(content: Content) -> types.ContentBlock:
    if isinstance(content, ImageContent):
        encoded = content.model_dump()["data"].partition(",")[2]
        return types.ImageContent(data=encoded, mime_type="image/png")
    if isinstance(content, AudioContent):
        return types.AudioContent(
            data=base64.b64encode(content.data).decode("ascii"), mime_type="application/octet-stream"
        )
    return types.TextContent(text=str(content._llm_content()))
