"""What the tests of the viewer share: folders of jobs, and a viewer of some of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from benchflow.view.view_app import open_viewer, viewer_app
from made_jobs import arena_job, rich_job
from served_viewer import served

EXAMPLES = Path(__file__).parents[2] / "examples/packages"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    folder = tmp_path / "jobs"
    folder.mkdir()
    return folder


@pytest.fixture
def client() -> Callable[[Path], TestClient]:
    """A client of the viewer of a folder, without a socket."""
    return lambda folder: TestClient(viewer_app(open_viewer(folder)), base_url="http://127.0.0.1")


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A viewer of three jobs; one of them ran a real package with evidence, another one is of games."""
    folder = tmp_path_factory.mktemp("shown")
    shutil.copytree(EXAMPLES / "fix-parser", folder / "packages/fix-parser")
    jobs = folder / "jobs"
    jobs.mkdir()
    rich_job(jobs, "first", directory=str(folder), package="packages/fix-parser")
    rich_job(jobs, "second #2 & <b>")
    arena_job(jobs, "games")
    with served(jobs) as url:
        yield url
