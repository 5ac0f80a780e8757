"""A sandbox whose commands do nothing for a while, so that a node can be lost in the middle of a rollout."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import anyio

from benchflow.sandbox.protocol import ExecResult, SandboxSpec, Snapshot
from benchflow.testing import NullBackend, NullSandbox

LONGEST_SEC = 60.0


class DrowsySandbox(NullSandbox):
    async def exec(self, command: str | Sequence[str], **options: Any) -> ExecResult:
        await anyio.sleep(random.uniform(0.0, LONGEST_SEC))
        return await super().exec(command, **options)

    async def fork(self, **options: Any) -> DrowsySandbox:
        await super().fork(**options)
        return DrowsySandbox(self.spec)


class DrowsyBackend(NullBackend):
    name = "drowsy"

    def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> DrowsySandbox:
        del snapshot
        return DrowsySandbox(spec)
