"""Host names, addresses in disguise, and the rules that admit them."""

from __future__ import annotations

import socket
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import PackageError
from benchflow.sandbox.network.host_rules import HostRules, InvalidHostError, as_address, normalize_host

LABELS = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Example.ORG", "example.org"),
        ("example.org.", "example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("_srv.example.org", "_srv.example.org"),
        ("1.2.3.4", "1.2.3.4"),
        ("1.2.3.4.", "1.2.3.4"),
        ("[2001:DB8::1]", "2001:db8::1"),
        ("2001:db8:0::1", "2001:db8::1"),
        ("3com.example", "3com.example"),
    ],
)
def test_a_host_has_one_spelling(text, normal):
    assert normalize_host(text) == normal


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "a..b", ".a", "-a.b", "a-.b", "a b", " a", "a\n", "a\0b", "a/b", "a@b", "a%00"),
        *("*", "*.a", "a.*", "1", "127.1", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "1.2.3.4.5"),
        *("1.2.3.256", "example.123", "a.0x1", "[::1", "::1]", "[]", "[1.2.3.4]", "fe80::1%eth0"),
        *(
            "[fe80::1%25lo]",
            "a:b",
            "a" * 64,
            "a." * 127 + "a",
            "http://a",
            "a:80",
            "\u2024",
            "\uff41\uff0e\0",
        ),
    ],
)
def test_what_is_no_host_is_refused(text):
    with pytest.raises(InvalidHostError):
        normalize_host(text)


@given(st.text(max_size=80) | NAMES | st.ip_addresses().map(str))
def test_normal_form_is_a_fixed_point_or_an_error(text):
    try:
        normal = normalize_host(text)
    except InvalidHostError:
        return
    assert normalize_host(normal) == normal
    assert normal.isascii()


@given(st.from_regex(r"(0x[0-9a-f]{1,8}|[0-9]{1,10})(\.(0x[0-9a-f]{1,8}|[0-9]{1,10})){0,3}", fullmatch=True))
def test_a_name_is_never_an_address_in_disguise(text):
    """Whatever the C library would read as an address is that address in normal form, or refused."""
    try:
        meant = socket.inet_ntoa(socket.inet_aton(text))
    except OSError:
        meant = None
    try:
        normal = normalize_host(text)
    except InvalidHostError:
        return
    assert as_address(normal) is not None
    assert normal == meant


@given(NAMES, NAMES)
def test_wildcards_admit_all_below_and_nothing_beside(name, suffix):
    rules = HostRules.parse([f"*.{suffix}"])
    assert rules.admit(f"{name}.{suffix}")
    assert not rules.admit(suffix) or suffix.endswith("." + suffix)
    assert not rules.admit(f"x{suffix}")
    assert not rules.admit(f"{suffix}.{name}") or f"{suffix}.{name}".endswith("." + suffix)


@given(NAMES, NAMES)
def test_exact_names_admit_themselves_only(name, other):
    rules = HostRules.parse([f" {name.upper()}. "])
    assert rules.admit(name)
    assert rules.admit(other) == (name == other)


def test_addresses_and_networks_admit_addresses_not_names():
    rules = HostRules.parse(["192.0.2.1", "198.51.100.0/24", "2001:db8::/32"])
    assert rules.admit("192.0.2.1")
    assert rules.admit("198.51.100.77")
    assert rules.admit("2001:db8::5")
    assert not rules.admit("192.0.2.2")
    assert not rules.admit("example.org")
    assert rules.ipv4_networks == (ip_network("192.0.2.1/32"), ip_network("198.51.100.0/24"))


def test_no_rules_admit_nothing():
    assert not HostRules().admit("example.org")
    assert not HostRules.parse([]).admit("1.1.1.1")


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "*",
        "*.",
        "*.*.a",
        "a*.b",
        "*a.b",
        "*.1.2.3.4",
        "https://a",
        "a/b",
        "a:443",
        "10.0.0.1/8",
        "10.0.0.0/33",
    ],
)
def test_bad_rules_are_an_error_of_the_package(rule):
    with pytest.raises(PackageError) as caught:
        HostRules.parse(["good.example", rule])
    assert caught.value.code == "invalid-host"
