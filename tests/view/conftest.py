"""What the tests of the viewer share: a folder of jobs, the viewer on a real socket, and one browser a session."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.testclient import TestClient

from benchflow.view.view_app import open_viewer, viewer_app
from benchflow.view.view_server import listen, url_of
from made_jobs import rich_job

EXAMPLES = Path(__file__).parents[2] / "examples/packages"
Served = Callable[[Path], str]


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    folder = tmp_path / "jobs"
    folder.mkdir()
    return folder


@pytest.fixture
def client() -> Callable[[Path], TestClient]:
    """A client of the viewer of a folder, without a socket."""
    return lambda folder: TestClient(viewer_app(open_viewer(folder)), base_url="http://127.0.0.1")


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[str]:
    """The viewer of a folder on a socket of its own; its address without the last slash."""
    listener = listen("127.0.0.1", port)
    config = uvicorn.Config(viewer_app(open_viewer(folder)), log_level="warning", lifespan="off", ws="none", http="h11")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield url_of(listener).rstrip("/")
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def serving() -> Iterator[Served]:
    """Serves folders until the test is over."""
    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(served(folder))


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A viewer of two jobs; one of them ran a real package with evidence."""
    folder = tmp_path_factory.mktemp("shown")
    shutil.copytree(EXAMPLES / "fix-parser", folder / "packages/fix-parser")
    jobs = folder / "jobs"
    jobs.mkdir()
    rich_job(jobs, "first", directory=str(folder), package="packages/fix-parser")
    rich_job(jobs, "second #2 & <b>")
    with served(jobs) as url:
        yield url
