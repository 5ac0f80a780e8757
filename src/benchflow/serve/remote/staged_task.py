"""`StagedTask`: a gym task on a node, with the methods that `cube serve` has for harnesses."""

from __future__ import annotations

from typing import Final

import anyio
import anyio.to_thread

from cube.jsonrpc import answer
from cube.server import task_methods
from cube.stage import Stage


class StagedTask:
    """One task, in a thread of its own; its first reset makes it."""

    def __init__(self, stage: Stage) -> None:
        self._stage: Final = stage
        self._methods: Final = task_methods(stage)

    async def answer(self, question: bytes) -> bytes:
        """The response to a request of JSON-RPC."""
        return await answer(question, self._methods) or b"null"

    async def close(self) -> None:
        """End the task with all that runs in it; safe to call again."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._stage.shut_down)
