"""Agents by name: built-in ones from a table, others from the entry-point group `benchflow.agents`.

An agent is named `NAME` or `NAME:ARGUMENT`. Implementations are loaded on first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from benchflow.agents.protocol import NO_LIMITS, Agent, AgentInfo, AgentKind, AgentLimits, AgentRequest, Policy
from benchflow.errors import UsageError

GROUP: Final = "benchflow.agents"
_HERE: Final = "benchflow.agents"
_BUILT_IN: Final[Mapping[str, str]] = {
    "oracle": f"{_HERE}.oracle_agent:KIND",
    "nop": f"{_HERE}.nop_agent:KIND",
    "script": f"{_HERE}.script_agent:KIND",
    "acp": f"{_HERE}.acp.acp_agent:KIND",
    "model": f"{_HERE}.model.model_agent:KIND",
    "claude": f"{_HERE}.acp.known_agents:CLAUDE",
    "codex": f"{_HERE}.acp.known_agents:CODEX",
    "gemini": f"{_HERE}.acp.known_agents:GEMINI",
    "opencode": f"{_HERE}.acp.known_agents:OPENCODE",
    "goose": f"{_HERE}.acp.known_agents:GOOSE",
    "pi": f"{_HERE}.acp.known_agents:PI",
    "deepagents": f"{_HERE}.acp.known_agents:DEEPAGENTS",
}
_ALIASES: Final[Mapping[str, str]] = {
    "claude-code": "claude",
    "claude-agent-acp": "claude",
    "codex-acp": "codex",
    "gemini-cli": "gemini",
    "pi-acp": "pi",
}


def create_agent(name: str, model: str | None = None, *, environ: Mapping[str, str] | None = None) -> Agent:
    """The agent of that name, not started. Wrong names and arguments are a `UsageError`.

    `environ` holds variables of this machine, such as keys; None: those of the process.
    """
    kind, request = _find(name, model, environ)
    if kind.agent is None:
        raise UsageError(f"The agent '{name}' runs on gym tasks only; it cannot run in a sandbox.", code="agent-kind")
    return kind.agent(request)


def create_policy(
    name: str,
    model: str | None = None,
    *,
    limits: AgentLimits = NO_LIMITS,
    environ: Mapping[str, str] | None = None,
) -> Policy:
    """The policy of that name, for gym tasks. Wrong names and arguments are a `UsageError`."""
    kind, request = _find(name, model, environ)
    if kind.policy is None:
        raise UsageError(f"The agent '{name}' runs in a sandbox; it cannot run on gym tasks.", code="agent-kind")
    return kind.policy(replace(request, limits=limits))


def list_agents() -> list[AgentInfo]:
    """All agents: built-in ones first, then plugins. For a plugin that cannot be loaded, the reason."""
    found = [_load(target).info for target in _BUILT_IN.values()]
    for point in _plugins().values():
        try:
            found.append(_load_plugin(point).info)
        except UsageError as error:
            found.append(AgentInfo(point.name, str(error), "process"))
    return found


def agent_kind(name: str) -> AgentKind:
    """The implementation of `NAME` or `NAME:ARGUMENT`; an unknown name is a `UsageError` that lists the known ones."""
    base = name.partition(":")[0]
    base = _ALIASES.get(base, base)
    if base in _BUILT_IN:
        return _load(_BUILT_IN[base])
    plugins = _plugins()
    if base in plugins:
        return _load_plugin(plugins[base])
    known = ", ".join([*_BUILT_IN, *plugins])
    raise UsageError(f"Unknown agent '{base}'. Known agents: {known}.", code="unknown-agent")


def _find(name: str, model: str | None, environ: Mapping[str, str] | None) -> tuple[AgentKind, AgentRequest]:
    kind = agent_kind(name)
    base, colon, argument = name.partition(":")
    if colon and kind.info.argument is None:
        raise UsageError(f"The agent '{base}' takes no argument, but '{argument}' was given.", code="agent-argument")
    request = AgentRequest(name, argument or None, model or None, os.environ if environ is None else environ)
    return kind, request


@cache
def _load(target: str) -> AgentKind:
    module, _, attribute = target.partition(":")
    kind: AgentKind = getattr(import_module(module), attribute)
    return kind


def _plugins() -> dict[str, EntryPoint]:
    """Installed plugins by name; built-in names cannot be replaced."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _BUILT_IN}


def _load_plugin(point: EntryPoint) -> AgentKind:
    try:
        kind = point.load()
    except Exception as error:  # a plugin may fail in any way and must not affect the others
        raise UsageError(f"The agent plugin '{point.name}' cannot be loaded: {error}", code="broken-plugin") from error
    if not isinstance(kind, AgentKind):
        raise UsageError(f"The agent plugin '{point.name}' is not an AgentKind.", code="broken-plugin")
    return kind
