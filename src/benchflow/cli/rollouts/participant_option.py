"""`--participant ROLE=AGENT|URL`: who plays a role of an arena."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from benchflow.cli.arguments import Command
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.record import Player


def participant_option(command: Command) -> Command:
    """`--participant`, repeatable; `named_players` reads its values."""
    return click.option(
        "--participant",
        "participants",
        multiple=True,
        metavar="ROLE=AGENT|URL",
        help="Agent, or URL of an A2A agent, that plays this role of an arena; repeatable.",
    )(command)


def named_players(given: Sequence[str]) -> dict[str, Player]:
    """The players by role; `--model` is not theirs, `model:NAME` names one."""
    if not given:
        return {}
    from benchflow.record import Player
    from benchflow.rollout.seats import require_url

    found: dict[str, Player] = {}
    for text in given:
        role, _, agent = (part.strip() for part in text.partition("="))
        if not role or not agent:
            raise UsageError(f"--participant '{text}': expected ROLE=AGENT or ROLE=URL.", code="invalid-value")
        if role in found:
            raise UsageError(f"--participant {role} is given twice.", code="duplicate-option")
        found[role] = Player(agent)
    for role, player in found.items():
        require_url(role, player)
    return found
