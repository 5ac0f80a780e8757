"""The server's side of `cube.server_process`: `python -m cube.serving HOST PORT`.

Reads one line of JSON (the job), creates the application, prints the URL once it listens, and serves until its standard
input closes or a signal arrives.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import TextIO

import uvicorn
from starlette.applications import Starlette

from cube.server import app_for


def main() -> int:
    """Serve the job on standard input until that closes."""
    host, port = sys.argv[1], int(sys.argv[2])
    leash, answer = _private_streams()
    try:
        job = json.loads(leash.readline())
        listener = socket.create_server((host, port))
        app, close = app_for(job, host)
    except Exception as error:  # noqa: BLE001  # reported to the parent process, in one line
        answer.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        answer.flush()
        return 1
    with listener:
        serve(app, close, listener, announce=answer, leash=leash)
    return 0


def _private_streams() -> tuple[TextIO, TextIO]:
    """The pipes to the parent process, out of reach of the code that is served.

    From here on, output of a task goes to standard error and its child processes get an empty standard input. They can
    neither mix with the reply, nor fill a pipe that nobody reads, nor close the pipe that keeps the server alive.
    """
    leash, answer = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return leash, answer


def serve(
    app: Starlette, close: Callable[[], None], listener: socket.socket, *, announce: TextIO, leash: TextIO | None = None
) -> None:
    """Print the URL, serve until a signal arrives or standard input closes, then close the application."""
    host, port = listener.getsockname()[:2]
    try:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))

        def hold(leash: TextIO) -> None:
            leash.read()
            server.should_exit = True

        if leash:
            threading.Thread(target=hold, args=(leash,), daemon=True).start()
        announce.write(f"http://{host}:{port}\n")
        announce.flush()
        server.run(sockets=[listener])
    finally:
        close()


if __name__ == "__main__":
    sys.exit(main())
