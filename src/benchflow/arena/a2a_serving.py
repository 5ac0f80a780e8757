"""Puts an A2A application on a port of this machine for as long as a block lasts."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from benchflow.arena.a2a_app import A2AApp
from cube.access import Access, Guard
from cube.listening import make_server

MOST_CONNECTIONS: Final = 256


@asynccontextmanager
async def serving(app: A2AApp, listener: socket.socket, token: str | None = None) -> AsyncIterator[None]:
    """Serve on a socket of `cube.listening.listen`, which is closed at the end; answers under way end with the block.

    Without a token the host that clients name must be loopback.
    """
    server = make_server(Guard(app, Access(token)), most=MOST_CONNECTIONS, lifespan="off", log_config=None)
    try:
        async with app.running(), anyio.create_task_group() as group:
            group.start_soon(server.serve, [listener])
            try:
                yield
            finally:
                server.should_exit = True
                server.force_exit = True
    finally:
        listener.close()
