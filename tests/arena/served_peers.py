"""A2A peers for tests: servers of ours in this process, and what raw servers answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchflow.arena.a2a_app import Executor, a2a_app
from benchflow.arena.a2a_cards import Card
from benchflow.arena.a2a_serving import serving
from cube.listening import listen, url_of


@asynccontextmanager
async def served(executor: Executor, token: str | None = None, **settings: Any) -> AsyncIterator[str]:
    """The address of an executor that is served for as long as the block lasts."""
    listener = listen("127.0.0.1", 0)
    url = url_of(listener)
    app = a2a_app(Card("test", "A peer of a test.", url), executor, **settings)
    async with serving(app, listener, token):
        yield url
