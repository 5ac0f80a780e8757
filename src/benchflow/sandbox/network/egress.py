"""One sandbox's way out: a proxy and a name service under one policy, served on sockets that live inside it.

`plan_egress` says what must exist inside, `open_gateway` makes it there, `Egress` serves the sockets from the driver's event
loop. A process holds as many as it has sandboxes; they share nothing but the loop and the resolver's threads.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network

from benchflow.sandbox.network.audit import Attempt
from benchflow.sandbox.network.dialer import Resolver
from benchflow.sandbox.network.plan import Role
from benchflow.sandbox.protocol import NetworkPolicy


class Egress:
    """Serves the sockets of one sandbox under one policy. A new policy is a new `Egress`."""

    def __init__(
        self,
        policy: NetworkPolicy,
        *,
        resolver: Resolver | None = None,
        permitted: Iterable[IPv4Network | IPv6Network] = (),
        on_attempt: Callable[[Attempt], None] | None = None,
        secret: str | None = None,
    ) -> None:
        """`permitted` are networks that may be dialled although they are not public: the operator's word, never a
        package's. `on_attempt` gets every attempt as it is decided. `secret` is asked of clients of the explicit proxy, for
        sockets that others can reach too."""

    async def start(self, sockets: Iterable[tuple[Role, socket.socket]]) -> None:
        """Serve the sockets (TCP ones already listening) from the running loop; they belong to this object from now on."""

    async def stop(self) -> None:
        """Close the sockets and every connection through them; idempotent. Nothing of the old policy lives on."""
