"""More than one box per rollout: a role that works apart has a copy of the environment to itself.

`RoleBoxes` opens a box for a role when it first works (a fork of the environment as it is then) and ends all of them
with the rollout. Nothing that runs in one can see, signal or write to another; what they exchange is carried by the
driver.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

import anyio

from benchflow.environment import Environment
from benchflow.sandbox.protocol import NetworkPolicy, Sandbox


class RoleBoxes:
    """The boxes of roles beside the environment's own. Use it as a context manager: its end stops them all."""

    def __init__(self, environment: Environment) -> None:
        self._environment: Final = environment
        self._open: dict[str, Sandbox] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def of(self, role: str, *, network: NetworkPolicy | None = None) -> Sandbox:
        """The box of a role, opened at the first call. Without `network` it has the policy of the environment."""
        async with self._locks.setdefault(role, anyio.Lock()):
            if role not in self._open:
                policy = network or self._environment.network
                self._open[role] = await self._environment.sandbox.fork(network=policy)
            return self._open[role]

    @property
    def opened(self) -> tuple[str, ...]:
        """The roles that have a box."""
        return tuple(self._open)

    async def close(self) -> None:
        """Stop every box, also while being cancelled; one that cannot be stopped does not spare the others."""
        problems: list[Exception] = []
        with anyio.CancelScope(shield=True):
            while self._open:
                _, box = self._open.popitem()
                try:
                    await box.stop()
                except Exception as error:  # noqa: BLE001 - raised below, after the others were stopped
                    problems.append(error)
        if problems:
            raise problems[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
