"""Messages between the processes of a sandbox: one JSON object and some descriptors per packet.

A message that is too long for one packet travels in an anonymous file beside it. Each request carries the socket its
answers go to, so that callers share nothing but the sending end.

`Plan` is what the driver says about one sandbox: plain tuples that travel as JSON. A location in it is `store:REL`
(below the store), `volume:REL` (below the limited volumes, which only the zygote has mounted) or an absolute path.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from benchflow.sandbox.inside.accounts import AGENT

Message = dict[str, Any]
Identity = Literal["idmap", "identity", "range", "single"]
"""How user ids inside relate to the machine's: shifted for a driver that is root; the same where mounts cannot be
shifted; a range that `newuidmap` granted; or one id only, the driver's own."""

SHM_BYTES: Final = 64 << 20
"""The size of `/dev/shm` where no limit asks for less."""

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


def group_prefix(owner: str) -> str:
    """How the control groups of a driver's sandboxes begin."""
    return f"benchcube-{owner}-"


class Overlay(NamedTuple):
    """One copy-on-write mount: `lowers` top first, written to `upper`."""

    target: str
    lowers: tuple[str, ...]
    upper: str
    work: str


class Attachment(NamedTuple):
    """A file or folder of the machine that appears read-only at a path inside."""

    source: str
    target: str
    directory: bool


class Plan(NamedTuple):
    """All that the zygote and the supervisor need to bring one sandbox up."""

    hostname: str
    identity: Identity
    overlays: tuple[Overlay, ...]
    attachments: tuple[Attachment, ...]
    environment: dict[str, str]
    rlimits: dict[str, int]
    workdir: str = "/"
    user: str = AGENT
    cpus: tuple[int, ...] = ()
    pin_cpus: bool = False
    memory_watch: int = 0
    """Bytes that all processes together may use where no control group counts them; 0 for no watch."""
    shm_bytes: int = SHM_BYTES
    joins: bool = False
    """Whether it is in the network namespace of another sandbox, whose descriptor is sent with the plan."""
    names: tuple[str, ...] = ()
    """Further names of the loopback address."""

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        overlays = tuple(Overlay(*item) for item in values["overlays"])
        attachments = tuple(Attachment(*item) for item in values["attachments"])
        return cls(
            **{
                **values,
                "overlays": overlays,
                "attachments": attachments,
                "cpus": tuple(values["cpus"]),
                "names": tuple(values["names"]),
            }
        )
