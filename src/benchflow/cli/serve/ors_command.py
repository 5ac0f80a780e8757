"""`bench serve ors`: packages and cubes over the Open Reward Standard."""

from __future__ import annotations

from typing import Any

import click

from benchflow.cli.failures import GOOD
from benchflow.cli.serve.serving_options import ServingOptions, background, serving_options


@click.command()
@serving_options
def ors(**values: Any) -> int:
    """Serve packages and cubes over the Open Reward Standard (ORS), for trainers such as TRL.

    Every PATH (a package, a folder above packages, a bundle) and every cube:NAME is one environment; the first is the
    default. Clients that cannot send a token need --no-token, which works on loopback only.
    """
    options = ServingOptions(**values)
    opener = options.opener()
    from benchflow.serve.http_server import Application, serve
    from benchflow.serve.ors.ors_app import KEY_HEADER, ors_app

    sessions = options.sessions(opener)
    port = options.open_port()
    say = options.announcement("ors", "over ORS", opener, port)
    serve(
        [Application(ors_app(opener.tasks, sessions), port, KEY_HEADER)],
        background(opener, sessions),
        say,
        sessions.log,
    )
    return GOOD
