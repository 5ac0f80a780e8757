"""`bench tasks`: everything an author does with packages before anything runs. One module per command."""

from __future__ import annotations

import click

from benchflow.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "init": Lazy("benchflow.cli.tasks.init:init", "Start a new package."),
    "check": Lazy("benchflow.cli.tasks.check:check", "Check packages and say what is wrong with them."),
    "show": Lazy("benchflow.cli.tasks.show:show", "Show what of a package will run."),
    "normalize": Lazy("benchflow.cli.tasks.normalize:normalize", "Expand presets and write task.md in canonical form."),
    "migrate": Lazy("benchflow.cli.tasks.migrate:migrate", "Turn split packages into task.md packages."),
    "export": Lazy("benchflow.cli.tasks.export:export", "Write a package in the split layout, and what was lost."),
    "roundtrip": Lazy("benchflow.cli.tasks.roundtrip:roundtrip", "Prove that split packages survive both conversions."),
    "digest": Lazy("benchflow.cli.tasks.digest:digest", "Print the content digest of packages."),
    "pin": Lazy("benchflow.cli.tasks.pin:pin", "Write the SHA-256 pins of evidence, task.md and verifier."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def tasks() -> None:
    """Write, check and convert task packages.

    PATH is a package (a folder with task.md or task.toml) or any folder above packages.
    """
