"""Which addresses a proxy may dial: public ones, and what the operator permits.

An allow-listed name must not become a way to the machine itself, its neighbours or its cloud's metadata
service, so the address that a name resolved to is judged here, and exactly that address is dialled. What the operator
permits is read from `$BENCHCUBE_PERMITTED_NETWORKS`, addresses and CIDR networks separated by commas, for instance the
private address of a package mirror. Packages have no say in it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network
from typing import Final

from benchflow.errors import UsageError
from benchflow.sandbox.network.host_rules import Address, Network

_UNFIT: Final[tuple[tuple[Network, str], ...]] = tuple(
    (ip_network(network), reason)
    for reason, networks in {
        "this machine itself": ("0.0.0.0/8", "127.0.0.0/8"),
        "a private address": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
        "a link-local address": ("169.254.0.0/16",),
        "a metadata service": ("168.63.129.16/32",),
        "a multicast or reserved address": ("224.0.0.0/4", "240.0.0.0/4"),
        "not a public address": (
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24"),
            *("203.0.113.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
        ),
    }.items()
    for network in networks
)
"""Written out, for what the standard library calls public differs from one Python release to the next."""
_GLOBAL_V6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
VARIABLE: Final = "BENCHCUBE_PERMITTED_NETWORKS"


def refusal(address: Address, permitted: Iterable[Network] = ()) -> str | None:
    """Why `address` must not be dialled; None when it may be. What is in `permitted` may always be."""
    if any(address in network for network in permitted):
        return None
    meant = _unwrapped(address)
    if isinstance(meant, IPv6Address) and meant not in _GLOBAL_V6:
        return "this machine itself" if meant.is_loopback else "not a public address"
    for network, reason in _UNFIT:
        if meant in network:
            return reason
    return "an address of this machine" if _is_own(address) else None


def _unwrapped(address: Address) -> Address:
    """The IPv4 address embedded in an IPv6 address, or the address itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_own(address: Address) -> bool:
    """Whether a public address belongs to this machine: then the kernel would speak to it from itself.

    Connecting a datagram socket sends nothing.
    """
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return bool(probe.getsockname()[0] == str(address))
    except OSError:
        return False


def permitted_networks(environment: Mapping[str, str] | None = None) -> tuple[Network, ...]:
    """What the operator permits; what is not a network is a `UsageError`."""
    given = os.environ if environment is None else environment
    networks: list[Network] = []
    for item in given.get(VARIABLE, "").split(","):
        if not item.strip():
            continue
        try:
            networks.append(ip_network(item.strip(), strict=False))
        except ValueError:
            message = f"{VARIABLE}: {item.strip()!r} is neither an address nor a network."
            raise UsageError(message, code="permitted-networks") from None
    return tuple(networks)
