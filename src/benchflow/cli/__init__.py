"""The `bench` command: one module per command group, loaded on demand."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Sequence
from typing import Final

import click

from benchflow.cli.lazy import Lazy, LazyGroup

_GARBAGE: Final = 20_000
"""Objects between two searches for garbage. Loading a command makes many and no garbage; by default, every 700 new ones
are searched."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `bench` and return its exit code; never raises and never prints a traceback."""
    from benchflow.cli.failures import guarded

    gc.set_threshold(_GARBAGE)
    atexit.register(gc.freeze)  # or all that was loaded is searched for garbage once more, right before it is gone
    return guarded(bench, arguments)


COMMANDS = {
    "run": Lazy("benchflow.cli.run:run", "Run one agent on one package and score its work."),
    "eval": Lazy("benchflow.cli.eval:eval_group", "Run agents on many tasks and inspect the results."),
    "view": Lazy("benchflow.cli.rollouts.view_command:view", "Show jobs in a browser."),
    "serve": Lazy(
        "benchflow.cli.serve:serve_group", "Serve packages, cubes and games to trainers, harnesses and agents."
    ),
    "tasks": Lazy("benchflow.cli.tasks:tasks", "Write, check and convert task packages."),
    "leaderboard": Lazy(
        "benchflow.cli.leaderboard_files:leaderboard", "Publish results as one file, and verify published files."
    ),
    "verify": Lazy("benchflow.cli.verify:verify", "Score a workspace with a package's verifier."),
    "agents": Lazy("benchflow.cli.agents:agents", "List the available agents and their requirements."),
    "sandboxes": Lazy("benchflow.cli.sandboxes:sandboxes", "Show which sandboxes work on this machine."),
    "cache": Lazy("benchflow.cli.cache:cache", "Show and prune cached images, layers and packages."),
    "images": Lazy("benchflow.cli.images:images", "Pull, register, list and remove images of the local sandbox."),
}


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"bench {version('benchcube')}")
    ctx.exit()


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def bench() -> None:
    """Agent-evaluation tasks, from the file an author writes to a score that can be trusted."""
