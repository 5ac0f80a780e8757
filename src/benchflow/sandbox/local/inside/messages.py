"""Messages between the processes of a sandbox: one JSON object and some descriptors per packet.

A message that is too long for one packet travels in an anonymous file beside it. Each request carries the socket its
answers go to, so that callers share nothing but the sending end.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

Message = dict[str, Any]

_PACKET: Final = 1 << 16
_DESCRIPTORS: Final = 253
_ELSEWHERE: Final = b"@"
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
_decode: Final = json.JSONDecoder().raw_decode


def channel() -> tuple[socket.socket, socket.socket]:
    """Two connected ends that keep message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send a message with copies of some descriptors, whole or not at all."""
    data = _encode(message).encode()
    attached = list(fds)
    spill = -1
    if len(data) > _PACKET:
        spill = os.memfd_create("message", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(spill), "wb") as file:
            file.write(data)
        attached.append(spill)
        data = _ELSEWHERE
    try:
        sock.sendmsg([data], _rights(attached))
    finally:
        if spill >= 0:
            os.close(spill)


def send_descriptors(sock: socket.socket, fds: Sequence[int]) -> None:
    """Send copies of some descriptors with one byte that says nothing."""
    sock.sendmsg([b"\0"], _rights(fds))


def _rights(fds: Sequence[int]) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []


def receive(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """The next message and its descriptors; None when the other end is gone."""
    space = socket.CMSG_SPACE(4 * _DESCRIPTORS)
    data, ancillary, _, _ = sock.recvmsg(_PACKET, space, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(payload[: len(payload) // numbers.itemsize * numbers.itemsize])
            fds.extend(numbers)
    if not data:
        return None, fds
    if data == _ELSEWHERE:
        spill = fds.pop()
        try:
            data = os.pread(spill, os.fstat(spill).st_size, 0)
        finally:
            os.close(spill)
    message: Message = _decode(data.decode())[0]
    return message, fds
