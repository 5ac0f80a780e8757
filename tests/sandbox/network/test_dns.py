"""The name service over real sockets and under hostile packets."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.inside.egress_gateway import LINK_NETWORK
from benchflow.sandbox.network.attempt_log import AuditLog
from benchflow.sandbox.network.egress_plan import FAKE_NETWORK
from benchflow.sandbox.network.proxying.dns import FakeNames, NameService


def query(name: str, kind: int = 1, *, flags: int = 0x0100, count: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label)
    return struct.pack("!HHHHHH", 0xABCD, flags, count, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def service(*names: str) -> NameService:
    return NameService(lambda host: host in names, FakeNames(), AuditLog())


def code(answer: bytes) -> int:
    return answer[3] & 0x0F


def addresses(answer: bytes) -> list[IPv4Address]:
    return [IPv4Address(answer[-4:])] if struct.unpack("!H", answer[6:8])[0] else []


def test_admitted_names_get_a_fake_address():
    names = service("good.test", "also.test")
    answer = names.answer(query("Good.Test"))
    assert answer[:2] == b"\xab\xcd"
    assert code(answer) == 0
    assert answer[12:27] == query("Good.Test")[12:27], "the question is repeated as it was asked"
    assert addresses(answer)[0] in FAKE_NETWORK
    assert addresses(names.answer(query("good.test"))) == addresses(answer)
    assert addresses(names.answer(query("also.test"))) != addresses(answer)


@pytest.mark.parametrize("kind", [28, 15, 16, 33, 65, 255])
def test_other_types_of_admitted_names_are_empty(kind):
    answer = service("good.test").answer(query("good.test", kind))
    assert code(answer) == 0
    assert addresses(answer) == []


@pytest.mark.parametrize("name", ["evil.test", "x.good.test", "test", "", "1.2.3.4", "a_b.c", "-.test"])
def test_other_names_do_not_exist(name):
    answer = service("good.test").answer(query(name))
    assert code(answer) == 3
    assert addresses(answer) == []


@pytest.mark.parametrize("name", ["localhost", "a.localhost", "4.3.2.1.in-addr.arpa", "127.0.0.1"])
def test_names_of_this_machine_are_never_known(name):
    anything = NameService(lambda host: True, FakeNames(), AuditLog())
    assert code(anything.answer(query(name))) == 3


def test_packets_that_are_no_query_get_an_error_or_silence():
    names = service("good.test")
    assert names.answer(b"") == b""
    assert names.answer(query("good.test", flags=0x8180)) == b"", "an answer"
    assert code(names.answer(query("good.test", flags=0x2800))) == 4
    assert code(names.answer(query("good.test", count=2))) == 1
    assert code(names.answer(query("good.test")[:-1])) == 1
    assert code(names.answer(query("good.test")[:12] + b"\xc0\x0c\0\1\0\1")) == 1, "a name that points to itself"
    assert code(names.answer(query("good.test")[:12] + b"\x09good.test\0\0\1\0\1")) == 1, "a dot within a label"
    assert code(names.answer(query("good.test")[:12] + b"\x01a" * 200 + b"\0\0\1\0\1")) == 1, "too long"


@given(st.binary(max_size=300))
def test_hostile_packets_never_crash_it(data):
    names = NameService(lambda host: True, FakeNames(), AuditLog())
    for packet in (data, query("good.test")[:12] + data, query("good.test") + data):
        answer = names.answer(packet)
        if answer:
            assert answer[:2] == packet[:2]
            assert answer[2] & 0x80
            assert len(answer) <= len(packet) + 16


@given(st.lists(st.integers(0, 40).map("name{}.test".format), max_size=60))
def test_fake_names_are_found_again_and_bounded(asked):
    names = FakeNames(keep=10)
    for name in asked:
        address = names.address_of(name)
        assert address in FAKE_NETWORK
        assert address not in LINK_NETWORK
        assert names.name_of(str(address)) == name
    first = int(FAKE_NETWORK.network_address)
    kept = [names.name_of(str(IPv4Address(first + number))) for number in range(100)]
    assert sum(name is not None for name in kept) == min(10, len(set(asked)))


def test_an_address_is_used_again_only_after_all_others():
    names = FakeNames(keep=2)
    first = names.address_of("a.test")
    seen = {names.address_of(f"name{number}.test") for number in range(1000)}
    assert first not in seen
    assert names.name_of(str(first)) is None


def test_fake_addresses_go_round_and_skip_those_in_use():
    names = FakeNames(keep=3)
    names._next = names._last
    last = names.address_of("last.test")
    first = names.address_of("first.test")
    assert (last, first) == (IPv4Address(names._last), IPv4Address(names._first))
    names._next = names._first
    assert names.address_of("next.test") == IPv4Address(names._first + 1)


def test_udp_and_tcp_answer_alike(serve):
    served = serve("good.test", roles=("proxy", "dns"))
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        for packet in (b"junk", b"", query("evil.test"), query("good.test")):
            sock.sendto(packet, ("127.0.0.1", served.ports["udp"]))
        assert code(sock.recv(512)) == 3
        found = addresses(sock.recv(512))
    both = query("good.test"), query("evil.test")
    answers = served.exchange(b"".join(len(packet).to_bytes(2) + packet for packet in both), role="dns")
    size = int.from_bytes(answers[:2])
    assert addresses(answers[2 : 2 + size]) == found
    assert code(answers[4 + size :]) == 3
    good, evil = ("dns", "good.test", "allowed"), ("dns", "evil.test", "refused")
    assert served.verdicts == [evil, good, good, evil]


def test_junk_over_tcp_ends_the_connection(serve):
    served = serve("good.test", roles=("dns",))
    assert served.exchange(b"\x00\x03abc", role="dns") == b""
    assert served.exchange(b"\xff\xffabc", role="dns") == b""
