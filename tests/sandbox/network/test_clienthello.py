"""Server names from first messages that a real TLS client makes, and from hostile ones."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.network.proxying.clienthello import IncompleteError, NotTLSError, server_name


def client_hello(name: str | None) -> bytes:
    context = ssl._create_unverified_context()
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


HELLO = client_hello("good.test")


def in_records(message: bytes, size: int) -> bytes:
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2) + part for part in parts)


def test_the_name_a_client_asks_for():
    assert server_name(HELLO) == "good.test"
    assert server_name(HELLO + b"whatever follows") == "good.test"
    assert server_name(client_hello(None)) is None


@given(st.integers(0, len(HELLO) - 1))
def test_a_beginning_is_incomplete(size):
    with pytest.raises(IncompleteError):
        server_name(HELLO[:size])


@given(st.integers(60, 600))
def test_a_message_in_several_records_is_read_whole(size):
    assert server_name(in_records(HELLO[5:], size)) == "good.test"


def test_a_message_in_crumbs_is_refused():
    with pytest.raises(NotTLSError):
        server_name(in_records(HELLO[5:], 1))


@given(st.binary(max_size=600))
def test_any_bytes_have_a_verdict(data):
    for candidate in (data, b"\x16\x03\x01" + data, in_records(b"\x01\x00" + data, 1 << 14)):
        try:
            name = server_name(candidate)
        except (IncompleteError, NotTLSError):
            continue
        assert name is None or name.isascii()


@given(st.integers(0, len(HELLO) - 1), st.integers(0, 255))
def test_a_changed_byte_has_a_verdict(at, value):
    try:
        server_name(HELLO[:at] + bytes([value]) + HELLO[at + 1 :])
    except (IncompleteError, NotTLSError):
        return


def test_two_names_are_refused():
    body = HELLO[5:]
    extension = b"\x00\x00" + (14).to_bytes(2) + (12).to_bytes(2) + b"\x00" + (9).to_bytes(2) + b"good.test"
    assert extension in body
    doubled = body.replace(extension, extension * 2)
    at = 4 + 2 + 32
    at += 1 + doubled[at]
    at += 2 + int.from_bytes(doubled[at : at + 2])
    at += 1 + doubled[at]
    length = int.from_bytes(doubled[at : at + 2]) + len(extension)
    doubled = doubled[:at] + length.to_bytes(2) + doubled[at + 2 :]
    message = b"\x01" + (len(doubled) - 4).to_bytes(3) + doubled[4:]
    with pytest.raises(NotTLSError):
        server_name(in_records(message, 1 << 14))
