"""`bench serve openenv`: packages and cubes for clients of OpenEnv."""

from __future__ import annotations

from typing import Any

import click

from benchflow.cli.failures import GOOD
from benchflow.cli.serve.serving_options import ServingOptions, background, serving_options


@click.command()
@serving_options
def openenv(**values: Any) -> int:
    """Serve packages and cubes to OpenEnv clients: reset, step and state over a WebSocket.

    Every PATH (a package, a folder above packages, a bundle) and every cube:NAME is one environment; the first is the
    default. A reset names a task, or its seed selects one. Clients send the token as a header, or in the URL:
    http://any:TOKEN@HOST:PORT.
    """
    options = ServingOptions(**values)
    opener = options.opener()
    from benchflow.serve.http_server import Application, serve
    from benchflow.serve.openenv.openenv_app import OpenEnvServer

    sessions = options.sessions(opener)
    port = options.open_port()
    say = options.announcement("openenv", "over OpenEnv", opener, port)
    app = OpenEnvServer(opener.tasks, sessions).app()
    serve([Application(app, port, websockets=True)], background(opener, sessions), say, sessions.log)
    return GOOD
