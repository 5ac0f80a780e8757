"""Host names as policies and programs write them, in one normal form, and the rules that admit them.

A rule is an exact name, a `*.` wildcard (every name below the suffix, not the suffix itself), an address or
a network in CIDR form. Names match names and addresses match addresses: what a name resolves to is judged
in `addresses`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Self

from benchflow.errors import PackageError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_MAX_NAME: Final = 253


class InvalidHostError(PackageError):
    """A text that is not a host name, address or host rule."""

    default_code = "invalid-host"


def normalize_host(text: str) -> str:
    """The one spelling of a host: lower case, ASCII (IDNA), no trailing dot; addresses canonical, IPv6
    without brackets.

    Anything else that some resolver might read as an address (`127.1`, `0x7f000001`) is refused, so that a
    name in normal form is never an address in disguise.
    """
    bracketed = text.startswith("[") and text.endswith("]")
    if bracketed or ":" in text:
        return str(_ipv6(text[1:-1] if bracketed else text))
    name = _ascii(text).lower().removesuffix(".")
    labels = name.split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        return str(_ipv4(name))
    if len(name) > _MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidHostError(f"{text[:80]!r} is not a host name")
    return name


def as_address(host: str) -> Address | None:
    """The address that a normalized host is, or None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class HostRules:
    """The hosts of an allowlist, parsed."""

    names: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
    """Each with its leading dot."""
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, rules: Iterable[str]) -> Self:
        """Rules as a package writes them; the first that is none is an `InvalidHostError`."""
        names: set[str] = set()
        suffixes: list[str] = []
        networks: list[Network] = []
        for rule in rules:
            text = rule.strip()
            if text.startswith("*."):
                suffixes.append("." + _suffix(rule, text[2:]))
            elif "/" in text:
                networks.append(_network(text))
            elif (address := as_address(host := normalize_host(text))) is not None:
                networks.append(ip_network(address))
            else:
                names.add(host)
        return cls(frozenset(names), tuple(dict.fromkeys(suffixes)), tuple(dict.fromkeys(networks)))

    def admit(self, host: str) -> bool:
        """Whether a host in normal form is on the list."""
        address = as_address(host)
        if address is not None:
            return any(address in network for network in self.networks)
        return host in self.names or host.endswith(self.suffixes)

    @property
    def ipv4_networks(self) -> tuple[IPv4Network, ...]:
        return tuple(network for network in self.networks if isinstance(network, IPv4Network))


def _suffix(rule: str, text: str) -> str:
    suffix = normalize_host(text)
    if as_address(suffix) is not None:
        raise InvalidHostError(f"{rule[:80]!r}: a wildcard needs a name, not an address")
    return suffix


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidHostError(f"{text[:80]!r} is not a host name or network: {error}") from None


def _ascii(text: str) -> str:
    if text.isascii():
        return text
    try:
        return text.encode("idna").decode("ascii")
    except UnicodeError:
        raise InvalidHostError(f"{text[:80]!r} is not a host name") from None


def _ipv4(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise InvalidHostError(f"{text[:80]!r} is not a host name or an address in four decimal parts") from None


def _ipv6(text: str) -> IPv6Address:
    try:
        address = IPv6Address(text)
    except ValueError:
        raise InvalidHostError(f"{text[:80]!r} is not a host name or address") from None
    if address.scope_id is not None:
        raise InvalidHostError(f"{text[:80]!r}: an address with a zone is only valid on one machine")
    return address
