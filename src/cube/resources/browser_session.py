"""The contract of browser sessions: a config is sent, the session lives where it was made.

`cube.resources.chromium` has one on a real browser. Anyone may write another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from cube.typed import TypedBaseModel


class BrowserSession(ABC):
    """A browser that runs. `with session:` ends it."""

    @property
    def cdp_url(self) -> str | None:
        """Where other programs reach the browser with the Chrome DevTools Protocol; None: nowhere."""
        return None

    @abstractmethod
    def stop(self) -> None:
        """End the browser; safe to call again."""

    def close(self) -> None:
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BrowserConfig(TypedBaseModel, ABC):
    """The settings of a session."""

    @abstractmethod
    def make(self) -> BrowserSession:
        """A browser that runs."""


class AsyncBrowserSession(ABC):
    """`BrowserSession` for an event loop."""

    @abstractmethod
    async def stop(self) -> None:
        """End the browser; safe to call again."""

    async def close(self) -> None:
        await self.stop()


class AsyncBrowserConfig(TypedBaseModel, ABC):
    """The settings of an asynchronous session."""

    @abstractmethod
    async def make(self) -> AsyncBrowserSession: ...
