"""The viewer in a real browser: every page, keys, live updates; no text runs, and no request leaves the machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from benchflow.view.html_export import export_html
from made_jobs import HOSTILE, add_rollout, arena_job, conversation, made_result, open_job, rich_job
from served_viewer import served

expect.set_options(timeout=60_000)
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PAGES = {
    "jobs": ("/", "Jobs"),
    "job": ("/job/first", "first"),
    "job with an odd name": ("/job/second%20%232%20%26%20%3Cb%3E", "second #2 & <b>"),
    "filtered": ("/job/first?reward=partial&sort=-reward", "first"),
    "rollout": ("/job/first/rollout/parser__2__b", "parser"),
    "reward": ("/job/first/rollout/parser__2__b?tab=reward", "parser"),
    "verifier": ("/job/first/rollout/parser__2__b?tab=verifier", "parser"),
    "files": ("/job/first/rollout/parser__2__b?tab=files", "parser"),
    "changes": ("/job/first/rollout/parser__2__b?tab=changes", "parser"),
    "calls": ("/job/first/rollout/parser__2__b?tab=calls", "parser"),
    "details": ("/job/first/rollout/parser__2__b?tab=details", "parser"),
    "unscored": ("/job/first/rollout/words__1__c?tab=reward", "words"),
    "tree": ("/job/first/rollout/tree__1__d/tree", "Tree of tree"),
    "games": ("/job/games", "games"),
    "arena": ("/job/games/rollout/haggle__1__1?tab=arena", "haggle"),
    "game without messages": ("/job/games/rollout/haggle__3__13?tab=arena", "haggle"),
    "task": ("/job/first/task?name=parser", "parser"),
    "compare": ("/compare?job=first&job=second%20%232%20%26%20%3Cb%3E", "Compare"),
    "package": ("/job/first/package?task=parser", "parser"),
    "evidence": ("/job/first/evidence?task=parser", "Evidence of parser"),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed with this module: while it is open, its event loop keeps tests of other modules from running theirs."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "the tests of the viewer need chromium; scripts/system-packages installs it"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS, timeout=120_000)
        yield started
        started.close()


class Watched:
    """A page with everything that must not happen."""

    def __init__(self, context: BrowserContext) -> None:
        self.outside: list[str] = []
        self.errors: list[str] = []
        context.set_default_timeout(60_000)
        self.page: Page = context.new_page()
        self.page.on("request", self._request)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None
        )

    def _request(self, request: object) -> None:
        url = str(getattr(request, "url", ""))
        if not url.startswith(("http://127.0.0.1:", "data:", "file:")):
            self.outside.append(url)

    def require_nothing(self) -> None:
        assert (self.outside, self.errors) == ([], [])
        assert "owned" not in self.page.title()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    made = Watched(context)
    yield made
    context.close()


def test_every_page_shows_hostile_text_as_text_and_asks_nobody_else(watched: Watched, shown: str) -> None:
    page = watched.page
    for name, (path, title) in PAGES.items():
        page.goto(shown + path)
        expect(page.get_by_role("heading", level=1), name).to_contain_text(title)
        assert page.locator("#page script, #page img[onerror], #page a[href^='javascript']").count() == 0, name
        unnamed = page.locator("button, a, input:not([type=hidden]), select").evaluate_all(
            """all => all.filter(e => ![e.innerText, e.textContent, e.ariaLabel, e.title, e.labels?.[0]?.innerText]
                 .some(name => name?.trim())).map(e => e.outerHTML)"""
        )
        assert unnamed == [], name
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{name} scrolls sideways on a phone"
        page.set_viewport_size({"width": 1300, "height": 900})
        watched.require_nothing()
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"


def test_keys_walk_rows_rollouts_filters_and_tabs_and_the_address_keeps_them(watched: Watched, shown: str) -> None:
    page = watched.page
    page.goto(f"{shown}/job/first")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("parser")
    expect(page.get_by_role("status").filter(has_text="2 of 4 rollouts")).to_be_visible()
    assert "q=parser" in page.url
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tr.selected")).to_contain_text("0.6")
    page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.keyboard.press("2")
    expect(page.get_by_role("cell", name="3 of 5")).to_be_visible()
    page.keyboard.press("p")
    expect(page.get_by_text("1 of 2")).to_be_visible()
    assert "tab=reward" in page.url
    assert "q=parser" in page.url
    page.keyboard.press("1")
    expect(page.locator(".part.thought").first).to_be_visible()
    page.keyboard.press("t")
    expect(page.locator(".part.thought")).to_have_count(0)
    assert "hide=thoughts" in page.url
    page.reload()
    expect(page.get_by_role("checkbox", name="Thoughts")).to_have_attribute("aria-checked", "false")
    page.keyboard.press("u")
    expect(page.get_by_role("heading", level=1)).to_contain_text("first")
    page.go_back()
    expect(page.get_by_role("checkbox", name="Thoughts")).to_be_visible()
    watched.require_nothing()


def test_facets_sort_and_long_texts_work_with_the_mouse(watched: Watched, shown: str) -> None:
    page = watched.page
    page.goto(f"{shown}/job/first")
    page.get_by_role("checkbox", name="partial reward").click()
    expect(page.get_by_role("status").filter(has_text="2 of 4 rollouts")).to_be_visible()
    page.get_by_role("link", name="Clear all filters").click()
    page.get_by_role("link", name="Reward", exact=True).click()
    expect(page.get_by_role("columnheader", name="Reward")).to_have_attribute("aria-sort", "ascending")
    page.goto(f"{shown}/job/first/rollout/parser__2__b")
    page.get_by_text("show all").click()
    expect(page.locator("#part pre")).to_contain_text("word word")
    page.get_by_role("searchbox").fill("red")
    expect(page.locator(".step")).to_have_count(1)
    page.get_by_role("link", name="Model calls").click()
    page.get_by_text("Request", exact=True).first.click()
    page.get_by_text("messages[0]").click()
    expect(page.locator("#part #part pre")).to_contain_text("rule rule")
    watched.require_nothing()


def test_pages_work_without_scripts(browser: Browser, shown: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{shown}/job/first")
    page.get_by_role("checkbox", name="partial reward").click()
    page.get_by_role("link", name="parser").click()
    page.get_by_role("link", name="Verifier").click()
    expect(page.get_by_text("FAILED test_a.py::test_forms")).to_be_visible()
    page.get_by_role("link", name="Model calls").click()
    page.get_by_text("Answer", exact=True).first.click()
    page.get_by_role("link", name="Open it").click()
    expect(page.locator("#part pre")).to_contain_text("answer 1")
    page.goto(f"{shown}/job/games")
    expect(page.get_by_role("cell", name="below -")).to_be_visible()
    page.get_by_role("link", name="haggle").first.click()
    page.get_by_role("link", name="Arena").click()
    expect(page.get_by_role("img", name="umpire to buyer: 4")).to_be_visible()
    page.get_by_text("show it").click()
    page.get_by_role("link", name="Open it").click()
    expect(page.locator("#part pre")).to_contain_text("a long letter")
    context.close()


def test_a_running_job_appears_grows_and_vanishes_and_the_page_survives_a_restart(watched: Watched, jobs: Path) -> None:
    page = watched.page
    store = open_job(jobs, "live", 3)
    add_rollout(store, "now__1__a", None, said=conversation("Still working."))
    with served(jobs) as url:
        port = int(url.rpartition(":")[2])
        page.goto(f"{url}/job/live")
        expect(page.get_by_role("region", name="Running now")).to_contain_text("now__1__a")
        add_rollout(store, "done__1__b", made_result("done"), said=conversation())
        expect(page.get_by_role("link", name="done")).to_be_visible()
        expect(page.get_by_text("1 of 3 finished")).to_be_visible()
    expect(page.locator("#status")).to_contain_text("does not answer")
    add_rollout(store, "late__1__c", made_result("late"), said=conversation())
    watched.errors.clear()
    with served(jobs, port):
        expect(page.get_by_role("link", name="late")).to_be_visible()
        expect(page.locator("#status")).to_have_text("")
        store.close()
        expect(page.get_by_text("unfinished")).to_be_visible()
        shutil.rmtree(store.folder)
        expect(page.locator("#status")).to_contain_text("no longer there")


def test_an_exported_file_opens_from_disk_with_everything_and_runs_nothing(
    watched: Watched, jobs: Path, tmp_path: Path
) -> None:
    rich_job(jobs, "first")
    for name, what in (("rollout.html", {"rollout": "first/parser__2__b"}), ("job.html", {"job": "first"})):
        export_html(jobs, tmp_path / name, **what)  # type: ignore[arg-type]
        watched.page.goto((tmp_path / name).as_uri())
        expect(watched.page.get_by_role("heading", level=1)).to_be_visible()
        watched.require_nothing()
    arena_job(jobs, "games")
    for name, what in (("game.html", {"rollout": "games/haggle__1__1"}), ("games.html", {"job": "games"})):
        export_html(jobs, tmp_path / name, **what)  # type: ignore[arg-type]
        watched.page.goto((tmp_path / name).as_uri())
        watched.require_nothing()
    expect(watched.page.get_by_role("cell", name="below -")).to_be_visible()
    watched.page.goto((tmp_path / "game.html").as_uri())
    expect(watched.page.get_by_role("img", name="umpire to buyer: 4")).to_be_visible()
    expect(watched.page.get_by_text("seller → umpire").last).to_be_visible()
    watched.page.goto((tmp_path / "rollout.html").as_uri())
    expect(watched.page.get_by_text("FAILED test_a.py::test_forms").first).to_be_visible()
    assert HOSTILE in watched.page.inner_text("#page")
