"""`Later`: an ASGI application that is created on first use, not when the server starts. Needs the extra `serve`.

The MCP library takes most of a second to import. A server starts without it, and loads it in the background.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger(__name__)


class Later:
    """The application that `make` returns, with its lifespan, from `wake` or the first request on."""

    def __init__(self, make: Callable[[], Awaitable[Starlette]]) -> None:
        self._make: Final = make
        self._asked: Final = anyio.Event()
        self._ready: Final = anyio.Event()
        self._app: ASGIApp = PlainTextResponse("The server could not start this part.\n", 500)

    def wake(self) -> None:
        """Begin to make it; requests wait until it is there."""
        self._asked.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        self.wake()
        await self._ready.wait()
        await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # to start
        await send({"type": "lifespan.startup.complete"})
        async with anyio.create_task_group() as living:
            living.start_soon(self._run)
            await receive()  # to end
            living.cancel_scope.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    async def _run(self) -> None:
        await self._asked.wait()
        try:
            app = await self._make()
            async with app.router.lifespan_context(app):
                self._app = app
                self._ready.set()
                await anyio.sleep_forever()
        except Exception:  # answered to every request, and logged
            logger.exception("An application could not be started")
            self._ready.set()
