"""A page in a real browser as a tool: an agent clicks, types and reads; the task navigates and looks into the page.

Elements are named by selectors: CSS, `text=…`, or `role=button[name="…"]`. An action answers with what it did and
the page that it led to; one that fails, because no such element exists for instance, says so and ends nothing.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, SerializeAsAny

from cube.container import Container
from cube.core import Content, ImageContent, Observation, TextContent
from cube.resources.chromium import ChromiumConfig, ChromiumSession
from cube.tool import ToolConfig, tool_action
from cube.tools.browser import BrowserTool
from cube.tools.terminal import shortened

if TYPE_CHECKING:
    from playwright.sync_api import Page


class WebPageToolConfig(ToolConfig):
    """The settings of the tool, and what an agent sees of a page."""

    browser: SerializeAsAny[ChromiumConfig] = Field(default_factory=ChromiumConfig)
    use_outline: bool = True
    """The roles and names of the elements, as assistive technology reads them."""
    use_html: bool = False
    use_screenshot: bool = False
    """An image (extra `images`)."""
    max_chars: int = 30_000
    """Of the outline and of the HTML each."""

    def make(self, container: Container | None = None) -> WebPageTool:
        del container  # the browser runs beside it
        return WebPageTool(self, self.browser.make())


class WebPageTool(BrowserTool):
    """A page. Its browser starts with the tool and ends when that is closed."""

    def __init__(self, config: WebPageToolConfig, session: ChromiumSession) -> None:
        self.config = config
        self.session = session

    def reset(self) -> None:
        """An empty page without cookies or storage."""
        self.session.renew()

    def close(self) -> None:
        self.session.stop()

    # -- for tasks ------------------------------------------------------------------------------------------------

    def goto(self, url: str) -> None:
        self.session.run(lambda page: page.goto(url, wait_until="load"))

    def evaluate_js(self, js: str) -> Any:
        return self.session.run(lambda page: page.evaluate(js))

    def page_obs(self) -> Observation:
        return Observation(contents=self.session.run(self._contents))

    # -- for agents -----------------------------------------------------------------------------------------------

    @tool_action
    def browser_click(self, selector: str) -> Observation:
        """Click on an element.

        Args:
            selector: the element, such as `#submit`, `text=Next` or `role=button[name="Save"]`
        """
        return self._act(f"Clicked on {selector}.", lambda page: page.click(selector))

    @tool_action
    def browser_type(self, selector: str, text: str) -> Observation:
        """Replace the text of an input field.

        Args:
            selector: the field
            text: the new text
        """
        return self._act(f"Typed into {selector}.", lambda page: page.fill(selector, text))

    @tool_action
    def browser_press_key(self, key: str) -> Observation:
        """Press a key or a combination of keys.

        Args:
            key: such as `Enter`, `Tab` or `Control+A`
        """
        return self._act(f"Pressed {key}.", lambda page: page.keyboard.press(key))

    @tool_action
    def browser_select_option(self, selector: str, option: str) -> Observation:
        """Select an option of a drop-down list.

        Args:
            selector: the list
            option: the value or the label of the option
        """
        return self._act(f"Selected {option}.", lambda page: page.select_option(selector, option))

    @tool_action
    def browser_scroll(self, direction: Literal["up", "down"], pixels: int = 500) -> Observation:
        """Scroll the page.

        Args:
            direction: where to
            pixels: how far
        """
        distance = pixels if direction == "down" else -pixels
        return self._act(f"Scrolled {direction}.", lambda page: page.mouse.wheel(0, distance))

    @tool_action
    def browser_back(self) -> Observation:
        """Go back to the page before."""
        return self._act("Went back.", lambda page: page.go_back())

    @tool_action
    def noop(self) -> Observation:
        """Look at the page again."""
        return self._act("Looked at the page.", lambda page: page.title())

    def _act(self, what: str, action: Callable[[Page], object]) -> Observation:
        def carry_out(page: Page) -> list[Content]:
            from playwright.sync_api import Error

            said = what
            try:
                action(page)
                page.wait_for_load_state("load")
            except Error as error:
                if page.is_closed():
                    raise
                said = f"[error] {error.message.strip()}"
            return [TextContent(data=said), *self._contents(page)]

        return Observation(contents=self.session.run(carry_out))

    def _contents(self, page: Page) -> list[Content]:
        config, title = self.config, page.title()
        contents: list[Content] = [TextContent(name="page", data=f"{title}\n{page.url}" if title else page.url)]
        if config.use_outline:
            outline = page.locator("body").aria_snapshot()
            contents.append(TextContent(name="outline", data=shortened(outline, config.max_chars)))
        if config.use_html:
            contents.append(TextContent(name="html", data=shortened(page.content(), config.max_chars)))
        if config.use_screenshot:
            contents.append(_screenshot(page))
        return contents


def _screenshot(page: Page) -> ImageContent:
    from PIL import Image

    picture = Image.open(io.BytesIO(page.screenshot()))
    return ImageContent(name="screenshot", data=picture.copy())
