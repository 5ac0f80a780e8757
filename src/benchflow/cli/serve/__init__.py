"""`bench serve`: packages and cubes over the wires that trainers and harnesses speak; one module per wire."""

from __future__ import annotations

import click

from benchflow.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "ors": Lazy("benchflow.cli.serve.ors_command:ors", "Serve tasks over the Open Reward Standard (ORS)."),
    "openenv": Lazy("benchflow.cli.serve.openenv_command:openenv", "Serve tasks to OpenEnv clients."),
    "nemo-gym": Lazy("benchflow.cli.serve.nemo_gym_command:nemo_gym", "Serve tasks as a NeMo Gym resources server."),
    "a2a": Lazy("benchflow.cli.serve.a2a_command:a2a", "Serve the assessor of an arena package over A2A."),
    "mcp": Lazy("benchflow.cli.serve.mcp_command:mcp", "Serve a task to one agent over MCP."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def serve_group() -> None:
    """Serve packages, cubes and games to trainers, harnesses and agents."""
