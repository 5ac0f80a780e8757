"""Route-netlink messages as bytes, and one function that sends them: no `ip` command is needed inside a
sandbox.

Only what a gateway needs: a pair of virtual wires, addresses, links up, routes. Standard library only, so
that a supervisor can load it before it changes its root.
"""

from __future__ import annotations

import os
import socket
import struct
from ipaddress import IPv4Address, IPv4Network
from typing import Final

RTM_NEWLINK: Final = 16
RTM_DELLINK: Final = 17
RTM_NEWADDR: Final = 20
RTM_NEWROUTE: Final = 24
_REQUEST_ACK: Final = 0x1 | 0x4
_CREATE_EXCLUSIVE: Final = 0x400 | 0x200
_IFF_UP: Final = 0x1
_NLMSG_ERROR: Final = 2
_NESTED: Final = 0x8000
_TABLE_MAIN: Final = 254
_PROTOCOL_STATIC: Final = 4


def veth_pair(name: str, peer: str, peer_namespace: int) -> bytes:
    """Make the wire `name` here and its other end `peer` in the network namespace behind that descriptor."""
    other = _link(0, 0) + _attribute(3, _text(peer)) + _attribute(28, struct.pack("=I", peer_namespace))
    data = _attribute(2 | _NESTED, _attribute(1 | _NESTED, other))
    info = _attribute(18 | _NESTED, _attribute(1, b"veth") + data)
    return _message(RTM_NEWLINK, _CREATE_EXCLUSIVE, _link(0, 0) + _attribute(3, _text(name)) + info)


def link_up(index: int) -> bytes:
    """Bring the interface up."""
    return _message(RTM_NEWLINK, 0, _link(index, _IFF_UP))


def delete_link(index: int) -> bytes:
    """Remove the interface; of a pair of wires both ends go at once."""
    return _message(RTM_DELLINK, 0, _link(index, 0))


def address(index: int, value: IPv4Address, prefix: int) -> bytes:
    """Give the interface an address in a network of that prefix length."""
    body = struct.pack("=BBBBI", socket.AF_INET, prefix, 0, 0, index)
    return _message(RTM_NEWADDR, _CREATE_EXCLUSIVE, body + _attribute(2, value.packed) + _attribute(1, value.packed))


def local_route(network: IPv4Network, index: int) -> bytes:
    """Deliver every packet for `network` to sockets of this namespace, as if each address were its own
    (AnyIP).
    """
    return _route(network, scope=254, kind=2, attributes=_attribute(4, struct.pack("=I", index)))


def route_via(network: IPv4Network, gateway: IPv4Address, index: int) -> bytes:
    """Send packets for `network` to `gateway` through the interface."""
    attributes = _attribute(5, gateway.packed) + _attribute(4, struct.pack("=I", index))
    return _route(network, scope=0, kind=1, attributes=attributes)


def send(*messages: bytes) -> None:
    """Apply the messages to the current network namespace in order; the first refusal is an OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as kernel:
        kernel.bind((0, 0))
        for message in messages:
            kernel.send(message)
            reply = kernel.recv(65536)
            kind = struct.unpack_from("=H", reply, 4)[0]
            error = struct.unpack_from("=i", reply, 16)[0] if kind == _NLMSG_ERROR else -71
            if error:
                raise OSError(-error, f"netlink: {os.strerror(-error)}")


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, _REQUEST_ACK | flags, 1, 0) + body


def _link(index: int, up: int) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, up, up)


def _route(network: IPv4Network, *, scope: int, kind: int, attributes: bytes) -> bytes:
    body = struct.pack(
        "=BBBBBBBBI", socket.AF_INET, network.prefixlen, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, scope, kind, 0
    )
    return _message(RTM_NEWROUTE, _CREATE_EXCLUSIVE, body + _attribute(1, network.network_address.packed) + attributes)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _text(value: str) -> bytes:
    return value.encode("ascii") + b"\0"
