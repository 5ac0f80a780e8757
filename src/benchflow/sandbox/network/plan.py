"""What has to exist inside a sandbox so that its policy works: sockets, routes, name service, environment.

Pure data from a `NetworkPolicy`. `gateway` builds it inside, `egress` serves the sockets outside. Every sandbox uses the
same addresses, all from the benchmarking range 198.18.0.0/15, which never appears on the public internet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Final, Literal

from benchflow.sandbox.network.hosts import HostRules
from benchflow.sandbox.protocol import NetworkPolicy

Role = Literal["proxy", "transparent", "dns"]
Transport = Literal["tcp", "udp"]

FAKE_NETWORK: Final = IPv4Network("198.18.0.0/15")
"""Where the addresses come from that the name service hands out."""
LINK_NETWORK: Final = IPv4Network("198.19.255.252/30")
"""The wire between a sandbox and its gateway; never handed out."""
GATEWAY_ADDRESS: Final = IPv4Address("198.19.255.253")
SANDBOX_ADDRESS: Final = IPv4Address("198.19.255.254")
PROXY_PORT: Final = 3128
PROXY_URL: Final = f"http://{GATEWAY_ADDRESS}:{PROXY_PORT}"
ALLOWLIST_PORTS: Final = (80, 443)
"""Ports where programs that know nothing of the proxy are served; the proxy itself reaches every port."""
PUBLIC_PORTS: Final = (22, 80, 443, 8080, 8443)
RESOLV_CONF: Final = f"search .\nnameserver {GATEWAY_ADDRESS}\noptions timeout:2 attempts:2\n"


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket to be opened inside and handed to `Egress.start` together with its role."""

    role: Role
    transport: Transport
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class EgressPlan:
    """Everything a backend does inside a sandbox for one policy; empty for `none`."""

    listeners: tuple[Listener, ...] = ()
    routes: tuple[IPv4Network, ...] = ()
    """What the sandbox routes to its gateway; everything else is unreachable at once."""
    resolv_conf: str = ""
    """The content of `/etc/resolv.conf`."""
    environment: Mapping[str, str] | None = None
    """Variables for every command; None where there is no proxy."""


def plan_egress(policy: NetworkPolicy) -> EgressPlan:
    """What `policy` needs inside. An invalid host is a `PackageError`, so nothing starts half-filtered."""
    if policy.mode == "none":
        return EgressPlan()
    if policy.mode == "public":
        ports, routes = PUBLIC_PORTS, (IPv4Network("0.0.0.0/0"),)
    else:
        rules = HostRules.parse(policy.hosts)
        ports, routes = ALLOWLIST_PORTS, (FAKE_NETWORK, *rules.ipv4_networks)
    gateway = str(GATEWAY_ADDRESS)
    return EgressPlan(
        listeners=(
            Listener("proxy", "tcp", gateway, PROXY_PORT),
            Listener("dns", "udp", gateway, 53),
            Listener("dns", "tcp", gateway, 53),
            *(Listener("transparent", "tcp", "0.0.0.0", port) for port in ports),  # noqa: S104 - in the gateway's own namespace
        ),
        routes=routes,
        resolv_conf=RESOLV_CONF,
        environment=proxy_environment(PROXY_URL),
    )


def proxy_environment(proxy_url: str, *, direct: tuple[str, ...] = ()) -> dict[str, str]:
    """The variables that point programs to the proxy, in both spellings; `direct` names hosts to reach without it."""
    no_proxy = ",".join(("localhost", "127.0.0.1", "::1", *direct))
    values = {"HTTP_PROXY": proxy_url, "HTTPS_PROXY": proxy_url, "ALL_PROXY": proxy_url, "NO_PROXY": no_proxy}
    return values | {name.lower(): value for name, value in values.items()}
