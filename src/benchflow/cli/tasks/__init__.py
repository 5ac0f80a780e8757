"""`bench tasks`: writing, checking and converting packages. One module per command."""

from __future__ import annotations

import click

from benchflow.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "init": Lazy("benchflow.cli.tasks.init:init", "Create a new package."),
    "check": Lazy("benchflow.cli.tasks.check:check", "Check packages and report problems."),
    "show": Lazy("benchflow.cli.tasks.show:show", "Show what a package will run."),
    "normalize": Lazy("benchflow.cli.tasks.normalize:normalize", "Expand presets and write task.md in canonical form."),
    "migrate": Lazy("benchflow.cli.tasks.migrate:migrate", "Convert split packages to task.md packages."),
    "import-ors": Lazy("benchflow.cli.serve.import_ors:import_ors", "Import tasks from an ORS server."),
    "import-scenario": Lazy(
        "benchflow.cli.serve.import_scenario:import_scenario", "Import an AgentBeats scenario file."
    ),
    "export": Lazy("benchflow.cli.tasks.export:export", "Export packages to another layout, or unchanged."),
    "roundtrip": Lazy(
        "benchflow.cli.tasks.roundtrip:roundtrip", "Test that split packages survive conversion to task.md and back."
    ),
    "shell": Lazy("benchflow.cli.rollouts.author_shell:shell", "Open a shell in the environment of a package."),
    "digest": Lazy("benchflow.cli.tasks.digest:digest", "Print the digest of packages."),
    "bundle": Lazy("benchflow.cli.tasks.bundle:bundle", "Bundle packages into one file with one digest."),
    "pin": Lazy("benchflow.cli.tasks.pin:pin", "Write the SHA-256 pins of evidence, task.md and verifier."),
    "prove": Lazy("benchflow.cli.tasks.prove:prove", "Test that packages are sound, and write the evidence."),
    "audit": Lazy("benchflow.cli.tasks.audit:audit", "Try to score on packages without solving them."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def tasks() -> None:
    """Write, check and convert task packages.

    PATH is a package (a folder with task.md or task.toml), any folder above packages, a bundle or a registry file.
    FILE@sha256:DIGEST pins a file, FILE:PATH is a package in it, FILE#NAME one of its splits or datasets.
    """
