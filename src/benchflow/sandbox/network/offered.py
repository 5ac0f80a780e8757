"""What the driver makes of answers about offers, wherever a process inside gave them."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from benchflow.errors import SandboxFailure
from benchflow.sandbox.inside.offers import Offer


async def connected(offer: Offer, answer: Mapping[str, Any], sockets: Sequence[socket.socket]) -> socket.socket:
    """The socket of an answer, once it is connected; `ConnectionError` if nobody takes it, `BlockingIOError` if nobody
    can take it at the moment."""
    if not sockets:
        number = answer.get("refused", errno.EMFILE)
        kind = BlockingIOError if number == errno.EAGAIN else ConnectionRefusedError
        raise kind(number, f"No process responds at {offer} inside the sandbox: {os.strerror(number)}.")
    (opened,) = sockets
    try:
        if offer.kind == "tcp":
            await anyio.wait_writable(opened)
            if number := opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise ConnectionRefusedError(number, f"No process responds at {offer} inside the sandbox.")
    except BaseException:
        opened.close()
        raise
    return opened


def paired(
    wanted: Sequence[Offer], reasons: Sequence[str | None], sockets: Sequence[socket.socket]
) -> tuple[list[tuple[Offer, socket.socket]], list[str]]:
    """The offers with their listening sockets, and those that have none, with the reason."""
    if len(sockets) != list(reasons).count(None):
        for opened in sockets:
            opened.close()
        raise SandboxFailure("This process has too many open files to forward ports.", code="too-many-files")
    had = [offer for offer, reason in zip(wanted, reasons, strict=True) if reason is None]
    lost = [f"{offer} ({reason})" for offer, reason in zip(wanted, reasons, strict=True) if reason is not None]
    return list(zip(had, sockets, strict=True)), lost
