"""`bench run`: one agent on one package."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from benchflow.cli.arguments import PATH, isolation_option, json_option, refuse_model
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.machine_settings import machine_settings_option
from benchflow.cli.preflight import note_markers
from benchflow.cli.pull_lines import PullLines, pull_option
from benchflow.cli.rollouts.model_options import call_limit_options, call_limits, replay_book, replay_options
from benchflow.cli.rollouts.participant_option import named_players, participant_option
from benchflow.cli.terminal import emit, emit_json, is_terminal, printable, shortened
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.agents.protocol import PermissionHandler
    from benchflow.models.gateway.replay_book import ReplayBook
    from benchflow.record import Result
    from benchflow.rollout.config import RolloutConfig
    from benchflow.sandbox.protocol import SandboxBackend
    from benchflow.task.package import TaskPackage

_POSITIVE: Final = click.FloatRange(min=0, min_open=True)
_ERASE: Final = "\r\x1b[2K"
_TICK: Final = 0.5
_QUICK: Final = ("oracle", "nop")
"""Agents that are never refused and take so little time that the start of the sandbox matters."""
_GARBAGE: Final = 100_000
"""Objects between two searches for garbage: what one rollout loads and creates is not searched."""
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
@click.option(
    "--agent", default="oracle", show_default=True, metavar="NAME[:ARGUMENT]", help="Agent to run; see `bench agents`."
)
@click.option("--model", metavar="MODEL", help="Model for the agent.")
@participant_option
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="Seed for the game of an arena; a seed in the package takes precedence.",
)
@click.option(
    "--sandbox", default="auto", show_default=True, metavar="NAME", help="Sandbox to use; see `bench sandboxes`."
)
@click.option("--base-image", metavar="host|NAME", help="Substitute for a base image that is not available.")
@pull_option
@machine_settings_option
@isolation_option
@click.option(
    "--out",
    default="jobs",
    show_default=True,
    type=PATH,
    metavar="DIR",
    help="Create the rollout folder below this folder.",
)
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="Replace the prompt; repeat for more turns.")
@click.option("--timeout", type=_POSITIVE, metavar="SEC", help="Time limit for the whole run.")
@click.option("--agent-timeout", type=_POSITIVE, metavar="SEC", help="Time limit for the agent.")
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Maximum number of steps for a model agent.")
@call_limit_options
@replay_options
@click.option("--workspace/--no-workspace", default=True, show_default=True, help="Keep the workspace for rescoring.")
@json_option
def run(package: Path, out: Path, as_json: bool, **options: Any) -> int:
    """Run one agent on one package and score its work.

    PACKAGE is a folder, or FILE:PATH for a package in a bundle or a Harbor registry file.
    Creates a folder below --out with the record, the trajectory and the verifier's output. Exits with 0 if the rollout
    was scored (whatever the reward), with 1 if it was not, and with 2 if it was refused before launch.
    """
    gc.set_threshold(_GARBAGE)
    import anyio

    from benchflow.cli.rollouts.confirmations import confirmation_handler
    from benchflow.cli.rollouts.rollout_view import result_lines
    from benchflow.cli.tasks.selection import one_package
    from benchflow.sandbox.factory import start_ahead
    from benchflow.sandbox.pulling import PullSettings
    from benchflow.task.package import load_package

    refuse_model(options["agent"], options["model"])
    _require_place(out)
    found = one_package(package)
    loaded = load_package(found.path)
    book = replay_book(options["replay"], options["replay_mode"], out)
    pull = PullSettings(options["pull"], on_progress=PullLines().show, ask_again_sec=None)
    started = None
    if options["agent"] in _QUICK:
        started = start_ahead(loaded, options["sandbox"], base_image=options["base_image"], pull=pull)
    try:
        note_markers(loaded, found.shown, options["agent"])
        line = PhaseLine()
        asked = confirmation_handler(loaded, options["agent"], line.paused)
        config = _config(loaded, found.shown, {**options, "pull": pull}, asked, book)
        result, folder = _run(loaded, config, out, line, started)
    except BaseException:
        if started is not None:
            anyio.run(started.close)
        raise
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


def _config(
    package: TaskPackage,
    shown: str,
    options: dict[str, Any],
    asked: PermissionHandler | None,
    book: ReplayBook | None,
) -> RolloutConfig:
    from benchflow.agents.protocol import AgentLimits
    from benchflow.rollout.config import RolloutConfig

    return RolloutConfig(
        task=package,
        agent=options["agent"],
        model=options["model"],
        participants=named_players(options["participants"]),
        seed=options["seed"],
        sandbox=options["sandbox"],
        base_image=options["base_image"],
        pull=options["pull"],
        isolation=options["isolation"],
        prompts=options["prompts"] or None,
        timeout_sec=options["timeout"],
        agent_timeout_sec=options["agent_timeout"],
        limits=AgentLimits(max_steps=options["max_steps"], max_cost_usd=options["max_cost_usd"]),
        call_limits=call_limits(options),
        token_ids=options["token_ids"],
        replay=book,
        task_path=shown,
        keep_workspace=options["workspace"],
        on_ask_user=asked,
    )


def _run(
    package: TaskPackage, config: RolloutConfig, out: Path, line: PhaseLine, started: SandboxBackend | None
) -> tuple[Result, Path]:
    """The result and its folder; a refusal before launch is raised, and nothing is written."""
    import anyio

    from benchflow.record.layout import rollout_name
    from benchflow.rollout.rollout import Rollout

    folder = out / rollout_name(package.name, config.attempt)
    with line.watching(folder):
        rollout = Rollout(config, folder, on_phase=line.show, started=started)
        result = anyio.run(lambda: rollout.run(raise_refusals=True))
    return result, folder


class PhaseLine:
    """One line on stderr with the current phase, the elapsed time and the agent's last action, on a terminal only."""

    def __init__(self) -> None:
        self._enabled = is_terminal(sys.stderr)
        self._began = time.monotonic()
        self._phase = ""
        self._last = ""
        self._drawing: Final = threading.RLock()
        """The line is drawn by the rollout's thread and by the one that looks at its folder."""
        self._ended: Final = threading.Event()

    def show(self, phase: str) -> None:
        """A phase begins."""
        self._phase, self._last = _SAID[phase], ""
        self._draw()

    @contextmanager
    def watching(self, folder: Path) -> Iterator[None]:
        """Show the line during the block; it is gone afterwards."""
        self._began = time.monotonic()
        if self._enabled:
            threading.Thread(target=self._look, args=(folder,), daemon=True).start()
        try:
            yield
        finally:
            self._ended.set()
            self._erase()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No line during the block, in which something else is shown."""
        with self._drawing:
            enabled, self._enabled = self._enabled, False
        if enabled:
            sys.stderr.write(_ERASE)
        try:
            yield
        finally:
            self._enabled = enabled

    def _look(self, folder: Path) -> None:
        from benchflow.record.reading.live_rollouts import WatchedRollout

        watched = WatchedRollout(folder)
        while not self._ended.wait(_TICK):
            now = watched.look()
            self._last = now.last if now is not None and now.phase == "agent" else ""
            self._draw()

    def _draw(self) -> None:
        with self._drawing:
            if not self._enabled or self._ended.is_set():
                return
            last = f"  {self._last}" if self._last else " …"
            line = f"{time.monotonic() - self._began:5.1f} s  {self._phase}{last}"
            width = max(shutil.get_terminal_size().columns - 1, 20)
            sys.stderr.write(f"{_ERASE}{shortened(printable(line), width)}")
            sys.stderr.flush()

    def _erase(self) -> None:
        with self._drawing:
            if self._enabled:
                sys.stderr.write(_ERASE)
                sys.stderr.flush()
