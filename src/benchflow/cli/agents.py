"""`bench agents`: the available agents, what each needs, and what is installed for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from benchflow.cli.arguments import json_option
from benchflow.cli.failures import GOOD
from benchflow.cli.terminal import emit, emit_json, printable, style, warn, wrapped
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.agents.protocol import AgentInfo


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@json_option
def agents(name: str | None, as_json: bool) -> int:
    """List the available agents and their requirements; with NAME, check whether that agent is ready to run."""
    from benchflow.agents.registry import agent_kind, list_agents
    from benchflow.plugins import AGENTS

    warn(AGENTS.ignored())
    found = list_agents() if name is None else [agent_kind(name).info]
    if as_json:
        emit_json({"agents": [asdict(info) for info in found]})
        return GOOD
    if name is None:
        emit("\n".join(line for info in found for line in _overview(info)))
        emit(f"\nDetails of one agent, and whether it is ready to run: {style('bench agents NAME', 'bold')}")
    else:
        emit("\n".join([*_details(found[0]), *_readiness(name, found[0])]))
    return GOOD


def _title(info: AgentInfo) -> str:
    usage = f"{info.name}:{info.argument}" if info.argument and not info.install else info.name
    return f"{style(printable(usage), 'bold')}: {printable(info.description)}"


def _overview(info: AgentInfo) -> list[str]:
    needs = "; ".join(map(printable, info.needs))
    return [_title(info), *([wrapped(f"needs {needs}", 2)] if needs else []), wrapped(_models(info), 2)]


def _models(info: AgentInfo) -> str:
    """How it reaches models."""
    spoken = f" ({', '.join(info.dialects)})" if info.dialects else ""
    ways = {
        "none": "calls no models",
        "machine": "calls models from this machine",
        "gateway": f"calls models through the gateway{spoken}",
        "variables": "calls models through the gateway if it reads provider variables such as OPENAI_BASE_URL",
    }
    return ways.get(info.models or "", "may bypass the gateway when it calls models")


def _details(info: AgentInfo) -> list[str]:
    lines = []
    if info.kind != "process":
        lines.append("also runs on gym tasks" if info.kind == "both" else "runs on gym tasks only")
    lines += [*(f"needs {printable(need)}" for need in info.needs), _models(info)]
    if info.takes:
        lines.append(f"passes on {', '.join(map(printable, info.takes))} if set")
    if info.install:
        version = f"use {info.name}:{info.argument} for another version"
        lines.append(f"installs {printable(info.install)} in the sandbox; {version}")
    if info.aliases:
        lines.append(f"also called {', '.join(map(printable, info.aliases))}")
    return [_title(info), *(wrapped(line, 2) for line in lines)]


def _readiness(name: str, info: AgentInfo) -> list[str]:
    """Whether an agent can run on this machine, and the command that runs it."""
    from benchflow.agents.registry import create_agent

    lines = []
    wanted = info.argument if info.argument and not info.install and ":" not in name else None
    if info.kind != "policy" and wanted is None:
        try:
            create_agent(name).check({})
            lines.append(f"  {style('ready', 'green')} on this machine")
        except UsageError as error:
            lines.append(wrapped(f"{style('not ready', 'yellow')}: {printable(str(error))}", 2))
    if info.kind != "policy":
        lines.append(f"  bench run PACKAGE --agent {printable(f'{name}:{wanted}' if wanted else name)}")
    return lines
