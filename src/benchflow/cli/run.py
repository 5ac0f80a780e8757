"""`bench run`: one agent on one package."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import click

from benchflow.cli.arguments import PATH, json_option, refuse_model
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.preflight import note_markers
from benchflow.cli.terminal import emit, emit_json, is_terminal, printable, style
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.record import Result
    from benchflow.rollout.config import RolloutConfig
    from benchflow.task.package import TaskPackage

_ERASE: Final = "\r\x1b[2K"
_SAID: Final = {
    "plan": "planning",
    "environment": "starting the environment",
    "agent": "the agent works",
    "verify": "verifying",
    "record": "writing the record",
}


@click.command()
@click.argument("package", metavar="PACKAGE", type=PATH)
@click.option("--agent", default="oracle", show_default=True, metavar="NAME[:ARGUMENT]", help="Who works on the task.")
@click.option("--model", metavar="MODEL", help="The model of the agent.")
@click.option("--sandbox", default="auto", show_default=True, metavar="NAME", help="Where it runs.")
@click.option("--base-image", metavar="host|NAME", help="What to take for an image that nobody has.")
@click.option("--out", default="jobs", show_default=True, type=PATH, metavar="DIR", help="Where the folder is made.")
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="Say this instead; repeat for more turns.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SEC", help="Time of the whole run.")
@click.option("--agent-timeout", type=click.FloatRange(min=0, min_open=True), metavar="SEC", help="Time of the agent.")
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Most steps of a model agent.")
@click.option("--max-cost", type=click.FloatRange(min=0, min_open=True), metavar="USD", help="Most a model may cost.")
@click.option(
    "--workspace/--no-workspace", default=True, show_default=True, help="Keep what the agent leaves beside the record."
)
@json_option
def run(package: Path, out: Path, as_json: bool, **options: Any) -> int:
    """Run one agent on one package and score what it did.

    Makes one folder below DIR with the record, the trajectory and everything the verifier left. Ends with 0 when the
    rollout was scored, whatever the reward, with 1 when it was not, and with 2 when it was refused before launch.
    """
    from benchflow.cli.tasks.selection import one_package
    from benchflow.task.package import load_package

    refuse_model(options["agent"], options["model"])
    _require_place(out)
    loaded = load_package(one_package(package))
    note_markers(loaded, str(package), options["agent"])
    result, folder = _run(loaded, _config(loaded, options), out)
    if as_json:
        emit_json({**result.to_dict(), "rollout": folder.name})
    else:
        emit("\n".join(_lines(result, folder)))
    return GOOD if result.status == "scored" else FAILED


def _require_place(out: Path) -> None:
    """Refuse a folder that cannot be made, before anything is started."""
    place = next((path for path in (out, *out.absolute().parents) if os.path.lexists(path)), Path("/"))
    if not place.is_dir():
        raise UsageError(f"--out {out} cannot be a folder: {place} is none.", code="out-unwritable")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"--out {out} cannot be written: {place} is not yours to write.", code="out-unwritable")


def _config(package: TaskPackage, options: dict[str, Any]) -> RolloutConfig:
    from benchflow.agents.protocol import AgentLimits
    from benchflow.rollout.config import RolloutConfig

    return RolloutConfig(
        task=package,
        agent=options["agent"],
        model=options["model"],
        sandbox=options["sandbox"],
        base_image=options["base_image"],
        prompts=options["prompts"] or None,
        timeout_sec=options["timeout"],
        agent_timeout_sec=options["agent_timeout"],
        limits=AgentLimits(max_steps=options["max_steps"], max_cost_usd=options["max_cost"]),
        task_path=str(package.path),
        keep_workspace=options["workspace"],
    )


def _run(package: TaskPackage, config: RolloutConfig, out: Path) -> tuple[Result, Path]:
    """The result and its folder; what is refused before launch is raised, and nothing is written."""
    import anyio

    from benchflow.evaluation.work import rollout_name
    from benchflow.rollout.rollout import Rollout

    folder = out / rollout_name(package.name, config.attempt)
    with PhaseLine() as line:
        result = anyio.run(lambda: Rollout(config, folder, on_phase=line.show).run(raise_refusals=True))
    return result, folder


class PhaseLine:
    """One line on stderr that says what is going on and for how long, on a terminal only."""

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


def _lines(result: Result, folder: Path) -> list[str]:
    """The result for people: what came out, how, and where to look."""
    agent = result.agent.name + (f" ({result.agent.model})" if result.agent.model else "")
    lines = [f"{printable(result.task.name)}  {style(printable(agent), 'dim')}"]
    if result.error is None:
        lines.append(style(f"  reward {result.reward:g}", "green" if (result.reward or 0) > 0 else "yellow"))
    else:
        error = result.error
        lines.append(style(f"  unscored: {error.category}/{error.code} in phase {error.phase}", "red"))
        lines.append(f"  {printable(error.message)}")
    lines += [f"  {name} {value:g}" for name, value in result.rewards.items() if name != "reward"]
    if result.agent.timed_out:
        lines.append("  the agent ran out of time")
    elif result.agent.exit_code:
        lines.append(f"  the agent ended with exit code {result.agent.exit_code}")
    lines += _notes(result)
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.timing.items() if seconds >= 0.05)
    where = [f"  {printable(str(folder))}"] if folder.is_dir() else []
    return [*lines, *([f"  {spent}"] if spent else []), *where]


def _notes(result: Result) -> list[str]:
    verifier = result.verifier
    notes = [f"  note: {printable(issue.message)}" for issue in verifier.diagnostics] if verifier is not None else []
    lost = verifier.not_carried_over.total if verifier is not None else 0
    if lost:
        notes.append(f"  note: the verifier did not see {lost} of the agent's changes; result.json lists them")
    if result.sandbox.fidelity == "substituted":
        notes.append(f"  note: ran on {result.sandbox.base} instead of the image that the package names")
    failed = result.notes.cleanup
    return notes + [f"  note: the {part.what} was not cleaned up: {printable(part.message)}" for part in failed]
