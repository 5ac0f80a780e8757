"""`bench run`: one agent on one package."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import click

from benchflow.cli.arguments import PATH, isolation_option, json_option, refuse_model
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.machine_settings import machine_settings_option
from benchflow.cli.preflight import note_markers
from benchflow.cli.pull_lines import PullLines, pull_option
from benchflow.cli.terminal import emit, emit_json, is_terminal
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.record import Result
    from benchflow.rollout.config import RolloutConfig
    from benchflow.task.package import TaskPackage

_POSITIVE: Final = click.FloatRange(min=0, min_open=True)
_ERASE: Final = "\r\x1b[2K"
_SAID: Final = {
    "proof": "proving the isolation of the verifier",
    "plan": "planning",
    "environment": "starting the environment",
    "agent": "running the agent",
    "verify": "verifying",
    "record": "writing the record",
}


@click.command()
@click.argument("package", metavar="PACKAGE", type=PATH)
@click.option("--agent", default="oracle", show_default=True, metavar="NAME[:ARGUMENT]", help="See `bench agents`.")
@click.option("--model", metavar="MODEL", help="Model of the agent.")
@click.option("--sandbox", default="auto", show_default=True, metavar="NAME", help="Where it runs.")
@click.option("--base-image", metavar="host|NAME", help="Substitute for a base image that is not available.")
@pull_option
@machine_settings_option
@isolation_option
@click.option("--out", default="jobs", show_default=True, type=PATH, metavar="DIR", help="Parent of the new folder.")
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="Replace the prompt; repeat for more turns.")
@click.option("--timeout", type=_POSITIVE, metavar="SEC", help="Time limit of the whole run.")
@click.option("--agent-timeout", type=_POSITIVE, metavar="SEC", help="Time limit of the agent.")
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Maximum number of steps of a model agent.")
@click.option("--max-cost", type=_POSITIVE, metavar="USD", help="Maximum model cost in US dollars.")
@click.option("--workspace/--no-workspace", default=True, show_default=True, help="Keep the workspace for rescoring.")
@json_option
def run(package: Path, out: Path, as_json: bool, **options: Any) -> int:
    """Run one agent on one package and score what it did.

    PACKAGE is a folder, or FILE:PATH for a package in a bundle or a Harbor registry file.
    Creates a folder below --out with the record, the trajectory and the verifier's output. Exits with 0 if the rollout
    was scored (whatever the reward), with 1 if it was not, and with 2 if it was refused before launch.
    """
    from benchflow.cli.rollout_view import result_lines
    from benchflow.cli.tasks.selection import one_package
    from benchflow.task.package import load_package

    refuse_model(options["agent"], options["model"])
    _require_place(out)
    found = one_package(package)
    loaded = load_package(found.path)
    note_markers(loaded, found.shown, options["agent"])
    result, folder = _run(loaded, _config(loaded, found.shown, options), out)
    if as_json:
        emit_json({**result.to_dict(), "rollout": folder.name})
    else:
        emit("\n".join(result_lines(result, folder)))
    return GOOD if result.status == "scored" else FAILED


def _require_place(out: Path) -> None:
    """Refuse a folder that cannot be created, before anything is started."""
    place = next((path for path in (out, *out.absolute().parents) if os.path.lexists(path)), Path("/"))
    if not place.is_dir():
        raise UsageError(f"--out {out} cannot be created: {place} is not a folder.", code="out-unwritable")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"--out {out} cannot be created: {place} is not writable.", code="out-unwritable")


def _config(package: TaskPackage, shown: str, options: dict[str, Any]) -> RolloutConfig:
    from benchflow.agents.protocol import AgentLimits
    from benchflow.rollout.config import RolloutConfig
    from benchflow.sandbox.pulling import PullSettings

    return RolloutConfig(
        task=package,
        agent=options["agent"],
        model=options["model"],
        sandbox=options["sandbox"],
        base_image=options["base_image"],
        pull=PullSettings(options["pull"], on_progress=PullLines().show, ask_again_sec=None),
        isolation=options["isolation"],
        prompts=options["prompts"] or None,
        timeout_sec=options["timeout"],
        agent_timeout_sec=options["agent_timeout"],
        limits=AgentLimits(max_steps=options["max_steps"], max_cost_usd=options["max_cost"]),
        task_path=shown,
        keep_workspace=options["workspace"],
    )


def _run(package: TaskPackage, config: RolloutConfig, out: Path) -> tuple[Result, Path]:
    """The result and its folder; a refusal before launch is raised, and nothing is written."""
    import anyio

    from benchflow.record.layout import rollout_name
    from benchflow.rollout.rollout import Rollout

    folder = out / rollout_name(package.name, config.attempt)
    with PhaseLine() as line:
        result = anyio.run(lambda: Rollout(config, folder, on_phase=line.show).run(raise_refusals=True))
    return result, folder


class PhaseLine:
    """One line on stderr with the current phase and the elapsed time, on a terminal only."""

    def __init__(self) -> None:
        self._enabled = is_terminal(sys.stderr)
        self._began = time.monotonic()

    def show(self, phase: str) -> None:
        """A phase begins."""
        if self._enabled:
            sys.stderr.write(f"{_ERASE}{time.monotonic() - self._began:5.1f} s  {_SAID[phase]} …")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._enabled:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()
