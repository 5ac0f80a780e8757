"""What a rollout begins with: the variables of its machine, what is known of it, and the agents in its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchflow.agents.protocol import Agent
from benchflow.agents.running import Installations
from benchflow.record import AgentPart, SandboxPart, TaskPart
from benchflow.rollout.config import RolloutConfig
from benchflow.rollout.lifecycle import Draft, OnPhase
from benchflow.sandbox.factory import Preparation
from benchflow.sandbox.protocol import Sandbox, SandboxSpec, Snapshot
from benchflow.task.package import TaskPackage

if TYPE_CHECKING:
    from benchflow.models.gateway import Gateway

KEPT_KEY: Final = "kept-by-the-model-gateway"
"""What an environment gets for a provider's key that the package names: the same in all rollouts, so that they share
what was installed for one of them."""


def machine_of(config: RolloutConfig) -> Mapping[str, str]:
    """The variables of the machine; a replay asks nobody, so any key of those who were asked then will do."""
    known = dict(os.environ) if config.machine is None else config.machine
    if config.replay is None:
        return known
    from benchflow.models.gateway import PROVIDERS

    names = PROVIDERS if "litellm" in config.replay.providers else config.replay.providers  # it may have asked anybody
    asked = [PROVIDERS[name] for name in names if name in PROVIDERS]
    missing = [provider.keys[0] for provider in asked if not any(known.get(name) for name in provider.keys)]
    return {**known, **dict.fromkeys(missing, "no-key-in-a-replay")}


def first_draft(config: RolloutConfig, on_phase: OnPhase | None) -> Draft:
    """What is known of a rollout before its task is looked at."""
    path = config.task_path or str(getattr(config.task, "path", config.task))
    task = TaskPart(Path(path).name or path, path, None, None, config.ordinal)
    if isinstance(config.task, TaskPackage):
        task = task_part_of(config.task, task)
    sandbox = config.sandbox if isinstance(config.sandbox, str) else config.sandbox.name
    return Draft(
        task,
        AgentPart(config.agent, config.model, exit_code=None, timed_out=False),
        SandboxPart(sandbox if sandbox != "auto" else None, None, None),
        config.work_key(task.id),
        config.attempt,
        on_phase,
    )


def task_part_of(package: TaskPackage, known: TaskPart) -> TaskPart:
    return replace(known, name=package.name, digest=package.digest, content_digest=package.content_digest)


def without_provider_keys(preparation: Preparation, models: Gateway) -> Preparation:
    """The environment without keys of providers: agents get a token in their place, services beside them nothing."""
    from benchflow.models.gateway import without_keys

    spec, services = preparation.spec, preparation.services
    if services is not None:
        services = replace(services, env=without_keys(services.env, models.keys, KEPT_KEY))
    env = without_keys(spec.env, models.keys, KEPT_KEY)
    return replace(preparation, spec=replace(spec, env=env), services=services)


async def installed_together(
    installations: Installations, agents: Sequence[Agent], spec: SandboxSpec
) -> Snapshot | None:
    """The environment of `spec` with these agents in it; None when none of them has anything to install."""
    needed = {key: agent for agent in agents if (key := agent.install_key()) is not None}
    return await installations.prepare(_Together(needed), spec) if needed else None


class _Together:
    """Several agents that are installed one after the other, so that their environment is made once for all."""

    def __init__(self, agents: Mapping[str, Agent]) -> None:
        self._agents: Final = dict(sorted(agents.items()))

    def install_key(self) -> str:
        return "\n".join(self._agents)

    async def install(self, sandbox: Sandbox) -> None:
        for agent in self._agents.values():
            await agent.install(sandbox)
