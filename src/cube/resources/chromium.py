"""A real browser: Chromium, driven by Playwright (extra `browser`); nothing is downloaded.

Playwright's objects belong to one thread, so each session has its own: it can be used from any thread, inside an event
loop too, and ended while a script of a page never returns. The browser ends with the process that started it.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cube.extras import extra_command
from cube.resources.browser_session import BrowserConfig, BrowserSession

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

T = TypeVar("T")
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_STOP_SEC: Final = 5.0
"""How long ending the browser may take before its processes are killed."""


class BrowserError(RuntimeError):
    """The browser cannot be started, or has ended."""


class ChromiumConfig(BrowserConfig):
    """The settings of a browser. Each session has its own profile, which is removed at its end."""

    headless: bool = True
    viewport_width: int = 1280
    viewport_height: int = 720
    timeout_sec: float = 10.0
    """How long an action may wait for an element."""
    locale: str = "en-US"
    timezone_id: str = "UTC"
    executable: str | None = None
    """The program; None: `CUBE_CHROMIUM`, or the Chromium on the path."""

    def make(self) -> ChromiumSession:
        return ChromiumSession(self)

    def program(self) -> str:
        """The path of the browser, or a `BrowserError` that says how to get one."""
        named = self.executable or os.environ.get("CUBE_CHROMIUM")
        if named:
            if shutil.which(named) is None:
                raise BrowserError(f"The browser {named} does not exist or cannot be executed.")
            return named
        found = next((path for name in _NAMES if (path := shutil.which(name))), None)
        if found is None:
            raise BrowserError(
                "No Chromium was found: install it (Debian: `apt-get install chromium`), or set CUBE_CHROMIUM."
            )
        return found


class ChromiumSession(BrowserSession):
    """A browser with one page, which belongs to the thread of the session."""

    def __init__(self, config: ChromiumConfig) -> None:
        self.config: Final = config
        self._calls: Final[SimpleQueue[Callable[[], None] | None]] = SimpleQueue()
        self._guard: Final = threading.Lock()
        """Held while it is stopped: a second caller returns when the browser has ended."""
        self._stopped = False
        self._page: Page | None = None
        self._context: BrowserContext | None = None
        ready: Future[None] = Future()
        arguments = (config.program(), _playwright(), ready)
        self._thread: Final = threading.Thread(target=self._work, args=arguments, name="browser", daemon=True)
        self._thread.start()
        ready.result()

    def run(self, call: Callable[[Page], T]) -> T:
        """What a function does with the page. It runs in the thread of the session, after all earlier calls."""
        answer: Future[T] = Future()

        def carry_out() -> None:
            try:
                answer.set_result(call(self._open_page()))
            except BaseException as error:  # noqa: BLE001  # the caller's to judge, in the caller's thread
                answer.set_exception(error)

        self._submit(carry_out)
        return self._result(answer)

    def renew(self) -> None:
        """A new page without cookies, storage or history."""
        answer: Future[None] = Future()

        def carry_out() -> None:
            try:
                if self._context is not None:
                    self._context.close()
                self._context, self._page = None, None
                answer.set_result(None)
            except BaseException as error:  # noqa: BLE001  # as above
                answer.set_exception(error)

        self._submit(carry_out)
        self._result(answer)

    def stop(self) -> None:
        with self._guard:
            if self._stopped:
                return
            self._stopped = True
            self._calls.put(None)
            self._thread.join(_STOP_SEC)
            if self._thread.is_alive():  # in a call that does not return: what it waits for is ended
                _kill_children(self._thread.native_id or 0)
                self._thread.join(_STOP_SEC)

    def _submit(self, call: Callable[[], None]) -> None:
        if self._stopped or not self._thread.is_alive():
            raise BrowserError("The browser has been stopped.")
        self._calls.put(call)

    def _result(self, answer: Future[T]) -> T:
        """The result of a call; a `BrowserError` if the session ends before there is one."""
        while not answer.done() and self._thread.is_alive():
            with suppress(TimeoutError):
                answer.exception(timeout=1)
        if not answer.done():
            raise BrowserError("The browser was stopped during an action.")
        return answer.result()

    # -- in the thread of the session -----------------------------------------------------------------------------

    def _work(self, program: str, playwright: Any, ready: Future[None]) -> None:
        try:
            with playwright() as library:
                self._browser: Browser = library.chromium.launch(
                    executable_path=program, headless=self.config.headless, args=_arguments()
                )
                ready.set_result(None)
                while (call := self._calls.get()) is not None:
                    call()
                self._browser.close()
        except BaseException as error:  # noqa: BLE001  # whatever the library raises when its browser is gone
            if not ready.done():
                ready.set_exception(BrowserError(f"The browser cannot be started: {_first_line(error)}"))

    def _open_page(self) -> Page:
        if self._page is None:
            config = self.config
            self._context = self._browser.new_context(
                viewport={"width": config.viewport_width, "height": config.viewport_height},
                locale=config.locale,
                timezone_id=config.timezone_id,
            )
            self._context.set_default_timeout(config.timeout_sec * 1000)
            self._page = self._context.new_page()
        return self._page


def _arguments() -> list[str]:
    """Chromium's own sandbox does not work for root."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []


def _playwright() -> Any:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise BrowserError(f"A browser needs Playwright: {extra_command('browser')}") from error
    return sync_playwright


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _kill_children(thread: int) -> None:
    """Kill what a thread of this process has started, and everything below it."""
    found = list(_children(Path(f"/proc/self/task/{thread}/children")))
    for pid in found:
        found += [child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in _children(file)]
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _children(file: Path) -> Iterator[int]:
    with suppress(OSError):
        yield from (int(word) for word in file.read_text(encoding="ascii").split())
