"""Builds, from inside a sandbox, the namespace that holds the sockets of its egress.

    sandbox's namespace                      gateway's namespace              driver (host's namespace)
    lo      left to its programs             AnyIP: routed networks are local
    egress0 198.19.255.254 -----veth----- up0 198.19.255.253
            routes of the plan via .253      listening sockets  ===descriptors===>  Egress.start

The gateway has no uplink and forwards nothing. It lives as long as its sockets: some time after they are closed
the kernel removes it, and `egress0` with it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final, Literal, NamedTuple

from benchflow.sandbox.inside import netlink
from benchflow.sandbox.inside import syscalls as sc

Role = Literal["proxy", "transparent", "dns"]
Transport = Literal["tcp", "udp"]

LINK_NETWORK: Final = IPv4Network("198.19.255.252/30")
"""The wire between a sandbox and its gateway; never handed out."""
GATEWAY_ADDRESS: Final = IPv4Address("198.19.255.253")
SANDBOX_ADDRESS: Final = IPv4Address("198.19.255.254")
SANDBOX_INTERFACE: Final = "egress0"
GATEWAY_INTERFACE: Final = "up0"
_BACKLOG: Final = 128


class Listener(NamedTuple):
    """A socket to be opened inside and handed to `Egress.start` together with its role."""

    role: Role
    transport: Transport
    host: str
    port: int


class EgressPlan(NamedTuple):
    """Everything a backend does inside a sandbox for one policy; empty for `none`."""

    listeners: tuple[Listener, ...] = ()
    routes: tuple[IPv4Network, ...] = ()
    """What the sandbox routes to its gateway; everything else is unreachable at once."""
    resolv_conf: str = ""
    """The content of `/etc/resolv.conf`."""
    environment: Mapping[str, str] | None = None
    """Variables for every command; None where there is no proxy."""

    def message(self) -> dict[str, list[Any]]:
        """What `open_gateway` needs of it, as JSON takes it to the process inside."""
        return {"listeners": [list(item) for item in self.listeners], "routes": [str(route) for route in self.routes]}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> EgressPlan:
        listeners = tuple(Listener(*item) for item in message["listeners"])
        return cls(listeners, tuple(IPv4Network(route) for route in message["routes"]))


def open_gateway(plan: EgressPlan) -> list[socket.socket]:
    """Make the gateway and open the sockets of `plan.listeners`, in their order.

    What is left of an earlier gateway is removed first, so this is also how a policy is changed or taken away.
    Call it in a single-threaded process that is in the sandbox's network namespace, may administer it and sees a
    `/proc`; it is back there afterwards. After an error nothing of the gateway is left. Nothing is imported here.
    """
    _remove_wire()
    if not plan.listeners:
        return []
    sockets: list[socket.socket] = []
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        sc.unshare(sc.CLONE_NEWNET)
        try:
            _build_gateway_side(plan, home)
            sockets.extend(_open(listener) for listener in plan.listeners)
        finally:
            sc.setns(home, sc.CLONE_NEWNET)
        _build_sandbox_side(plan)
    except BaseException:
        for opened in sockets:
            opened.close()
        raise
    finally:
        os.close(home)
    return sockets


def _build_gateway_side(plan: EgressPlan, sandbox_namespace: int) -> None:
    loopback = socket.if_nametoindex("lo")
    netlink.send(netlink.link_up(loopback), netlink.veth_pair(GATEWAY_INTERFACE, SANDBOX_INTERFACE, sandbox_namespace))
    _bring_up(GATEWAY_INTERFACE, GATEWAY_ADDRESS)
    netlink.send(*(netlink.local_route(network, loopback) for network in plan.routes))


def _build_sandbox_side(plan: EgressPlan) -> None:
    index = _bring_up(SANDBOX_INTERFACE, SANDBOX_ADDRESS)
    netlink.send(*(netlink.route_via(network, GATEWAY_ADDRESS, index) for network in plan.routes))


def _remove_wire() -> None:
    for index, name in socket.if_nameindex():
        if name == SANDBOX_INTERFACE:
            try:
                netlink.send(netlink.delete_link(index))
            except OSError as error:
                if error.errno != errno.ENODEV:  # the kernel was quicker
                    raise


def _bring_up(interface: str, address: IPv4Address) -> int:
    index = socket.if_nametoindex(interface)
    netlink.send(netlink.address(index, address, LINK_NETWORK.prefixlen), netlink.link_up(index))
    return index


def _open(listener: Listener) -> socket.socket:
    datagram = listener.transport == "udp"
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if datagram else socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sc.bind_socket(opened, (listener.host, listener.port))
        if not datagram:
            opened.listen(_BACKLOG)
    except OSError:
        opened.close()
        raise
    return opened
