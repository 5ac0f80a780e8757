"""`bench serve`: packages and cubes over the wires that trainers and harnesses speak; one module per wire."""

from __future__ import annotations

import click

from benchflow.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "ors": Lazy("benchflow.cli.serve.ors_command:ors", "Serve tasks over the Open Reward Standard (ORS)."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def serve_group() -> None:
    """Serve packages and cubes to trainers and harnesses."""
