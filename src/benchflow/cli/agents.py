"""`bench agents`: which agents there are, what each needs, and what is installed for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from benchflow.cli.arguments import json_option
from benchflow.cli.failures import GOOD
from benchflow.cli.terminal import emit, emit_json, printable, style
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.agents.protocol import AgentInfo


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@json_option
def agents(name: str | None, as_json: bool) -> int:
    """Show which agents there are and what each needs; with NAME, whether that one is ready here."""
    from benchflow.agents.registry import agent_kind, list_agents

    found = list_agents() if name is None else [agent_kind(name).info]
    if as_json:
        emit_json({"agents": [asdict(info) for info in found]})
        return GOOD
    emit("\n\n".join(_text(info) for info in found))
    if name is None:
        emit(f"\nMore on one, and whether it is ready here: {style('bench agents NAME', 'bold')}")
    else:
        emit("\n".join(_readiness(name, found[0])))
    return GOOD


def _text(info: AgentInfo) -> str:
    usage = f"{info.name}:{info.argument}" if info.argument and not info.install else info.name
    lines = [f"{style(printable(usage), 'bold')}: {printable(info.description)}"]
    if info.kind != "process":
        lines.append("  acts on gym tasks too" if info.kind == "both" else "  acts on gym tasks only")
    lines += [f"  needs {printable(need)}" for need in info.needs]
    if info.takes:
        lines.append(f"  takes {', '.join(map(printable, info.takes))} when set")
    if info.install:
        lines.append(
            f"  puts {printable(info.install)} into the sandbox; {info.name}:{info.argument} takes another version"
        )
    if info.aliases:
        lines.append(f"  also called {', '.join(map(printable, info.aliases))}")
    return "\n".join(lines)


def _readiness(name: str, info: AgentInfo) -> list[str]:
    """Whether an agent could begin here, and how it is called."""
    from benchflow.agents.registry import create_agent

    lines = []
    wanted = info.argument if info.argument and not info.install and ":" not in name else None
    if info.kind != "policy" and wanted is None:
        try:
            create_agent(name).check({})
            lines.append(f"  {style('ready', 'green')} on this machine")
        except UsageError as error:
            lines.append(f"  {style('not ready', 'yellow')}: {printable(str(error))}")
    if info.kind != "policy":
        lines.append(f"  bench run PACKAGE --agent {printable(f'{name}:{wanted}' if wanted else name)}")
    return lines
