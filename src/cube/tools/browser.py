"""The contract of browser tools. Tasks that need a page look for one: `toolbox.find_tool(BrowserTool)`.

`cube.tools.web_page` has one on a real browser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from cube.core import Observation
from cube.tool import AsyncTool, Tool


class BrowserTool(Tool, ABC):
    """A tool with a page."""

    @abstractmethod
    def goto(self, url: str) -> None:
        """Open an address and wait until it is loaded."""

    @abstractmethod
    def evaluate_js(self, js: str) -> Any:
        """What a JavaScript function or expression returns in the page."""

    @abstractmethod
    def page_obs(self) -> Observation:
        """What an agent sees of the page now."""


class AsyncBrowserTool(AsyncTool, ABC):
    """`BrowserTool` for an event loop."""

    @abstractmethod
    async def goto(self, url: str) -> None: ...

    @abstractmethod
    async def evaluate_js(self, js: str) -> Any: ...

    @abstractmethod
    async def page_obs(self) -> Observation: ...
