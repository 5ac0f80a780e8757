"""All agents of a rollout as one that can be installed, so that their environment is made once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchflow.agents.installed_agents import Installations
from benchflow.agents.protocol import Agent
from benchflow.sandbox.protocol import Sandbox, SandboxSpec, Snapshot


async def installed(installations: Installations, agents: Sequence[Agent], spec: SandboxSpec) -> Snapshot | None:
    """The environment of `spec` with these agents in it; None when none of them has anything to install."""
    needed = {key: agent for agent in agents if (key := agent.install_key()) is not None}
    return await installations.prepare(_Together(needed), spec) if needed else None


class _Together:
    """Several agents that are installed one after the other."""

    def __init__(self, agents: dict[str, Agent]) -> None:
        self._agents: Final = dict(sorted(agents.items()))

    def install_key(self) -> str:
        return "\n".join(self._agents)

    async def install(self, sandbox: Sandbox) -> None:
        for agent in self._agents.values():
            await agent.install(sandbox)
