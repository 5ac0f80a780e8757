"""`bench serve nemo-gym`: packages and cubes as a resources server of NeMo Gym."""

from __future__ import annotations

from typing import Any

import click

from benchflow.cli.failures import GOOD
from benchflow.cli.serve.serving_options import ServingOptions, background, serving_options


@click.command("nemo-gym")
@click.option(
    "--unscored",
    type=click.Choice(["error", "mask"]),
    default="error",
    show_default=True,
    help="For an episode without a score, return an error or a marked placeholder.",
)
@serving_options
def nemo_gym(unscored: str, **values: Any) -> int:
    """Serve packages and cubes as a NeMo Gym resources server.

    GET /rows returns a dataset of all tasks. The protocol requires a number as the reward: for an episode without a
    score, the server returns status 500 and the reason, or with --unscored mask, 0.0 and the marks that make NeMo Gym
    and NeMo RL ignore the rollout. NeMo Gym agents send the token as the password in the host: any:TOKEN@HOST.
    """
    options = ServingOptions(**values)
    opener = options.opener()
    from benchflow.serve.http_server import Application, serve
    from benchflow.serve.nemo_gym.nemo_plays import nemo_gym_server

    sessions = options.sessions(opener)
    server = nemo_gym_server(opener.tasks, sessions, reap_sec=options.reap_after, mask_unscored=unscored == "mask")
    port = options.open_port()
    say = options.announcement("nemo-gym", "to NeMo Gym", opener, port)
    serve([Application(server.app(), port)], background(opener, sessions, server.running), say, sessions.log)
    return GOOD
