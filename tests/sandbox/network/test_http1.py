"""The HTTP head parser under hostile input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.network.proxying.http1 import (
    MAX_HEADERS,
    ProtocolError,
    Target,
    parse_authority,
    parse_chunk_size,
    parse_request,
    parse_response,
    render_request,
    render_response,
    request_target,
)

FRAGMENTS = st.sampled_from(
    [
        *(b"GET", b"CONNECT", b" ", b"/", b"http://", b"a.test", b":80", b" HTTP/1.1", b" HTTP/1.0", b"\r\n"),
        *(b"\n", b"\r", b"Host: ", b"Host:", b"Content-Length: ", b"Transfer-Encoding: chunked", b"5"),
        *(b"\t", b"Connection: close", b"\0", b"\xff", b"@", b"#", b"?", b"[::1]", b","),
        *(b"Upgrade: websocket", b"Connection: Host, Upgrade"),
    ]
)
HEADS = st.binary(max_size=200) | st.lists(FRAGMENTS, max_size=20).map(b"".join)
TOKENS = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,10}", fullmatch=True)
VALUES = st.from_regex(r"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True)
HEADERS = st.lists(st.tuples(TOKENS.map(lambda name: "X-" + name), VALUES), max_size=5)


@given(HEADS)
def test_any_bytes_are_a_request_or_a_protocol_error(data):
    for head in (data, data + b"\r\n\r\n"):
        try:
            request = parse_request(head)
            target, path = request_target(request)
            rendered = render_request(request, target, path)
        except ProtocolError:
            continue
        again = parse_request(rendered)
        assert request_target(again) == (target, path), "the server sees what was judged"
        assert again.body == request.body
        assert [name for name, _ in again.headers].count("host") == 1
        assert rendered.count(b"\r\n\r\n") == 1
        assert b"\n" not in rendered.replace(b"\r\n", b"")


@given(HEADS)
def test_any_bytes_are_a_response_or_a_protocol_error(data):
    for head in (data, b"HTTP/1.1 200 OK\r\n" + data + b"\r\n\r\n"):
        try:
            response = parse_response(head)
            body = response.body("GET")
        except ProtocolError:
            continue
        again = parse_response(render_response(response, body=body, keep_alive=body != "until-close"))
        assert again.body("GET") == body


@given(TOKENS, HEADERS)
def test_well_formed_requests_survive(method, headers):
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    request = parse_request(f"{method} http://a.test/x?y HTTP/1.1\r\nHost: A.test:80\r\n{lines}\r\n".encode())
    assert request_target(request) == (Target("a.test", 80), "/x?y")
    again = parse_request(render_request(request, Target("a.test", 80), "/x?y"))
    kept = [(name.lower(), value) for name, value in headers]
    assert [pair for pair in again.headers if pair[0].startswith("x-")] == kept


@given(st.text(max_size=30))
def test_any_text_is_an_authority_or_a_protocol_error(text):
    try:
        target = parse_authority(text, 80)
    except ProtocolError:
        return
    assert parse_authority(target.authority, 80) == target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("a.test", Target("a.test", 80)),
        ("a.test:443", Target("a.test", 443)),
        ("[::1]:8080", Target("::1", 8080)),
        ("[::1]", Target("::1", 80)),
    ],
)
def test_authorities(text, target):
    assert parse_authority(text, 80) == target


@pytest.mark.parametrize("text", ["", ":80", "a:", "a:0", "a:65536", "a:-1", "a:8 0", "u@a", "::1", "::1:80", "a:٣"])
def test_bad_authorities(text):
    with pytest.raises(ProtocolError):
        parse_authority(text, 80)


def test_headers_of_the_connection_are_not_forwarded():
    head = b"GET http://a.test/ HTTP/1.1\r\nConnection: X-Hop, close, Host\r\nX-Hop: 1\r\nX-End: 2\r\n"
    hops = b"TE: trailers\r\nProxy-Authorization: Basic x\r\nUpgrade: h2c\r\nHTTP2-Settings: y\r\n\r\n"
    request = parse_request(head + hops)
    target, path = request_target(request)
    assert parse_request(render_request(request, target, path)).headers == (
        ("host", "a.test"),
        ("x-end", "2"),
        ("connection", "close"),
    )


def test_too_many_headers_are_refused():
    lines = b"X: y\r\n" * (MAX_HEADERS + 1)
    with pytest.raises(ProtocolError, match="too many"):
        parse_request(b"GET / HTTP/1.1\r\n" + lines + b"\r\n")


@pytest.mark.parametrize("line", [b"", b"g", b"-1", b"+1", b"0x1", b" 1", b"1_0", b"1\n", b"f" * 16, b"1 2", b"1;\r"])
def test_bad_chunk_sizes(line):
    with pytest.raises(ProtocolError):
        parse_chunk_size(line)


@given(st.integers(0, 1 << 59))
def test_chunk_sizes(size):
    assert parse_chunk_size(b"%x" % size) == parse_chunk_size(b"%X ;name=value" % size) == size
