"""The option `--machine-settings`, of the commands that build environments or run something in them."""

from __future__ import annotations

import os

import click

from benchflow.cli.arguments import Command, LateChoice


def machine_settings_option(command: Command) -> Command:
    """`--machine-settings REACH`: who may use the package mirrors of this machine, for this command and its workers."""
    return click.option(
        "--machine-settings",
        type=LateChoice(_reaches),
        metavar="REACH",
        expose_value=False,
        callback=lambda _ctx, _param, value: _export(value),
        help="Who may use this machine's settings for pip, uv, npm, apt, certificates and proxies: "
        "none, build, verify (builds and verifiers) or all (agents too). "
        "Default: $BENCHCUBE_MACHINE_SETTINGS, or none.",
    )(command)


def _reaches() -> tuple[str, ...]:
    from benchflow.sandbox.machine_settings.allowance import REACHES

    return REACHES


def _export(reach: str | None) -> None:
    """Processes that the command starts read the variable too."""
    if reach is not None:
        from benchflow.sandbox.machine_settings.allowance import VARIABLE

        os.environ[VARIABLE] = reach
