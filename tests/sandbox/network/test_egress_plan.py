"""What has to exist inside a sandbox, and the log of what it tried."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv4Network

import pytest

from benchflow.sandbox.inside import netlink
from benchflow.sandbox.inside.egress_gateway import EgressPlan
from benchflow.sandbox.network.attempt_log import Attempt, AuditLog
from benchflow.sandbox.network.egress_plan import plan_egress, proxy_environment, proxy_url
from benchflow.sandbox.network.host_rules import InvalidHostError
from benchflow.sandbox.protocol import NetworkPolicy


def test_no_network_needs_nothing():
    assert plan_egress(NetworkPolicy()) == EgressPlan()


def test_an_allowlist_routes_fake_and_listed_addresses_only():
    plan = plan_egress(NetworkPolicy("allowlist", ("a.test", "192.0.2.0/24", "2001:db8::1", "198.18.0.9")))
    assert plan.routes == (IPv4Network("198.18.0.0/15"), IPv4Network("192.0.2.0/24"))
    assert [(one.role, one.transport, one.port) for one in plan.listeners] == [
        ("proxy", "tcp", 3128),
        ("dns", "udp", 53),
        ("dns", "tcp", 53),
        ("transparent", "tcp", 80),
        ("transparent", "tcp", 443),
    ]


def test_public_routes_everything():
    assert plan_egress(NetworkPolicy("public")).routes == (IPv4Network("0.0.0.0/0"),)


def test_a_bad_host_stops_the_plan():
    with pytest.raises(InvalidHostError, match="https://a"):
        plan_egress(NetworkPolicy("allowlist", ("https://a.test",)))


def test_programs_find_the_proxy_in_both_spellings():
    env = plan_egress(NetworkPolicy("allowlist", ("a.test",))).environment
    assert env is not None
    assert env["HTTP_PROXY"] == env["https_proxy"] == "http://198.19.255.253:3128"
    assert env["no_proxy"] == "localhost,127.0.0.1,::1"
    env = proxy_environment(proxy_url("172.17.0.1", 8000, "s3cret"), direct=("db",))
    assert env["http_proxy"] == "http://sandbox:s3cret@172.17.0.1:8000"
    assert env["NO_PROXY"] == "localhost,127.0.0.1,::1,db"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (netlink.link_up(1), netlink.RTM_NEWLINK),
        (netlink.delete_link(1), netlink.RTM_DELLINK),
        (netlink.veth_pair("up0", "egress0", 5), netlink.RTM_NEWLINK),
        (netlink.address(2, IPv4Address("198.19.255.253"), 30), netlink.RTM_NEWADDR),
        (netlink.local_route(IPv4Network("198.18.0.0/15"), 1), netlink.RTM_NEWROUTE),
        (netlink.route_via(IPv4Network("0.0.0.0/0"), IPv4Address("198.19.255.253"), 2), netlink.RTM_NEWROUTE),
    ],
)
def test_netlink_messages_say_their_own_length(message, kind):
    size, found = struct.unpack_from("=IH", message)
    assert (size, found) == (len(message), kind)
    assert len(message) % 4 == 0


def test_a_refusal_of_the_kernel_is_an_error():
    with pytest.raises(OSError, match="netlink"):
        netlink.send(netlink.link_up(1 << 20))


def test_the_log_is_bounded_and_the_sink_sees_all():
    seen: list[Attempt] = []
    log = AuditLog(seen.append, keep=3)
    for number in range(5):
        log.record("dns", f"name{number}", None, "refused")
    log.record("proxy", "x" * 5000, 80, "refused", "y" * 5000)
    assert [attempt.host[:5] for attempt in log.attempts] == ["name3", "name4", "xxxxx"]
    assert log.dropped == 3
    assert len(seen) == 6
    assert len(str(seen[-1].to_dict())) < 1000
