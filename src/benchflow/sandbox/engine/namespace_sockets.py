"""Opens sockets inside a container's namespaces and brings them here: the way out, and ways in.

A helper process (`inside.namespace_entry`) enters the namespaces and passes the sockets back.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import Process

from benchflow.errors import SandboxFailure
from benchflow.sandbox.engine.machine.ownership import ANCHOR
from benchflow.sandbox.host_process import chunks, end, open_process
from benchflow.sandbox.inside import namespace_entry
from benchflow.sandbox.inside.egress_gateway import EgressPlan
from benchflow.sandbox.inside.offers import MOST, Offer
from benchflow.sandbox.network.offered import connected, paired

_HELPER_SEC: Final = 30.0


async def open_gateway_of(pid: int, plan: EgressPlan) -> list[socket.socket]:
    """The listening sockets of a plan, in its order, in the namespace of the anchor `pid`."""
    helper = await Entry.start({**plan.message(), "pid": pid}, pid)
    sockets, helper.first = helper.first, []
    await helper.close()
    return sockets


async def dial_into(pid: int, port: int) -> socket.socket:
    """A socket connected to a port in the namespace of the anchor `pid`; a `ConnectionError` if nobody listens."""
    helper = await Entry.into(pid, pid)
    try:
        return await helper.dial(Offer("tcp", "127.0.0.1", port))
    finally:
        await helper.close()


async def listen_in(pid: int, port: int) -> socket.socket:
    """A socket that listens on the loopback in the namespace of the anchor `pid`, at `port` or at another one."""
    helper = await Entry.into(pid, pid)
    try:
        for tried in (port, 0):
            opened, _ = await helper.listen([Offer("tcp", "127.0.0.1", tried)], ())
            if opened:
                return opened[0][1]
    finally:
        await helper.close()
    raise SandboxFailure("No port is free inside the sandbox.", code="no-port")


class Entry:
    """A helper process in the namespaces of a container."""

    def __init__(self, process: Process, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._asking = anyio.Lock()
        self.first: list[socket.socket] = []
        """Those that came with the first answer."""

    @classmethod
    async def into(cls, network: int, files: int) -> Entry:
        """Enter the network of one anchor and the mounts of another, or of the same."""
        return await cls.start({"pid": network, "files": files}, network, files)

    @classmethod
    async def start(cls, wanted: Mapping[str, Any], *anchors: int) -> Entry:
        """Start the helper and wait for its first answer."""
        if not all(_is_anchor(pid) for pid in anchors):
            raise SandboxFailure("The container's first process is not on this machine.", code="network-failed")
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setblocking(False)
        with there:
            request = json.dumps({**wanted, "socket": there.fileno()})
            argv = [sys.executable, "-P", "-m", namespace_entry.__name__, request]
            helper = cls(await open_process(argv, stdin=False, pass_fds=(there.fileno(),)), here)
        try:
            _, helper.first = await helper._answer()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await helper.close()
            raise
        return helper

    async def close(self) -> None:
        """End the helper; sockets that it passed stay open. Idempotent."""
        self._channel.close()
        for opened in self.first:
            opened.close()
        await end(self._process)

    async def offers(self) -> tuple[list[Offer], list[str]]:
        """What processes inside offer to others, and what of it cannot be forwarded."""
        answer, _ = await self._ask({"op": "offers"})
        return [Offer.from_message(values) for values in answer["offers"]], answer["unusable"]

    async def listen(
        self, wanted: Sequence[Offer], closed: Sequence[str]
    ) -> tuple[list[tuple[Offer, socket.socket]], list[str]]:
        """Listening sockets inside at the addresses of another box's offers, and which of them cannot be had."""
        answer, sockets = await self._ask({"op": "listen", "offers": wanted, "closed": list(closed)})
        return paired(wanted, answer["reasons"], sockets)

    async def dial(self, offer: Offer) -> socket.socket:
        """A socket that is connected to an offer; `ConnectionError` if nobody takes it."""
        answer, sockets = await self._ask({"op": "dial", "offer": offer})
        return await connected(offer, answer, sockets)

    async def _ask(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], list[socket.socket]]:
        async with self._asking:
            try:
                self._channel.send(json.dumps(request).encode())
            except OSError as error:
                raise SandboxFailure(
                    "The sandbox's network can no longer be entered.", code="network-failed"
                ) from error
            with anyio.CancelScope(shield=True):  # an answer that nobody takes would be that of the next request
                answer = await self._answer()
        return answer

    async def _answer(self) -> tuple[dict[str, Any], list[socket.socket]]:
        data = b""
        descriptors: list[int] = []
        with anyio.move_on_after(_HELPER_SEC):
            await anyio.wait_readable(self._channel)
            data, descriptors, _, _ = socket.recv_fds(self._channel, namespace_entry.REQUEST_BYTES, MOST)
        if data:
            return json.loads(data), [socket.socket(fileno=descriptor) for descriptor in descriptors]
        words = await self._words()
        raise SandboxFailure(f"The sandbox's network could not be entered: {words}", code="network-failed")

    async def _words(self) -> str:
        text = b""
        if self._process.stderr is not None:
            with anyio.move_on_after(1):
                async for data in chunks(self._process.stderr):
                    text += data
        return (text.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]


def _is_anchor(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(ANCHOR.encode() + b"\0hold")
    except OSError:
        return False
