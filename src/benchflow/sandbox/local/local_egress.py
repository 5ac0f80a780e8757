"""The network policy of one running sandbox: the gateway inside it, the proxy outside, the variables of commands."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchflow.sandbox.local.link import Link
from benchflow.sandbox.network.egress_plan import plan_egress
from benchflow.sandbox.protocol import NetworkPolicy

if TYPE_CHECKING:
    from benchflow.sandbox.network.egress import Egress


class Uplink:
    """What a policy needs while a sandbox is up."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self.policy = policy
        self._plan = plan_egress(policy)
        self._egress: Egress | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for every command."""
        return self._plan.environment or {}

    async def open(self, link: Link) -> None:
        """Make the policy work inside; the sandbox has no other network."""
        plan = self._plan
        _, fds = await link.call({"op": "network", **plan.message(), "resolv_conf": plan.resolv_conf})
        if not plan.listeners:
            return
        from benchflow.sandbox.network.addresses import permitted_networks
        from benchflow.sandbox.network.egress import Egress  # what serves a network is loaded when there is one

        sockets = [socket.socket(fileno=fd) for fd in fds]
        self._egress = Egress(self.policy, permitted=permitted_networks())
        await self._egress.start(zip([item.role for item in plan.listeners], sockets, strict=True))

    async def close(self) -> None:
        """End every connection; idempotent."""
        egress, self._egress = self._egress, None
        if egress is not None:
            await egress.stop()
