"""The viewer on a real socket, for tests that ask it as a browser does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from benchflow.view.view_app import open_viewer, viewer_app
from benchflow.view.view_server import listen, url_of


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
