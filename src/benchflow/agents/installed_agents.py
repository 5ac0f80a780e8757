"""Agents installed once per environment: the first rollout installs one, the others start from its snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

import anyio

from benchflow.sandbox.protocol import Change, Limits, NetworkPolicy, Sandbox, SandboxBackend, SandboxSpec, Snapshot

_PUBLIC: Final = NetworkPolicy("public")


class Installable(Protocol):
    """The part of an agent that an installation uses."""

    def install_key(self) -> str | None:
        """What the installation depends on; None if there is nothing to install."""

    async def install(self, sandbox: Sandbox) -> None:
        """Install the agent in the environment."""


class Installations:
    """The installations made through one backend; kept until `close`."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._made: dict[tuple[str, ...], Snapshot] = {}
        self._brought: dict[str, frozenset[Change]] = {}
        """The changes that an installation made, by the resulting state."""
        self._locks: dict[tuple[str, ...], anyio.Lock] = {}

    async def prepare(self, agent: Installable, spec: SandboxSpec) -> Snapshot | None:
        """A state to start the sandbox of `spec` from, with the agent in it; None if it needs nothing there.

        Concurrent callers wait for the same installation. The installation has network access regardless of the
        policy of the task; the sandbox that starts from it does not.
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
        """The differences between a state and the environment that come from installing an agent."""
        return frozenset() if snapshot is None else self._brought.get(snapshot.reference, frozenset())

    async def close(self) -> None:
        """Discard every state."""
        while self._made:
            _, snapshot = self._made.popitem()
            await self._backend.discard(snapshot)
