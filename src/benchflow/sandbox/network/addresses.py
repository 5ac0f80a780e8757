"""Which addresses a proxy may dial: public ones, and what the operator permits.

An allow-listed name must not become a way to the machine itself, its neighbours or its cloud's metadata
service, so the address that a name resolved to is judged here, and exactly that address is dialled.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final

from benchflow.sandbox.network.hosts import Address, Network

_METADATA: Final = frozenset({IPv4Address("168.63.129.16")})
"""Metadata services at public addresses; the others are link-local or private anyway."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
_GLOBAL_V6: Final = IPv6Network("2000::/3")


def refusal(address: Address, permitted: Iterable[Network] = ()) -> str | None:
    """Why `address` must not be dialled; None when it may be. What is in `permitted` may always be."""
    if any(address in network for network in permitted):
        return None
    for candidate in _meant(address):
        if reason := _unfit(candidate):
            return reason
    return "an address of this machine" if _is_own(address) else None


def _unfit(address: Address) -> str | None:
    if address in _METADATA:
        return "a metadata service"
    if address.is_loopback or address.is_unspecified:
        return "this machine itself"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if not address.is_global or (isinstance(address, IPv6Address) and address not in _GLOBAL_V6):
        return "not a public address"
    return None


def _meant(address: Address) -> tuple[Address, ...]:
    """The addresses that packets to `address` may end at: IPv6 has several ways to wrap IPv4."""
    if isinstance(address, IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in _NAT64:
        return (IPv4Address(int(address) & 0xFFFFFFFF),)
    return (address, *(address.teredo or ()), *((address.sixtofour,) if address.sixtofour else ()))


def _is_own(address: Address) -> bool:
    """Whether a public address belongs to this machine: then the kernel would answer from that same address.

    Connecting a datagram socket sends nothing.
    """
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return bool(probe.getsockname()[0] == str(address))
    except OSError:
        return False
