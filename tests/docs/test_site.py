"""The documentation builds without a warning, and the site needs nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PATH = ["Install", "First package", "Check", "Prove", "Run an agent", "Look", "Train", "Publish"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_site_loads_nothing_from_elsewhere(built: Path) -> None:
    loaded = [
        (page.name, found[1])
        for page in built.rglob("*.html")
        for found in re.finditer(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"([^\"]+)\"", page.read_text())
    ]
    assert loaded
    assert [(page, address) for page, address in loaded if re.match(r"(https?:)?//", address)] == []
    styles = "".join(style.read_text() for style in built.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*", styles) == []


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_every_page_and_heading_is_found_by_search(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert found == pages
    assert (built / "search" / "search_index.js").is_file(), "pages that are opened as files cannot search"


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_side_bar_shows_the_path_in_its_order(built: Path) -> None:
    side = (built / "index.html").read_text().partition("md-nav--primary")[2]
    places = [re.search(rf">\s*{name}\s*<", side) for name in PATH]
    assert all(places)
    assert [place.start() for place in places if place] == sorted(place.start() for place in places if place)


def test_the_documented_version_is_the_one_that_is_built() -> None:
    named = re.findall(r"benchcube-([\d.]+)-py3", (ROOT / "docs" / "install.md").read_text())
    assert set(named) == {VERSION}
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(VERSION)} – \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE)
