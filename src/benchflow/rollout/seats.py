"""Who plays whom in an arena, pure: the seats of its participants, from the document and what a caller says."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchflow.errors import UnsupportedError, UsageError
from benchflow.record import Player
from benchflow.rollout.config import Role, RolloutConfig
from benchflow.sandbox.protocol import NetworkPolicy
from benchflow.sandbox.task_policy import network_policy
from benchflow.task.config.interaction import ARENA, Scene, Turn
from benchflow.task.document.prompt_plan import compile_task_prompt_plan
from benchflow.task.package import TaskPackage
from benchflow.task.runtime_view import TaskRuntimeView

GAME: Final = "game"
"""The scene of everything that agents do in an arena."""
_PLAYED_BY_PACKAGE: Final = ("oracle", "nop")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class Seat:
    """One participant."""

    role: Role
    """Its name and who plays it; of somebody else's agent the URL in place of an agent."""
    instructions: str
    """The prompt of the task and that of the role, combined."""
    url: str | None = None
    oracle_script: str | None = None
    """The script of the package that plays it, where that is an oracle."""


def plan_seats(package: TaskPackage, config: RolloutConfig) -> tuple[Seat, ...]:
    """The seats in the order of `participants`: `agent` has the first, others are the caller's or the document's.

    With `oracle` or `nop` as the agent, roles that nobody names are played by the package itself (`oracle/ROLE.sh`)
    where it can: what they show must not depend on a model.
    """
    view = package.view
    interaction = view.namespace.interaction
    names = interaction.participants if interaction is not None else ()
    if not names:
        message = "benchflow.interaction.participants names no role, and an arena needs at least one."
        raise UnsupportedError(message, code="no-participants", path="benchflow.interaction.participants")
    for index, server in enumerate(view.config.environment.mcp_servers):
        if server.transport != "stdio":
            where = f"environment.mcp_servers[{index}].transport"
            message = f"{where}: calls of participants are recorded, and only those of a stdio server can be."
            raise UnsupportedError(message, code="tools-unsupported", path=where)
    unknown = next((role for role in config.participants if role not in names), None)
    if unknown is not None:
        message = f"The package has no participant '{unknown}'; it has {', '.join(names)}."
        raise UsageError(message, code="unknown-role")
    if names[0] in config.participants:
        message = f"The role '{names[0]}' is the one that the agent of the rollout plays; name it with --agent."
        raise UsageError(message, code="role-taken")
    for name, player in config.participants.items():
        require_url(name, player)
    return tuple(_seat(package, config, name, first=name == names[0]) for name in names)


def require_url(role: str, player: Player) -> None:
    """Refuses a player whose URL is not the address of a peer; it is not repeated, since it may contain a password."""
    if _SCHEME.match(player.agent):
        from benchflow.arena.a2a_cards import plain_url  # every rollout loads this module, and few have a URL

        wrong = "must begin with http:// or https://" if player.url is None else plain_url(player.url)
        if wrong is not None:
            raise UsageError(f"The URL of the participant '{role}' {wrong}.", code="invalid-url")


def _seat(package: TaskPackage, config: RolloutConfig, name: str, *, first: bool) -> Seat:
    view = package.view
    role = declared_role(view, name)
    player = Player(config.agent, config.model) if first else config.participants.get(name)
    if player is None and config.agent in _PLAYED_BY_PACKAGE and _own_script(view, name) is not None:
        player = Player("oracle")
    if player is not None:
        role = replace(role, agent=player.agent, model=player.model)
    limit = role.timeout_sec or config.agent_timeout_sec or view.config.agent.timeout_sec
    role = replace(role, timeout_sec=limit)
    script = (_own_script(view, name) or "solve.sh") if role.agent == "oracle" else None
    return Seat(role, _instructions(package, name), player.url if player is not None else None, script)


def own_players(package: TaskPackage) -> dict[str, Player]:
    """The roles beside the first that the package plays itself; empty for what is not an arena."""
    interaction = package.view.namespace.interaction
    others = interaction.participants[1:] if interaction is not None and package.view.mode == ARENA else ()
    return {role: Player("oracle") for role in others if _own_script(package.view, role) is not None}


def _own_script(view: TaskRuntimeView, role: str) -> str | None:
    name = f"{role}.sh"
    folder = view.oracle_dir
    return name if folder is not None and Path(folder, name).is_file() else None


def _instructions(package: TaskPackage, role: str) -> str:
    """The task's prompt and that of the role, combined as the document says."""
    document = package.document
    if document is None:
        return package.view.prompt
    scene = Scene(name=GAME, roles=(role,), turns=(Turn(role=role),))
    return compile_task_prompt_plan(replace(document, scenes=(scene,))).turns[0].prompt or package.view.prompt


def declared_role(view: TaskRuntimeView, name: str) -> Role:
    """A role as the document declares it."""
    declared = view.roles[name]
    return Role(
        name=name,
        agent=declared.agent,
        model=declared.model,
        reasoning_effort=declared.reasoning_effort,
        env=declared.env,
        timeout_sec=declared.timeout_sec,
        idle_timeout_sec=declared.idle_timeout_sec,
        skills_dir=declared.skills_dir,
        capabilities=tuple(declared.capabilities or ()),
    )


def participants_network(view: TaskRuntimeView) -> NetworkPolicy:
    """What the package declares for agents. Peers and models are reached through the driver, so without a declaration
    there is no network: a default that leads to the whole world would let participants meet behind the record."""
    policy = network_policy(view, "agent")
    rules = view.namespace.runtime_policy
    declared = (
        "network_mode" in view.config.environment.declared
        or view.config.agent.network_mode is not None
        or (rules is not None and rules.network is not None)
    )
    return policy if declared else NetworkPolicy("none")
