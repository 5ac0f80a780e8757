"""A real browser: used from any thread, ended in any state, and never left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cube.core import Action, ImageContent, Observation
from cube.resources.chromium import BrowserError, ChromiumConfig
from cube.tool import Toolbox
from cube.tools.browser import BrowserTool
from cube.tools.web_page import WebPageTool, WebPageToolConfig

pytestmark = pytest.mark.slow
PAGE = (
    "data:text/html,<title>Start</title><h1>Hello</h1><input id=n><button onclick='document.title=n.value'>Go</button>"
)


@pytest.fixture(scope="module")
def page() -> Iterator[WebPageTool]:
    tool = WebPageToolConfig(use_screenshot=True, use_html=True, browser=ChromiumConfig(timeout_sec=2)).make()
    yield tool
    tool.close()


def act(tool: WebPageTool, name: str, **arguments: object) -> str:
    result = tool.execute_action(Action(name=name, arguments=arguments))
    assert isinstance(result, Observation), result
    return result.contents[0].data


def test_an_agent_acts_on_a_page_and_sees_it(page):
    page.reset()
    page.goto(PAGE)
    seen = {content.name: content for content in page.page_obs().contents}
    assert seen["page"].data.startswith("Start\n")
    assert 'heading "Hello"' in seen["outline"].data
    assert "<h1>Hello</h1>" in seen["html"].data
    assert isinstance(seen["screenshot"], ImageContent)
    act(page, "browser_type", selector="#n", text="typed")
    act(page, "browser_click", selector="text=Go")
    assert page.evaluate_js("() => document.title") == "typed"
    assert act(page, "browser_click", selector="text=Nowhere").startswith("[error] ")
    assert act(page, "browser_click", selector="((").startswith("[error] ")
    assert Toolbox([page]).find_tool(BrowserTool) is page


def test_a_reset_forgets_everything(page):
    page.goto("about:blank")
    page.session.run(lambda tab: tab.context.add_cookies([{"name": "a", "value": "b", "url": "http://x"}]))
    page.reset()
    assert page.session.run(lambda tab: tab.context.cookies()) == []
    assert page.evaluate_js("() => location.href") == "about:blank"


def test_it_works_inside_an_event_loop_and_from_many_threads(page):
    page.goto(PAGE)

    async def ask() -> list[object]:
        here = page.evaluate_js("() => 1 + 1")
        there = await asyncio.gather(*(asyncio.to_thread(page.evaluate_js, f"() => {n}") for n in range(20)))
        return [here, *there]

    assert asyncio.run(ask()) == [2, *range(20)]


def test_a_script_that_never_returns_does_not_keep_the_browser():
    tool = WebPageToolConfig().make()
    tool.goto(PAGE)
    failures = []

    def hang() -> None:
        try:
            tool.evaluate_js("() => { document.title = 'busy'; while (true) {} }")
        except Exception as error:  # noqa: BLE001  # the library's, whatever it is
            failures.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    time.sleep(0.5)  # the call has to be in the page
    tool.close()
    tool.close()
    thread.join(30)
    assert len(failures) == 1
    with pytest.raises(BrowserError, match="has been stopped"):
        tool.evaluate_js("() => 1")


def test_the_browser_ends_with_a_process_that_is_killed():
    script = "from cube.tools.web_page import *; WebPageToolConfig().make(); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        below = descendants(process.pid)
        assert len(below) > 3
        process.kill()
    deadline = time.monotonic() + 60
    while any(running(pid) for pid in below):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for file in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(word) for word in file.read_text().split()]
    return found[1:]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_browser_that_is_missing_is_named(monkeypatch, tmp_path):
    with pytest.raises(BrowserError, match="/no/such/browser does not exist"):
        ChromiumConfig(executable="/no/such/browser").make()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUBE_CHROMIUM", raising=False)
    with pytest.raises(BrowserError, match="No Chromium was found: install it"):
        ChromiumConfig().make()
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(BrowserError, match="cannot be started"):
        ChromiumConfig().make()
