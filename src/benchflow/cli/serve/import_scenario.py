"""`bench tasks import-scenario`: a scenario file of AgentBeats as a package."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from benchflow.cli.arguments import PATH, json_option
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.terminal import emit, emit_json, printable, style


@click.command("import-scenario")
@click.argument("scenario", metavar="FILE", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option("--name", metavar="NAME", help="Name of the task; default: scenarios/ and the name of the folder OUT.")
@json_option
def import_scenario(scenario: Path, output: Path, name: str | None, as_json: bool) -> int:
    """Write the scenario in FILE as an arena package to the folder OUT.

    The green agent becomes the assessor, in verifier/ with the folder of its program; each participant becomes a role,
    and the first is the one that --agent plays. What a package cannot keep is reported as a loss. Exits with 1 if the
    package cannot run as it is.
    """
    from benchflow.task.interop.scenarios.scenario_import import import_scenario as write_package

    losses = write_package(scenario, output, name)
    refused = any(loss.severity == "refusal" for loss in losses)
    if as_json:
        emit_json({"path": str(output), "scenario": str(scenario), "losses": [asdict(loss) for loss in losses]})
    else:
        emit(f"Imported {printable(str(scenario))} to {printable(str(output))}")
        for loss in losses:
            severity = style(loss.severity, "yellow" if loss.severity == "warning" else "red")
            emit(f"     {severity}: {printable(loss.path)}: {printable(loss.reason)}")
    return FAILED if refused else GOOD
