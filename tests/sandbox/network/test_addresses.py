"""Which addresses may be dialled."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.network.addresses import refusal

PRIVATE = [
    *("0.0.0.0", "10.0.0.1", "127.0.0.1", "127.255.255.254", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
    *(
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "192.0.2.1",
        "198.18.0.1",
        "198.19.255.253",
    ),
    *("203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "4000::1", "fec0::1"),
]


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_not_public_is_refused(text):
    assert refusal(ip_address(text))


@pytest.mark.parametrize("text", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_public_addresses_may_be_dialled(text):
    assert refusal(ip_address(text)) is None


@pytest.mark.parametrize("text", [text for text in PRIVATE if "." in text])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda v4: 0xFFFF << 32 | v4,
        lambda v4: v4,
        lambda v4: 0x64FF9B << 96 | v4,
        lambda v4: 0x2002 << 112 | v4 << 80 | 1,
        lambda v4: 0x20010000 << 96 | 0x01010101 << 64 | (v4 ^ 0xFFFFFFFF),
    ],
    ids=["mapped", "compatible", "nat64", "6to4", "teredo"],
)
def test_wrapping_in_ipv6_does_not_help(text, wrap):
    assert refusal(IPv6Address(wrap(int(IPv4Address(text)))))


@given(st.ip_addresses())
def test_every_address_has_a_verdict_and_permission_overrides_it(address):
    assert refusal(address) != ""
    assert refusal(address, [ip_network(address)]) is None


def test_permission_is_for_the_network_it_names():
    assert refusal(ip_address("10.1.0.1"), [ip_network("10.2.0.0/16"), ip_network("fd00::/8")])
    assert refusal(ip_address("10.2.0.1"), [ip_network("10.2.0.0/16")]) is None


def test_a_public_address_of_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch):
    from benchflow.sandbox.network import addresses

    monkeypatch.setattr(addresses, "_UNFIT", ())
    assert refusal(ip_address("127.0.0.1")) == "an address of this machine"
