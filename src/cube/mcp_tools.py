"""The agent's port: a task as an MCP server. Needs the extra `serve`.

It lists and calls actions and shows the objective and the latest observation. It has no reset, no evaluation and no
privileged information: it has no access to them.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final, Protocol

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette

import cube
from cube.core import (
    Action,
    ActionSchema,
    AudioContent,
    Content,
    EnvironmentOutput,
    ImageContent,
    Observation,
    StructuredContent,
)
from cube.stage import AGENT_PATH, NOT_BEGUN, OBJECTIVE, Episode, Refused, over_sentence

PATH: Final = AGENT_PATH
LATEST: Final = "task://observation"
"""The resource with the latest observation."""
PROMPT: Final = "objective"
EPISODE: Final = "cube/episode"
"""The key of a result's metadata: the number of the episode, whether it is over, and why."""
Context = ServerRequestContext[Any]
Page = types.PaginatedRequestParams | None


class Acting(Protocol):
    """What an agent may know and do: all that its port can reach (`cube.stage.AgentSide` is one)."""

    @property
    def episode(self) -> Episode: ...

    async def actions(self) -> list[ActionSchema]:
        """What can be called now; `Refused` if that cannot be said."""

    async def act(self, action: Action) -> EnvironmentOutput:
        """Execute one action; `Refused` if the agent may not."""

    def instructions(self) -> str:
        """The objective as text and how to act, for a model."""


def agent_app(name: str, agent: Acting) -> tuple[Starlette, Server[Any]]:
    """The application of the agent's port; the MCP server's `instructions` are for its owner to keep current."""
    server: Server[Any] = Server(
        name,
        version=cube.__version__,
        instructions=agent.instructions(),
        on_list_tools=_lists_tools(agent),
        on_call_tool=_calls_tools(agent),
        on_list_resources=_list_resources,
        on_read_resource=_reads_resources(agent),
        on_list_prompts=_list_prompts,
        on_get_prompt=_gets_prompts(agent),
    )
    # Hosts and origins are checked before a request gets here, in the same way on both ports.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return server.streamable_http_app(streamable_http_path=PATH, transport_security=unchecked), server


def _lists_tools(agent: Acting) -> Any:
    async def handle(context: Context, params: Page) -> types.ListToolsResult:
        del context, params
        try:
            return types.ListToolsResult(tools=[_tool(action) for action in await agent.actions()])
        except Refused as refusal:
            raise MCPError(types.INTERNAL_ERROR, str(refusal)) from refusal

    return handle


def _calls_tools(agent: Acting) -> Any:
    async def handle(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        del context
        try:
            output = await agent.act(Action(name=params.name, arguments=params.arguments or {}))
        except Refused as refusal:  # a result, so that the model sees it
            return _result(agent, [_text(str(refusal))], is_error=True)
        blocks = [_block(content) for content in output.obs.contents]
        if output.error is not None:
            blocks.append(_text(f"{output.error.error_type}: {output.error.exception_str}"))
        if agent.episode.state == "over":
            blocks.append(_text(over_sentence(agent.episode.reason)))
        return _result(agent, blocks, is_error=output.error is not None, structured=_structured(output.obs))

    return handle


def _result(
    agent: Acting, blocks: list[types.ContentBlock], *, is_error: bool, structured: dict[str, Any] | None = None
) -> types.CallToolResult:
    episode = agent.episode
    meta = {EPISODE: {"number": episode.number, "over": episode.state != "running", "reason": episode.reason}}
    return types.CallToolResult(content=blocks, is_error=is_error, structured_content=structured, _meta=meta)


async def _list_resources(context: Context, params: Page) -> types.ListResourcesResult:
    del context, params
    return types.ListResourcesResult(
        resources=[
            types.Resource(uri=OBJECTIVE, name="objective", description="What to do in this episode."),
            types.Resource(uri=LATEST, name="observation", description="The latest observation."),
        ]
    )


def _reads_resources(agent: Acting) -> Any:
    async def handle(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        del context
        known = {OBJECTIVE: agent.episode.objective, LATEST: agent.episode.latest}
        if params.uri not in known:
            raise MCPError(types.INVALID_PARAMS, f"Unknown resource '{params.uri}'; available: {', '.join(known)}.")
        blocks = _begun(agent, known[params.uri])
        return types.ReadResourceResult(contents=[_resource(params.uri, block) for block in blocks])

    return handle


async def _list_prompts(context: Context, params: Page) -> types.ListPromptsResult:
    del context, params
    return types.ListPromptsResult(prompts=[types.Prompt(name=PROMPT, description="What to do in this episode.")])


def _gets_prompts(agent: Acting) -> Any:
    async def handle(context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        del context
        if params.name != PROMPT:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt '{params.name}'; available: {PROMPT}.")
        blocks = _begun(agent, agent.episode.objective)
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=block) for block in blocks])

    return handle


def _begun(agent: Acting, obs: Observation) -> list[types.ContentBlock]:
    """The observation, or that there is none yet."""
    if agent.episode.state == "not started":
        return [_text(NOT_BEGUN)]
    return [_block(content) for content in obs.contents]


def _tool(action: ActionSchema) -> types.Tool:
    schema = {"type": "object", "properties": {}, **action.parameters}
    return types.Tool(name=action.name, description=action.description, input_schema=schema)


def _structured(obs: Observation) -> dict[str, Any] | None:
    """The only content as an object, if it is one and JSON can express it; its text is sent in any case."""
    only = obs.contents[0] if len(obs.contents) == 1 else None
    if not isinstance(only, StructuredContent) or not isinstance(only.data, dict):
        return None
    try:
        json.dumps(only.data, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        return None
    return only.data


def _resource(uri: str, block: types.ContentBlock) -> types.TextResourceContents | types.BlobResourceContents:
    if isinstance(block, types.TextContent):
        return types.TextResourceContents(uri=uri, text=block.text, mime_type="text/plain")
    if isinstance(block, types.ImageContent | types.AudioContent):
        return types.BlobResourceContents(uri=uri, blob=block.data, mime_type=block.mime_type)
    raise TypeError(f"An observation has no block of type {type(block).__name__}.")


def _block(content: Content) -> types.ContentBlock:
    if isinstance(content, ImageContent):
        encoded = content.model_dump()["data"].partition(",")[2]
        return types.ImageContent(data=encoded, mime_type="image/png")
    if isinstance(content, AudioContent):
        return types.AudioContent(
            data=base64.b64encode(content.data).decode("ascii"), mime_type="application/octet-stream"
        )
    return _text(str(content._llm_content()))


def _text(text: str) -> types.TextContent:
    """Text that can be sent: what is not valid UTF-8 is replaced."""
    return types.TextContent(text=text.encode(errors="replace").decode())
