"""One sandbox's way out: a proxy and a name service under one policy, served on sockets that live inside it.

`plan_egress` says what must exist inside, `open_gateway` makes it there, `Egress` serves the sockets from the
driver's event loop. A process holds as many as it has sandboxes; they share nothing but the loop and the
resolver's threads.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchflow.sandbox.inside.egress_gateway import Role
from benchflow.sandbox.network.attempt_log import Attempt, AuditLog, unreached
from benchflow.sandbox.network.host_rules import HostRules, Network
from benchflow.sandbox.network.proxying.accepting import ConnectionServer
from benchflow.sandbox.network.proxying.dialer import Dialer, Outbound, Resolver
from benchflow.sandbox.network.proxying.dns import FakeNames, NameService
from benchflow.sandbox.network.proxying.proxy import Proxy
from benchflow.sandbox.protocol import FailedRequest, NetworkPolicy


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """What one sandbox may take of the driver."""

    connections: int = 256
    """At once; more wait."""
    message_seconds: float = 60.0
    """Patience for the next bytes of a message, and for the other side to take some."""
    connect_seconds: float = 15.0
    idle_seconds: float = 600.0
    """Patience for a tunnel in which both sides are silent."""


class Egress:
    """Serves the sockets of one sandbox under one policy. A new policy is a new `Egress`."""

    def __init__(
        self,
        policy: NetworkPolicy,
        *,
        resolver: Resolver | None = None,
        permitted: Iterable[Network] = (),
        on_attempt: Callable[[Attempt], None] | None = None,
        secret: str | None = None,
        limits: EgressLimits | None = None,
    ) -> None:
        """An invalid host in the policy is an `InvalidHostError`.

        `resolver` replaces the machine's name service. `permitted` are networks that may be dialled although
        they are not public: set by the operator, never by a package. `on_attempt` gets every attempt as it is
        decided. `secret` is required of clients of the explicit proxy (`proxy_url` has it), for sockets that
        others can reach too.
        """
        self._limits = limits or EgressLimits()
        self._audit = AuditLog(on_attempt)
        self._names = FakeNames()
        dialer = Dialer(resolver=resolver, permitted=permitted, timeout=self._limits.connect_seconds)
        rules = None if policy.mode == "public" else HostRules.parse(policy.hosts)
        outbound = Outbound(rules, dialer, self._audit, timeout=self._limits.message_seconds)
        self._proxy = Proxy(outbound, self._names, idle=self._limits.idle_seconds, secret=secret)
        self._name_service = NameService(outbound.admits, self._names, self._audit)
        self._server: ConnectionServer | None = None
        self._datagrams: list[socket.socket] = []

    async def start(self, sockets: Iterable[tuple[Role, socket.socket]]) -> None:
        """Serve the sockets, TCP ones already listening, from the running loop.

        They belong to this object from now on. Call it once.
        """
        if self._server is not None:
            raise RuntimeError("an Egress is started once")
        loop = asyncio.get_running_loop()
        self._server = ConnectionServer(max_connections=self._limits.connections, timeout=self._limits.message_seconds)
        for role, sock in sockets:
            if sock.type == socket.SOCK_DGRAM:
                sock.setblocking(False)
                self._datagrams.append(sock)
                loop.add_reader(sock, self._name_service.answer_datagrams, sock)
            elif role == "dns":
                self._server.serve(sock, self._name_service.serve_stream)
            else:
                self._server.serve(sock, self._proxy.explicit if role == "proxy" else self._proxy.transparent)

    async def stop(self) -> None:
        """Close the sockets and every connection through them; idempotent."""
        loop = asyncio.get_running_loop()
        while self._datagrams:
            sock = self._datagrams.pop()
            loop.remove_reader(sock)
            sock.close()
        if self._server is not None:
            await self._server.close()

    @property
    def failed_requests(self) -> tuple[FailedRequest, ...]:
        """The addresses that were not reached at last."""
        return unreached(self._audit.attempts, self._audit.silent)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The newest attempts to get out, oldest first."""
        return self._audit.attempts
