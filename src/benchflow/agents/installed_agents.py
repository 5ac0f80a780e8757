"""Agents installed once per environment: the first rollout that needs one pays, the others start from its snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

import anyio

from benchflow.sandbox.protocol import Change, Limits, NetworkPolicy, Sandbox, SandboxBackend, SandboxSpec, Snapshot

_PUBLIC: Final = NetworkPolicy("public")


class Installable(Protocol):
    """What an installation asks of an agent."""

    def install_key(self) -> str | None:
        """What the installation depends on; None when there is nothing to install."""

    async def install(self, sandbox: Sandbox) -> None:
        """Put into the environment what is needed."""


class Installations:
    """What was installed through one backend; kept until `close`."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._made: dict[tuple[str, ...], Snapshot] = {}
        self._brought: dict[str, frozenset[Change]] = {}
        """What installing changed, by the state that came of it."""
        self._locks: dict[tuple[str, ...], anyio.Lock] = {}

    async def prepare(self, agent: Installable, spec: SandboxSpec) -> Snapshot | None:
        """A state to start the sandbox of `spec` from, with the agent in it; None when it needs nothing there.

        Whoever comes while it is being made waits for it. The installation reaches the network, whatever the policy of
        the task says; the sandbox that starts from it does not.
        """
        wanted = agent.install_key()
        if wanted is None:
            return None
        environment = spec.image.digest if spec.image else "host"
        key = (environment, spec.workdir, spec.user or "", wanted)
        async with self._locks.setdefault(key, anyio.Lock()):
            if key not in self._made:
                self._made[key] = await self._install(agent, spec)
            return self._made[key]

    async def _install(self, agent: Installable, spec: SandboxSpec) -> Snapshot:
        bare = replace(spec, network=_PUBLIC, limits=Limits(), mounts=(), env={}, composition=None)
        async with self._backend.create(bare) as sandbox:
            await agent.install(sandbox)
            await sandbox.kill_processes()
            brought = frozenset(await sandbox.changes())
            snapshot = await sandbox.snapshot()
            self._brought[snapshot.reference] = brought
            return snapshot

    def brought(self, snapshot: Snapshot | None) -> frozenset[Change]:
        """What differs in a state from the environment because an agent was installed."""
        return frozenset() if snapshot is None else self._brought.get(snapshot.reference, frozenset())

    async def close(self) -> None:
        """Discard every state."""
        while self._made:
            _, snapshot = self._made.popitem()
            await self._backend.discard(snapshot)
