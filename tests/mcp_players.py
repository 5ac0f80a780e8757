"""The official MCP client, connected to an agent's port.

It is imported when it is used: that takes half a second, and most runs that collect these tests do not run them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2

if TYPE_CHECKING:
    from mcp.client import Client


@asynccontextmanager
async def mcp_player(url: str, token: str | None, timeout: float = 120) -> AsyncIterator[Client]:
    from mcp.client import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


def mcp_error() -> type[Exception]:
    """What the client raises when the server answers with an error."""
    from mcp.shared.exceptions import MCPError

    return MCPError
