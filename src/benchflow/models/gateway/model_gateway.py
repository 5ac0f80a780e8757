"""`Gateway`: what a driver runs so that agents in boxes can call models, without a key and without a network.

    box                                driver
    client ── 127.0.0.1:41999 ═══════> Listening ──> PassThrough ──> upstream, with its key
              (socket passed out)      token, limits, policy, record

One gateway serves all rollouts of a process from its event loop. Clients and protocols are loaded when first used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self

import anyio

from benchflow.models.gateway.call_failures import Patience
from benchflow.models.gateway.call_limits import NO_CALL_LIMITS, CallLimits, Meter, Scope
from benchflow.models.gateway.endpoints import Family
from benchflow.models.gateway.gateway_socket import Listening, Protocols, http_protocols
from benchflow.models.gateway.grants import Access, Grant, GrantRequest
from benchflow.models.gateway.upstreams import Upstreams, find_upstreams, keys_of
from benchflow.rewards import Attributed, Unscored

if TYPE_CHECKING:
    from benchflow.models.gateway.upstream.upstream_pool import UpstreamPool


class Gateway:
    """One per process or job. Use it within one event loop."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        limits: CallLimits = NO_CALL_LIMITS,
        scope: Scope = "job",
        patience: Patience | None = None,
        upstreams: Upstreams | None = None,
    ) -> None:
        """`environ` holds keys and base URLs; `limits` are those of all rollouts together, which are called `scope`."""
        self.upstreams: Final = find_upstreams(environ) if upstreams is None else upstreams
        self.keys: Final = keys_of(environ, self.upstreams)
        """Keys of providers: none of them enters a box."""
        self.patience: Final = patience or Patience()
        self.meter: Final = Meter(limits, scope)
        self._protocols: Protocols | None = None
        self._pool: UpstreamPool | None = None
        self._grants: set[Grant] = set()

    @property
    def families(self) -> Mapping[str, Family]:
        """The upstreams that can be asked, by name."""
        return self.upstreams.families

    def require_room(self) -> None:
        """Raise `Attributed` if a limit of all rollouts together is reached: then nothing is begun."""
        if (reached := self.meter.reached()) is not None:
            verdict = Unscored("cancelled", "plan", f"{reached.scope}-limit", f"{reached} It was not begun.")
            raise Attributed(verdict)

    def open(self, request: GrantRequest) -> Grant:
        """A grant for one rollout; the caller closes it."""
        grant = Grant(self, request, self.meter)
        self._grants = {known for known in self._grants if not known.closed} | {grant}
        return grant

    def listen(self, sock: socket.socket, access: Access) -> Listening:
        """Serve a listening socket for one access."""
        return Listening(sock, access, self._make_protocol)

    def _make_protocol(self, access: Access | None, calls: set[asyncio.Task[None]]) -> asyncio.Protocol:
        if self._protocols is None:
            from benchflow.models.gateway.pass_through import PassThrough

            self._protocols = http_protocols(PassThrough(self))
        return self._protocols(access, calls)

    @property
    def pool(self) -> UpstreamPool:
        """The connections to all upstreams."""
        if self._pool is None:
            from benchflow.models.gateway.upstream.upstream_pool import UpstreamPool

            self._pool = UpstreamPool(self.patience)
        return self._pool

    async def close(self) -> None:
        """Close all grants and connections; idempotent."""
        with anyio.CancelScope(shield=True):
            for grant in tuple(self._grants):
                await grant.close()
            self._grants.clear()
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
