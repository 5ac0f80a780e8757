"""Agents by name: built-in ones, and those of the entry-point group `benchflow.agents`.

An agent is named `NAME` or `NAME:ARGUMENT`. Implementations are loaded on first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from benchflow.agents.protocol import NO_LIMITS, Agent, AgentInfo, AgentKind, AgentLimits, AgentRequest, Policy
from benchflow.errors import PluginError, UsageError
from benchflow.plugins import AGENTS

if TYPE_CHECKING:
    from benchflow.models.gateway import Access

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
    models: Access | None = None,
) -> Policy:
    """The policy of that name, for gym tasks. Wrong names and arguments are a `UsageError`.

    With `models`, its calls of models are limited and recorded.
    """
    kind, request = _find(name, model, environ)
    if kind.policy is None:
        raise UsageError(f"The agent '{name}' runs in a sandbox; it cannot run on gym tasks.", code="agent-kind")
    return kind.policy(replace(request, limits=limits, models=models))


def list_agents() -> list[AgentInfo]:
    """All agents: built-in ones first, then plugins. For a plugin that cannot be loaded, the reason."""
    found = [_load(name).info for name in AGENTS.built_in]
    for name in AGENTS.plugins():
        try:
            found.append(_load(name).info)
        except PluginError as error:
            found.append(AgentInfo(name, str(error), "process"))
    return found


def policy_names() -> list[str]:
    """The agents that run on gym tasks; a plugin that cannot be loaded is not among them."""
    return [info.name for info in list_agents() if info.kind in ("policy", "both")]


def agent_kind(name: str) -> AgentKind:
    """The implementation of `NAME` or `NAME:ARGUMENT`; an unknown name is a `UsageError` that lists the known ones."""
    base = name.partition(":")[0]
    return _load(_ALIASES.get(base, base))


def _find(name: str, model: str | None, environ: Mapping[str, str] | None) -> tuple[AgentKind, AgentRequest]:
    kind = agent_kind(name)
    base, colon, argument = name.partition(":")
    if colon and kind.info.argument is None:
        raise UsageError(f"The agent '{base}' takes no argument, but '{argument}' was given.", code="agent-argument")
    request = AgentRequest(name, argument or None, model or None, os.environ if environ is None else environ)
    return kind, request


def wrong_with(name: str, found: object) -> str | None:
    """What is wrong with the object of a plugin; None if it is an agent kind."""
    del name
    return None if isinstance(found, AgentKind) else "is not an AgentKind"


def _load(name: str) -> AgentKind:
    return cast("AgentKind", AGENTS.load(name))
