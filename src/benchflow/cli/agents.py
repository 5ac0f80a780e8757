"""`bench agents`: which agents there are, what each needs, and what is installed for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from benchflow.cli.arguments import json_option
from benchflow.cli.failures import GOOD
from benchflow.cli.terminal import emit, emit_json, printable, style

if TYPE_CHECKING:
    from benchflow.agents.protocol import AgentInfo


@click.command()
@json_option
def agents(as_json: bool) -> int:
    """Show which agents there are and what each needs."""
    from benchflow.agents.registry import list_agents

    found = list_agents()
    if as_json:
        emit_json({"agents": [asdict(info) for info in found]})
    else:
        emit("\n\n".join(_text(info) for info in found))
    return GOOD


def _text(info: AgentInfo) -> str:
    usage = f"{info.name}:{info.argument}" if info.argument and not info.install else info.name
    lines = [f"{style(printable(usage), 'bold')}: {printable(info.description)}"]
    if info.kind != "process":
        lines.append("  acts on gym tasks too" if info.kind == "both" else "  acts on gym tasks only")
    lines += [f"  needs {printable(need)}" for need in info.needs]
    if info.install:
        lines.append(f"  installs {printable(info.install)}; {info.name}:{info.argument} takes another")
    if info.aliases:
        lines.append(f"  also called {', '.join(map(printable, info.aliases))}")
    return "\n".join(lines)
