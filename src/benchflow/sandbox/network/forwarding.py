"""Makes what one box offers reachable in another: connections that are accepted there are made again here and relayed.

Only the second box can open connections; the first can do no more than answer. Everything is bounded, and ends with
`stop`. Of a Unix socket bytes are relayed, neither descriptors nor the identity of the peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from typing import Any, Final

from benchflow.errors import SandboxFailure
from benchflow.sandbox.inside.offers import WILDCARDS, Offer
from benchflow.sandbox.network.proxying.accepting import ConnectionServer
from benchflow.sandbox.network.proxying.connection import Stream, relay

Dial = Callable[[Offer], Awaitable[socket.socket]]
"""Gives a socket that is connected to an offer, or an `OSError`."""
Listen = Callable[[Offer], Awaitable[socket.socket | None]]
"""Gives a socket at the address of an offer in the second box; None while another has it."""

_CONNECTIONS: Final = 512
_PEERS: Final = 64
_WAITING: Final = 16
_AT_A_TURN: Final = 16
_DATAGRAM: Final = 1 << 16
_CONNECT_SEC: Final = 15.0
_RETRY_SEC: Final = 0.05
_RESUME_SEC: Final = (0.5, 1.0)
"""How soon to look whether an address is free again, at first and later."""
_IDLE_SEC: Final = 600.0


class Forwarding:
    """The offers of one box in another."""

    def __init__(self, dial: Dial, listen: Listen | None = None) -> None:
        self._dial = dial
        self._listen = listen
        self._resuming: set[asyncio.Task[None]] = set()
        self.gave_way: dict[Offer, None] = {}
        """Offers whose address a process of the second box has bound itself, for a time."""
        self._server = ConnectionServer(max_connections=_CONNECTIONS, timeout=_IDLE_SEC)
        self._datagrams = _Datagrams(self._reach)

    def start(self, listeners: Iterable[tuple[Offer, socket.socket]]) -> None:
        """Serve sockets of the second box, which belong to this object from now on."""
        for offer, opened in listeners:
            if opened.type == socket.SOCK_DGRAM:
                self._datagrams.serve(offer, opened)
            else:
                self._serve(offer, opened)

    def _serve(self, offer: Offer, opened: socket.socket) -> None:
        def give_way() -> None:
            self.gave_way[offer] = None
            if self._listen is None:
                return
            task = asyncio.get_running_loop().create_task(self._resume(offer, self._listen))
            self._resuming.add(task)
            task.add_done_callback(self._resuming.discard)

        self._server.serve(opened, self._handler(offer), give_way)

    async def _resume(self, offer: Offer, listen: Listen) -> None:
        """Serve an address again as soon as the process that took it has closed it."""
        wait, longest = _RESUME_SEC
        while True:
            await asyncio.sleep(wait)
            try:
                opened = await listen(offer)
            except (OSError, SandboxFailure):  # the box is gone
                return
            if opened is not None:
                self._serve(offer, opened)
                return
            wait = min(wait * 2, longest)

    async def stop(self) -> None:
        """Close the sockets and every connection through them; idempotent."""
        resuming = list(self._resuming)
        for task in resuming:
            task.cancel()
        if resuming:
            await asyncio.wait(resuming)
        await self._datagrams.close()
        await self._server.close()

    def _handler(self, offer: Offer) -> Callable[[Stream], Awaitable[None]]:
        async def serve(client: Stream) -> None:
            try:
                server = Stream(await self._reach(_dialled(offer, client)), timeout=None)
            except (OSError, SandboxFailure):  # nobody listens any more, or the box has gone
                client.abort()
                return
            with server:
                if not await relay(client, server, idle=_IDLE_SEC):
                    client.abort()
                    server.abort()

        return serve

    async def _reach(self, offer: Offer) -> socket.socket:
        async with asyncio.timeout(_CONNECT_SEC):
            while True:
                try:
                    return await self._dial(offer)
                except BlockingIOError:  # a Unix socket whose queue is full
                    await asyncio.sleep(_RETRY_SEC)


def _dialled(offer: Offer, client: Stream) -> Offer:
    """The offer at the address that a client of a wildcard has dialled, if the other box has it too."""
    if offer.place not in WILDCARDS:
        return offer
    address = client.local_address[0]
    if not ip_address(address.removeprefix("::ffff:")).is_loopback:
        address = "127.0.0.1" if "." in address else "::1"
    return offer._replace(place=address)


class _Datagrams:
    """Datagrams and their answers: each sender has a socket of its own in the other box, the last few of them."""

    def __init__(self, reach: Dial) -> None:
        self._reach = reach
        self._loop = asyncio.get_running_loop()
        self._listening: dict[socket.socket, Offer] = {}
        self._peers: OrderedDict[tuple[socket.socket, Any], _Peer] = OrderedDict()

    def serve(self, offer: Offer, opened: socket.socket) -> None:
        opened.setblocking(False)
        if offer.place in WILDCARDS:
            offer = offer._replace(place="127.0.0.1" if offer.domain == socket.AF_INET else "::1")
        self._listening[opened] = offer
        self._loop.add_reader(opened, self._receive, opened)

    def _receive(self, opened: socket.socket) -> None:
        for _ in range(_AT_A_TURN):
            try:
                data, sender = opened.recvfrom(_DATAGRAM)
            except OSError:
                return
            peer = self._peers.get((opened, sender))
            if peer is None:
                if len(self._peers) >= _PEERS:
                    self._peers.popitem(last=False)[1].close()
                peer = self._peers[opened, sender] = _Peer(opened, sender, self._reach, self._listening[opened])
            self._peers.move_to_end((opened, sender))
            peer.send(data)

    async def close(self) -> None:
        for opened in self._listening:
            self._loop.remove_reader(opened)
        ended = [peer.close() for peer in self._peers.values()]
        self._peers.clear()
        if ended:
            await asyncio.wait(ended)
        for opened in self._listening:
            opened.close()
        self._listening.clear()


class _Peer:
    """One sender of datagrams."""

    def __init__(self, opened: socket.socket, sender: Any, reach: Dial, offer: Offer) -> None:
        self._opened = opened
        self._sender = sender
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)
        self._task = asyncio.get_running_loop().create_task(self._run(reach, offer))

    def send(self, data: bytes) -> None:
        """Pass a datagram on, or drop it if too many wait, as a network does."""
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait(data)

    def close(self) -> asyncio.Task[None]:
        self._task.cancel()
        return self._task

    async def _run(self, reach: Dial, offer: Offer) -> None:
        try:
            server = await reach(offer)
        except (OSError, SandboxFailure):
            return
        with server:
            server.setblocking(False)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ask(server))
                if isinstance(self._sender, tuple | bytes):  # a path would be looked up among the driver's files
                    tasks.create_task(self._answer(server))

    async def _ask(self, server: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await self._waiting.get()
            with contextlib.suppress(OSError):
                await loop.sock_sendall(server, data)

    async def _answer(self, server: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await loop.sock_recv(server, _DATAGRAM)
            except ConnectionRefusedError:  # of an earlier datagram
                continue
            except OSError:
                return
            with contextlib.suppress(OSError):
                self._opened.sendto(data, self._sender)
