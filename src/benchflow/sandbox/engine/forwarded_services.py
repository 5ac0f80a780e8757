"""What containers offer, forwarded to another container: through two processes that enter their namespaces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from benchflow.errors import UnsupportedError
from benchflow.sandbox.engine.machine.engine_host import EngineHost
from benchflow.sandbox.engine.namespace_sockets import Entry
from benchflow.sandbox.inside.offers import Offer
from benchflow.sandbox.network.forwarding import Forwarding
from benchflow.sandbox.protocol import NO_FORWARDING


class ForwardedServices:
    """The offers of a network and of one container in it, as they were when this was made."""

    def __init__(self, entry: Entry, offers: Sequence[Offer], unusable: Sequence[str]) -> None:
        self._entry = entry
        self._offers = offers
        self._forwarding: Forwarding | None = None
        self.lost: tuple[str, ...] = tuple(unusable)
        """What is not forwarded, with reasons."""

    async def forward(self, host: EngineHost, container: str, closed: Sequence[str]) -> None:
        """Make the offers reachable in a container, in which nothing runs yet."""
        if not self._offers:
            return
        pid = await host.first_process(container)
        there = await Entry.into(pid, pid)
        try:
            listeners, lost = await there.listen(self._offers, closed)
        finally:
            await there.close()
        self.lost += tuple(lost)
        self._forwarding = Forwarding(self._entry.dial)
        self._forwarding.start(listeners)

    async def close(self) -> None:
        """End every connection; idempotent."""
        forwarding, self._forwarding = self._forwarding, None
        if forwarding is not None:
            await forwarding.stop()
        await self._entry.close()


@asynccontextmanager
async def services_of(host: EngineHost, network: str, files: str) -> AsyncIterator[ForwardedServices]:
    """What is offered in the network of one container and among the files of another; closed after an error only."""
    if not host.facts.may_enter:
        raise UnsupportedError(NO_FORWARDING, code="forwarding-unsupported", path="forward")
    first = await host.first_process(network)
    entry = await Entry.into(first, first if files == network else await host.first_process(files))
    try:
        yield ForwardedServices(entry, *await entry.offers())
    except BaseException:
        with anyio.CancelScope(shield=True):
            await entry.close()
        raise
