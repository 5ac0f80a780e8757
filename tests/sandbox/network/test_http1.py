"""The HTTP head parser under hostile input."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.network.proxying.connection import ProtocolError
from benchflow.sandbox.network.proxying.http1 import (
    MAX_HEADERS,
    Target,
    onward_request,
    onward_response,
    parse_authority,
    parse_head,
    request_target,
    values,
)


def parse_request(head):
    return parse_head(h11.Connection(h11.SERVER), head)


def render_request(request, target, path):
    return h11.Connection(h11.CLIENT).send(onward_request(request, target, path))


def framing(head):
    return values(head, b"content-length"), values(head, b"transfer-encoding")


def parse_response(head):
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "a.test")]))
    client.send(h11.EndOfMessage())
    return parse_head(client, head)


def render_response(response):
    server = h11.Connection(h11.SERVER)
    parse_head(server, b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
    return server.send(onward_response(response))


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
        assert framing(again) == framing(request)
        assert len(values(again, b"host")) == 1
        assert rendered.count(b"\r\n\r\n") == 1
        assert b"\n" not in rendered.replace(b"\r\n", b"")


@given(HEADS)
def test_any_bytes_are_a_response_or_a_protocol_error(data):
    for head in (data, b"HTTP/1.1 200 OK\r\n" + data + b"\r\n\r\n"):
        try:
            response = parse_response(head)
        except ProtocolError:
            continue
        rendered = render_response(response)
        again = parse_response(rendered)
        assert again.status_code == response.status_code
        assert bool(framing(again)[0]) + bool(framing(again)[1]) <= 1, "one framing"
        assert b"\n" not in rendered.replace(b"\r\n", b"")


@given(TOKENS, HEADERS)
def test_well_formed_requests_survive(method, headers):
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    request = parse_request(f"{method} http://a.test/x?y HTTP/1.1\r\nHost: A.test:80\r\n{lines}\r\n".encode())
    assert request_target(request) == (Target("a.test", 80), "/x?y")
    again = parse_request(render_request(request, Target("a.test", 80), "/x?y"))
    kept = [(name.lower().encode(), value.encode()) for name, value in headers]
    assert [pair for pair in again.headers if pair[0].startswith(b"x-")] == kept


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
    assert list(parse_request(render_request(request, target, path)).headers) == [
        (b"host", b"a.test"),
        (b"x-end", b"2"),
        (b"connection", b"close"),
    ]


def test_no_option_of_the_connection_takes_the_framing_away():
    head = b"POST http://a.test/ HTTP/1.1\r\nConnection: Content-Length\r\nContent-Length: 5\r\n\r\n"
    request = parse_request(head)
    assert b"content-length: 5\r\n" in render_request(request, *request_target(request))


def test_a_url_with_raw_bytes_is_forwarded_encoded():
    request = parse_request(b"GET http://a.test/\xc3\xa4 HTTP/1.1\r\n\r\n")
    assert request_target(request) == (Target("a.test", 80), "/%C3%A4")


@pytest.mark.parametrize(
    "line", [b"X: a\n", b"X: a\rb\r\n", b"X: a\x01\r\n", b"X: a\r\n b\r\n", b"X\x00: a\r\n", b"X: \x7f\r\n"]
)
def test_header_lines_that_servers_read_differently_are_refused(line):
    with pytest.raises(ProtocolError, match="header line"):
        parse_request(b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n" + line + b"\r\n")


def test_too_many_headers_are_refused():
    lines = b"X: y\r\n" * (MAX_HEADERS + 1)
    with pytest.raises(ProtocolError, match="too many"):
        parse_request(b"GET / HTTP/1.1\r\n" + lines + b"\r\n")


@pytest.mark.parametrize("line", [b"", b"g", b"-1", b"+1", b"0x1", b" 1", b"1_0", b"1\n", b"f" * 21, b"1 2"])
def test_bad_chunk_sizes(line):
    server = h11.Connection(h11.SERVER)
    parse_head(server, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    server.receive_data(line + b"\r\nx\r\n0\r\n\r\n")
    with pytest.raises(h11.RemoteProtocolError):
        server.next_event()
