"""How far one container can reach, and how that changes from phase to phase.

`none` is an empty network namespace, `public` the engine's own network, `allowlist` an empty namespace whose only way
out is the filtering proxy of this process, reached through passed sockets and not through any network.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchflow.errors import SandboxFailure, UnsupportedError
from benchflow.sandbox.engine.box.running_container import EngineContainer
from benchflow.sandbox.engine.machine.engine_host import EngineHost
from benchflow.sandbox.engine.namespace_sockets import open_gateway_of
from benchflow.sandbox.inside.egress_gateway import EgressPlan
from benchflow.sandbox.network.addresses import permitted_networks
from benchflow.sandbox.network.egress import Egress
from benchflow.sandbox.network.egress_plan import plan_egress
from benchflow.sandbox.protocol import FailedRequest, NetworkPolicy


class ContainerNetwork:
    """The network of one container. `policy` is the current one."""

    def __init__(self, host: EngineHost, policy: NetworkPolicy) -> None:
        self._host = host
        self._egress: Egress | None = None
        self._resolv_conf: bytes | None = None
        self.policy = policy

    @property
    def _switchable(self) -> bool:
        return not (self._host.client.dialect.detached_by_disconnecting and self._host.facts.rootless)

    def argument(self) -> str:
        """The network that the container is started with."""
        dialect = self._host.client.dialect
        if self.policy.mode == "public" or (dialect.detached_by_disconnecting and self._switchable):
            return dialect.network if self._switchable else "slirp4netns"
        return "none"

    def environment(self) -> Mapping[str, str]:
        """Variables that every command gets under the policy."""
        return (plan_egress(self.policy).environment or {}) if self.policy.mode == "allowlist" else {}

    @property
    def failed_requests(self) -> tuple[FailedRequest, ...]:
        """What the proxy saw fail; the engine's own network tells nothing."""
        return self._egress.failed_requests if self._egress is not None else ()

    async def begin(self, container: EngineContainer) -> None:
        """Bring a freshly started container, in which nothing runs yet, under its policy."""
        dialect = self._host.client.dialect
        if self.policy.mode != "public" and self.argument() == dialect.network:
            await self._host.client.ask("network", "disconnect", dialect.network, container.id)
        await self._open(container)

    async def switch(self, container: EngineContainer, policy: NetworkPolicy) -> None:
        """Change the policy; connections of the old one end."""
        if f"network.{policy.mode}" not in self._host.facts.capabilities:
            raise UnsupportedError(
                f"This engine does not support the network mode '{policy.mode}'.", path="network_mode"
            )
        if not self._switchable and (policy.mode == "public") != (self.policy.mode == "public"):
            raise UnsupportedError("A rootless engine cannot change the network of a running container.")
        was_served = self._egress is not None
        await self.close()
        if was_served and policy.mode != "allowlist":
            # The wire goes with its sockets, but in the kernel's own time.
            await open_gateway_of(await self._host.first_process(container.id), EgressPlan())
        if (policy.mode == "public") != (self.policy.mode == "public"):
            await self._plug(container, public=policy.mode == "public")
        self.policy = policy
        await self._open(container)

    async def again(self, container: EngineContainer) -> None:
        """After a restart of the container: its namespace is new."""
        await self.close()
        dialect = self._host.client.dialect
        if self.policy.mode == "allowlist" and dialect.detached_by_disconnecting:
            self._resolv_conf = None
        await self._open(container)

    async def close(self) -> None:
        if self._egress is not None:
            egress, self._egress = self._egress, None
            await egress.stop()

    async def _plug(self, container: EngineContainer, *, public: bool) -> None:
        client = self._host.client
        network = client.dialect.network
        placeholder = not client.dialect.detached_by_disconnecting
        if public:
            if placeholder:
                await client.ask("network", "disconnect", "none", container.id)
            await client.ask("network", "connect", network, container.id)
        else:
            await client.ask("network", "disconnect", network, container.id)
            if placeholder:
                await client.ask("network", "connect", "none", container.id)

    async def _open(self, container: EngineContainer) -> None:
        """Open the way out that the policy allows, and tell name resolution about it."""
        if self.policy.mode != "allowlist":
            if self._resolv_conf is not None:
                await container.overwrite("/etc/resolv.conf", self._resolv_conf)
                self._resolv_conf = None
            return
        plan = plan_egress(self.policy)
        sockets = await open_gateway_of(await self._host.first_process(container.id), plan)
        egress = Egress(self.policy, permitted=permitted_networks())
        await egress.start(zip([listener.role for listener in plan.listeners], sockets, strict=True))
        self._egress = egress
        try:
            if self._resolv_conf is None:
                self._resolv_conf = await container.read_file("/etc/resolv.conf")
            await container.overwrite("/etc/resolv.conf", plan.resolv_conf.encode())
        except SandboxFailure as error:
            await self.close()
            raise SandboxFailure(
                f"Name resolution of the sandbox could not be set up: {error}", code="network-failed"
            ) from error
