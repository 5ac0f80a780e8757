"""The name service of a sandbox: admitted names get a fake address, all others do not exist.

No query goes outside: the proxy resolves names when a connection is made. Packets are parsed
strictly; what is malformed gets an error or no answer.
"""

from __future__ import annotations

import socket
import struct
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from benchflow.sandbox.inside.egress_gateway import LINK_NETWORK
from benchflow.sandbox.network.attempt_log import AuditLog
from benchflow.sandbox.network.egress_plan import FAKE_NETWORK
from benchflow.sandbox.network.host_rules import InvalidHostError, as_address, normalize_host
from benchflow.sandbox.network.proxying.connection import ProtocolError, Stream

NO_ERROR, FORMAT_ERROR, NO_SUCH_NAME, NOT_IMPLEMENTED = 0, 1, 3, 4
TYPE_A: Final = 1
CLASS_IN: Final = 1
TTL_SECONDS: Final = 60
_HEADER: Final = 12
_MAX_LABEL: Final = 63
_MAX_NAME: Final = 255
_MAX_PACKET: Final = 4096
_PACKETS_PER_TURN: Final = 32
_NEVER_PUBLIC: Final = frozenset({"localhost", "arpa"})
MAX_NAMES: Final = 16_384


@dataclass(frozen=True, slots=True)
class Query:
    """A question for the addresses of one name."""

    header: bytes
    question: bytes
    """As it was asked, to be repeated in the answer."""
    name: str
    type: int
    type_class: int


class MalformedQueryError(Exception):
    """A packet that is not a plain query; `reply` is the reply to send, empty for none."""

    def __init__(self, reply: bytes) -> None:
        super().__init__()
        self.reply = reply


def parse_query(packet: bytes) -> Query:
    """The question in a packet; `MalformedQueryError` for anything but one plain question."""
    header = packet[:_HEADER]
    if len(header) < _HEADER or header[2] & 0x80:
        raise MalformedQueryError(b"")
    if header[2] & 0x78:
        raise MalformedQueryError(_reply(header, b"", NOT_IMPLEMENTED))
    if header[4:8] != b"\0\1\0\0":
        raise MalformedQueryError(_reply(header, b"", FORMAT_ERROR))
    labels, end = _labels(packet, _HEADER)
    question = packet[_HEADER : end + 4]
    if not end or len(question) != end + 4 - _HEADER:
        raise MalformedQueryError(_reply(header, b"", FORMAT_ERROR))
    kind, type_class = struct.unpack("!HH", question[-4:])
    return Query(header, question, b".".join(labels).decode("latin-1"), kind, type_class)


def _labels(packet: bytes, at: int) -> tuple[list[bytes], int]:
    """The labels from `at` on and where they end; an end of 0 if they are not a name."""
    labels: list[bytes] = []
    start = at
    while at < len(packet) and at - start < _MAX_NAME:
        size = packet[at]
        if size == 0:
            return labels, at + 1
        label = packet[at + 1 : at + 1 + size]
        if size > _MAX_LABEL or len(label) < size or b"." in label:
            break
        labels.append(label)
        at += 1 + size
    return [], 0


def render_answer(query: Query, code: int, address: IPv4Address | None = None) -> bytes:
    """The answer to a query: a code, and an address where there is one."""
    if address is None:
        return _reply(query.header, query.question, code)
    record = struct.pack("!HHHIH", 0xC000 | _HEADER, TYPE_A, CLASS_IN, TTL_SECONDS, 4) + address.packed
    return _reply(query.header, query.question, code, record)


def _reply(header: bytes, question: bytes, code: int, record: bytes = b"") -> bytes:
    flags = 0x8080 | (header[2] & 0x01) << 8 | code
    counts = struct.pack("!HHHHH", flags, 1 if question else 0, 1 if record else 0, 0, 0)
    return header[:2] + counts + question + record


class FakeNames:
    """The names of one sandbox. Bounded: the name that was not asked for the longest time makes room.

    Its address is reused only after all others, so a stale one points nowhere instead of to another name.
    """

    def __init__(self, *, keep: int = MAX_NAMES) -> None:
        self._keep = keep
        self._addresses: OrderedDict[str, int] = OrderedDict()
        self._names: dict[int, str] = {}
        self._first = int(FAKE_NETWORK.network_address) + 1
        self._last = int(LINK_NETWORK.network_address) - 1
        self._next = self._first

    def address_of(self, name: str) -> IPv4Address:
        """The address for a name in normal form, the same one as long as it is kept."""
        value = self._addresses.get(name)
        if value is None:
            value = self._free()
            self._addresses[name] = value
            self._names[value] = name
        self._addresses.move_to_end(name)
        return IPv4Address(value)

    def name_of(self, address: str) -> str | None:
        """The name that an address was handed out for."""
        return self._names.get(int(IPv4Address(address)))

    def _free(self) -> int:
        if len(self._addresses) >= self._keep:
            _, oldest = self._addresses.popitem(last=False)
            del self._names[oldest]
        while self._next in self._names:
            self._advance()
        value = self._next
        self._advance()
        return value

    def _advance(self) -> None:
        self._next = self._first if self._next == self._last else self._next + 1


class NameService:
    """Answers the queries of one sandbox."""

    def __init__(self, admits: Callable[[str], bool], names: FakeNames, audit: AuditLog) -> None:
        self._admits = admits
        self._names = names
        self._audit = audit

    def answer(self, packet: bytes) -> bytes:
        """The answer to a packet; empty for those that deserve none."""
        try:
            query = parse_query(packet)
        except MalformedQueryError as error:
            return error.reply
        host = self._admitted(query)
        self._audit.record("dns", host or query.name, None, "refused" if host is None else "allowed")
        if host is None:
            return render_answer(query, NO_SUCH_NAME)
        if query.type != TYPE_A:
            return render_answer(query, NO_ERROR)
        return render_answer(query, NO_ERROR, self._names.address_of(host))

    def _admitted(self, query: Query) -> str | None:
        """The name in normal form when it may be known."""
        try:
            host = normalize_host(query.name) if query.name.isascii() else ""
        except InvalidHostError:
            return None
        special = not host or as_address(host) is not None or host.rpartition(".")[2] in _NEVER_PUBLIC
        return host if query.type_class == CLASS_IN and not special and self._admits(host) else None

    async def serve_stream(self, client: Stream) -> None:
        """Answer queries over TCP, each with its length in front."""
        while prefix := await client.read_exactly(2):
            reply = self.answer(await client.read_exactly(int.from_bytes(prefix)))
            if not reply:
                raise ProtocolError("not a query")
            await client.write(len(reply).to_bytes(2) + reply)

    def answer_datagrams(self, sock: socket.socket) -> None:
        """Answer what has come in on a non-blocking UDP socket, a bounded number of packets."""
        with suppress(OSError):  # nothing more to read, or a client that is gone
            for _ in range(_PACKETS_PER_TURN):
                packet, sender = sock.recvfrom(_MAX_PACKET)
                if reply := self.answer(packet):
                    sock.sendto(reply, sender)
