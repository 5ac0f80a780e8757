"""The server's side of `cube.server_process`: `python -m cube.serving HOST PORT`.

Reads one line of JSON (the job), makes what it asks for, prints the URL once it listens, and serves until its standard
input closes or a signal comes.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO

import uvicorn

from cube.server import app_for


def main() -> int:
    """Serve the job on standard input until that closes."""
    host, port = sys.argv[1], int(sys.argv[2])
    try:
        job = json.loads(sys.stdin.readline())
        listener = socket.create_server((host, port))
    except (ValueError, OSError) as error:
        sys.stdout.write(f"{error}\n")
        return 1
    with listener:
        return serve(job, listener, leash=sys.stdin)


def serve(job: Mapping[str, Any], listener: socket.socket, *, leash: TextIO | None = None) -> int:
    """Make what the job asks for, announce the URL, serve until a signal comes or the leash is let go."""
    host, port = listener.getsockname()[:2]
    try:
        app, close = app_for(job, host)
    except Exception as error:  # noqa: BLE001  # told to whoever started this process, in one line
        sys.stdout.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    try:
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)

        def hold(leash: TextIO) -> None:
            leash.read()
            server.should_exit = True

        if leash:
            threading.Thread(target=hold, args=(leash,), daemon=True).start()
        sys.stdout.write(f"http://{host}:{port}\n")
        sys.stdout.flush()
        server.run(sockets=[listener])
    finally:
        close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
