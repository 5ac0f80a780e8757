"""What has to exist inside a sandbox so that its policy works: sockets, routes, name service, environment.

Pure data from a `NetworkPolicy`. `egress_gateway` builds it inside, `egress` serves the sockets outside. Every
sandbox uses the same addresses, all from the benchmarking range 198.18.0.0/15, which never appears on the
public internet.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Final

from benchflow.sandbox.inside.egress_gateway import GATEWAY_ADDRESS, EgressPlan, Listener
from benchflow.sandbox.protocol import NetworkPolicy

FAKE_NETWORK: Final = IPv4Network("198.18.0.0/15")
"""Where the addresses come from that the name service hands out."""
PROXY_PORT: Final = 3128
PROXY_USER: Final = "sandbox"
"""The user name that goes with a proxy's secret."""
ALLOWLIST_PORTS: Final = (80, 443)
"""Ports where programs that know nothing of the proxy are served; the proxy itself reaches every port."""
PUBLIC_PORTS: Final = (22, 80, 443, 8080, 8443)
RESOLV_CONF: Final = f"search .\nnameserver {GATEWAY_ADDRESS}\noptions timeout:2 attempts:2\n"


def plan_egress(policy: NetworkPolicy) -> EgressPlan:
    """What `policy` needs inside. An invalid host is a `PackageError`, so nothing starts half-filtered."""
    if policy.mode == "none":
        return EgressPlan()
    ports: tuple[int, ...] = PUBLIC_PORTS
    routes: tuple[IPv4Network, ...] = (IPv4Network("0.0.0.0/0"),)
    if policy.mode == "allowlist":
        from benchflow.sandbox.network.host_rules import HostRules  # most sandboxes have no hosts to judge

        networks = HostRules.parse(policy.hosts).ipv4_networks
        ports = ALLOWLIST_PORTS
        routes = (FAKE_NETWORK, *(network for network in networks if not network.overlaps(FAKE_NETWORK)))
    gateway = str(GATEWAY_ADDRESS)
    every = "0.0.0.0"  # noqa: S104 - every address of the gateway's own namespace, which has no uplink
    return EgressPlan(
        listeners=(
            Listener("proxy", "tcp", gateway, PROXY_PORT),
            Listener("dns", "udp", gateway, 53),
            Listener("dns", "tcp", gateway, 53),
            *(Listener("transparent", "tcp", every, port) for port in ports),
        ),
        routes=routes,
        resolv_conf=RESOLV_CONF,
        environment=proxy_environment(proxy_url(gateway, PROXY_PORT)),
    )


def proxy_url(host: str, port: int, secret: str | None = None) -> str:
    """The URL of an explicit proxy, with the secret that it asks for."""
    user = "" if secret is None else f"{PROXY_USER}:{secret}@"
    return f"http://{user}{host}:{port}"


def proxy_environment(url: str, *, direct: tuple[str, ...] = ()) -> dict[str, str]:
    """The variables that point programs to the proxy, in both spellings; `direct` hosts need none."""
    no_proxy = ",".join(("localhost", "127.0.0.1", "::1", *direct))
    values = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": no_proxy}
    return values | {name.lower(): value for name, value in values.items()}
