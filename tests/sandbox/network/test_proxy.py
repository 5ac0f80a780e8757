"""The explicit proxy with real clients and servers."""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import pytest


def curl(served, url: str, *options: str, **more) -> subprocess.CompletedProcess[str]:
    command = ["curl", "-sS", "--max-time", "15", "--noproxy", "", "--proxy", served.proxy, *options, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, **more)


def test_curl_reaches_an_allowed_host_over_http(serve, origin):
    served = serve("good.test")
    done = curl(served, f"http://good.test:{origin.port}/a?b=c#d")
    assert done.stdout == f"hello from good.test:{origin.port}"
    method, path, headers, _ = origin.requests[0]
    assert (method, path) == ("GET", "/a?b=c")
    assert "proxy-connection" not in headers
    assert served.verdicts == [("proxy", "good.test", "allowed")]
    assert served.egress.attempts[0].port == origin.port


def test_curl_is_told_why_another_host_is_refused(serve, origin):
    served = serve("good.test")
    done = curl(served, f"http://evil.test:{origin.port}/", "-w", "%{http_code}")
    reason = "not on the allowlist; `allowed_hosts` of the package permits hosts"
    assert done.stdout == f"egress to evil.test port {origin.port} refused: {reason}\n403"
    assert origin.requests == []
    assert served.verdicts == [("proxy", "evil.test", "refused")]


def test_urllib_and_httpx_get_through_and_are_refused_alike(serve, origin):
    served = serve("*.wild.test")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": served.proxy}))
    with opener.open(f"http://a.wild.test:{origin.port}/", timeout=10) as answer:
        assert answer.read() == f"hello from a.wild.test:{origin.port}".encode()
    with pytest.raises(urllib.error.HTTPError, match="403") as caught:
        opener.open(f"http://wild.test:{origin.port}/", timeout=10)
    caught.value.close()
    with httpx.Client(proxy=served.proxy, trust_env=False, verify=False) as client:
        assert client.get(f"http://b.a.wild.test:{origin.port}/").status_code == 200
        assert client.get(f"http://wild.test.evil.test:{origin.port}/").status_code == 403


def test_https_goes_through_connect_end_to_end(serve, tls_origin, certificate: Path):
    served = serve("good.test")
    done = curl(served, f"https://good.test:{tls_origin.port}/", "--cacert", str(certificate))
    assert done.stdout == f"hello from good.test:{tls_origin.port}", done.stderr
    context = ssl.create_default_context(cafile=certificate)
    with httpx.Client(proxy=served.proxy, trust_env=False, verify=context) as client:
        assert client.get(f"https://good.test:{tls_origin.port}/").status_code == 200
    assert served.verdicts == [("connect", "good.test", "allowed")] * 2


def test_connect_to_another_host_is_refused(serve, tls_origin):
    served = serve("good.test")
    done = curl(served, f"https://evil.test:{tls_origin.port}/", "-k")
    assert done.returncode != 0
    assert "403" in done.stderr
    assert served.verdicts == [("connect", "evil.test", "refused")]
    assert tls_origin.connections == 0


def test_a_tunnel_to_an_allowed_host_carries_no_other_server_name(serve, tls_origin, certificate: Path):
    served = serve("good.test", "*.wild.test")
    with served.dial() as sock:
        sock.sendall(f"CONNECT good.test:{tls_origin.port} HTTP/1.1\r\n\r\n".encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        context = ssl.create_default_context(cafile=certificate)
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            context.wrap_socket(sock, server_hostname="a.wild.test")
    assert served.egress.attempts[-1].reason == "the connection was made to good.test"


def test_a_tunnel_carries_no_tls_without_a_server_name(serve, tls_origin):
    served = serve("good.test")
    context = ssl._create_unverified_context()
    with served.dial() as sock:
        sock.sendall(f"CONNECT good.test:{tls_origin.port} HTTP/1.1\r\n\r\n".encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(sock)
    assert served.egress.attempts[-1].reason == "TLS without a server name"


def test_a_tunnel_to_an_allowed_address_needs_no_server_name(serve, tls_origin, certificate: Path):
    served = serve("127.0.0.1")
    done = curl(served, f"https://127.0.0.1:{tls_origin.port}/", "--cacert", str(certificate))
    assert done.stdout == f"hello from 127.0.0.1:{tls_origin.port}", done.stderr


def test_a_tunnel_carries_http_for_its_host_only(serve, origin):
    served = serve("good.test", "also.test")
    tunnel = f"CONNECT good.test:{origin.port} HTTP/1.1\r\n\r\n"
    asked = f"GET /1 HTTP/1.1\r\nHost: good.test:{origin.port}\r\n\r\n"
    fronted = f"GET /2 HTTP/1.1\r\nHost: also.test:{origin.port}\r\n\r\n"
    answer = served.exchange((tunnel + asked + fronted).encode())
    assert b"hello from good.test" in answer
    assert b"403 Forbidden" in answer
    assert [path for _, path, _, _ in origin.requests] == ["/1"]
    assert served.verdicts[-1] == ("http", "also.test", "refused")


@pytest.mark.parametrize(
    "first",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x80\x2e\x01\x03\x01",
        b"\x16\x03\x01\x00\x05hello",
        b"GET / HTTP/1.1\nHost: good.test\n\n",
    ],
)
def test_a_tunnel_under_an_allowlist_carries_nothing_but_tls_and_http(serve, origin, first):
    served = serve("good.test")
    answer = served.exchange(f"CONNECT good.test:{origin.port} HTTP/1.1\r\n\r\n".encode() + first)
    assert b"hello" not in answer
    assert origin.requests == []
    assert served.verdicts[-1][2] == "refused"


def test_keep_alive_requests_are_judged_one_by_one(serve, origin):
    served = serve("good.test")
    good = f"GET http://good.test:{origin.port}/%d HTTP/1.1\r\nHost: good.test:{origin.port}\r\n\r\n"
    evil = f"GET http://evil.test:{origin.port}/x HTTP/1.1\r\nHost: evil.test:{origin.port}\r\n\r\n"
    answer = served.exchange((good % 1 + good % 2 + evil + good % 3).encode())
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b"403 Forbidden") == 1
    assert [path for _, path, _, _ in origin.requests] == ["/1", "/2"]
    assert origin.connections == 2, "a server sees one request per connection"


@pytest.mark.parametrize(
    ("request_head", "reason"),
    [
        ("GET http://good.test:{p}/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", "differs from"),
        (
            "GET http://good.test:{p}/ HTTP/1.1\r\nHost: good.test:{p}\r\nHost: evil.test\r\n\r\n",
            "multiple Host",
        ),
        ("GET / HTTP/1.1\r\nHost: good.test:{p}\r\n\r\n", "full URL"),
        ("GET https://good.test:{p}/ HTTP/1.1\r\n\r\n", "CONNECT"),
        ("GET http://good.test:{p}@evil.test/ HTTP/1.1\r\n\r\n", "HOST:PORT"),
        ("GET http://good.test:{p}/ HTTP/1.1\r\n Host: evil.test\r\n\r\n", "header line"),
        ("GET http://good.test:{p}/ HTTP/1.1\r\nX: a\nHost: evil.test\r\n\r\n", "header line"),
        ("GET http://good.test:{p}/ HTTP/1.1\r\nHost : evil.test\r\n\r\n", "header line"),
        ("GET http://good.test:{p}/\tHTTP/1.1\r\n\r\n", "request line"),
        (
            "POST http://good.test:{p}/ HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "ambiguous",
        ),
        (
            "POST http://good.test:{p}/ HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "conflicting Content-Length",
        ),
        ("POST http://good.test:{p}/ HTTP/1.1\r\nContent-Length: +5\r\n\r\n", "bad Content-Length"),
        (
            "POST http://good.test:{p}/ HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
            "Only Transfer-Encoding: chunked",
        ),
        ("CONNECT good.test:{p} HTTP/1.1\r\nHost: evil.test:{p}\r\n\r\n", "two hosts"),
        ("CONNECT good.test HTTP/1.1\r\n\r\n", "HOST:PORT"),
        ("GET http://good.test:{p}/ HTTP/1.1\r\nX: " + "a" * 40_000 + "\r\n\r\n", "no end"),
        ("GET http://good.test:{p}/ HTTP/1.1\r\nHost: good.test", "in the middle"),
    ],
)
def test_ambiguous_and_mismatched_requests_are_refused(serve, origin, request_head, reason):
    served = serve("good.test")
    answer = served.exchange(request_head.replace("{p}", str(origin.port)).encode())
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert reason in answer.decode()
    assert origin.connections == 0
    assert [attempt.verdict for attempt in served.egress.attempts] == ["refused"]


def test_any_bytes_leave_the_proxy_serving(serve, origin):
    """Requests with random damage: what gets through is well-formed and for the allowed host."""
    served = serve("good.test", roles=("proxy", "transparent"))
    dice = random.Random(4)
    head = f"POST http://good.test:{origin.port}/ HTTP/1.1\r\nHost: good.test:{origin.port}\r\n"
    body = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    pieces = [b"\r\n", b"\n", b"\0", b" ", b":", b"Host: evil.test\r\n", b"evil.test", b"\x16\x03\x01", b"5\r\n"]
    for _ in range(150):
        data = bytearray((head + body).encode())
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(len(data))
            data[at : at + dice.randint(0, 4)] = dice.choice(pieces)
        served.exchange(bytes(data), role=dice.choice(["proxy", "transparent"]))
    assert {headers["host"] for _, _, headers, _ in origin.requests} <= {f"good.test:{origin.port}"}
    assert {host for _, host, verdict in served.verdicts if verdict == "allowed"} <= {"good.test"}
    assert b"hello" in served.exchange(f"GET http://good.test:{origin.port}/ HTTP/1.1\r\n\r\n".encode())


def test_what_follows_a_body_is_a_new_request_not_part_of_it(serve, origin):
    served = serve("good.test")
    url = f"http://good.test:{origin.port}"
    inner = f"GET http://evil.test:{origin.port}/smuggled HTTP/1.1\r\n\r\n"
    answer = served.exchange(f"POST {url}/a HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi{inner}".encode())
    assert b"403 Forbidden" in answer
    head = f"POST {url}/b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = "2;ext=1\r\nhi\r\n0\r\nA: b\r\n\r\n"
    assert b"403 Forbidden" in served.exchange((head + body + inner).encode())
    assert [(path, body) for _, path, _, body in origin.requests] == [("/a", b"hi"), ("/b", b"hi")]


def test_a_body_that_breaks_off_never_becomes_a_request(serve, origin):
    served = serve("good.test")
    head = f"POST http://good.test:{origin.port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b"502" in served.exchange(head.encode() + b"3\r\nabcdef\r\n0\r\n\r\n")
    assert origin.requests == []


@pytest.mark.parametrize(
    ("path", "body"), [("/chunked", b"onetwothree"), ("/until-close", b"to the end"), ("/empty", b"")]
)
def test_every_framing_of_answers_arrives_whole(serve, origin, path, body):
    served = serve("good.test")
    with httpx.Client(proxy=served.proxy, trust_env=False, verify=False) as client:
        for _ in range(2):
            assert client.get(f"http://good.test:{origin.port}{path}").content == body
        assert client.head(f"http://good.test:{origin.port}/").headers["content-length"] != "0"
    answer = served.exchange(f"GET http://good.test:{origin.port}{path} HTTP/1.0\r\n\r\n".encode())
    assert answer.endswith(b"\r\n\r\n" + body)


def test_large_bodies_pass_in_both_directions(serve, origin):
    served = serve("good.test")
    data = bytes(range(256)) * 4096 * 3
    with httpx.Client(proxy=served.proxy, trust_env=False, timeout=30, verify=False) as client:
        url = f"http://good.test:{origin.port}/"
        assert client.post(url, content=data).content == data
        assert client.post(url, content=iter([data[:1000], data[1000:]])).content == data


def test_thousands_of_tiny_chunks_arrive_whole(serve, origin):
    served = serve("good.test")
    data = bytes(range(256)) * 40
    head = f"POST http://good.test:{origin.port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in data)
    assert served.exchange(head + chunks + b"0\r\n\r\n").endswith(b"\r\n\r\n" + data)


def test_curl_may_ask_first_whether_a_body_is_welcome(serve, origin, tmp_path):
    served = serve("good.test")
    (tmp_path / "body").write_bytes(b"x" * 2_000_000)
    done = curl(served, f"http://good.test:{origin.port}/", "-H", "Expect: 100-continue", "-T", str(tmp_path / "body"))
    assert len(done.stdout) == 2_000_000


def test_a_server_that_reports_an_error_of_its_own_is_not_reached(serve, origin):
    served = serve("good.test")
    assert curl(served, f"http://good.test:{origin.port}/down", "-w", " %{http_code}").stdout.endswith(" 503")
    [failed] = served.egress.failed_requests
    assert (failed.host, failed.port, failed.reason) == ("good.test", origin.port, "answered with status 503")


def test_a_server_that_takes_a_connection_and_never_answers_is_not_reached(serve, monkeypatch):
    monkeypatch.setattr("benchflow.sandbox.network.attempt_log._PATIENCE_SEC", 0.0)
    served = serve("good.test")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        assert curl(served, f"https://good.test:{port}/", "--max-time", "1").returncode == 28
        assert [(item.host, item.port, item.reason) for item in served.egress.failed_requests] == [
            ("good.test", port, "no answer")
        ]


def test_a_server_that_speaks_nonsense_or_is_down_is_a_bad_gateway(serve, origin):
    served = serve("good.test", "nowhere.example")
    assert curl(served, f"http://good.test:{origin.port}/nonsense", "-w", "%{http_code}").stdout.endswith("502")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert "refused\n502" in curl(served, f"http://good.test:{port}/", "-w", "%{http_code}").stdout
    assert "cannot be resolved" in curl(served, "http://nowhere.example/").stdout
    assert [verdict for _, _, verdict in served.verdicts] == ["allowed", "failed", "failed", "failed"]


@pytest.mark.parametrize(
    "url", ["http://private.test/", "http://metadata.test/", "http://10.0.0.1/", "http://[fd00::1]/"]
)
def test_allowed_names_do_not_lead_to_private_addresses(serve, url):
    served = serve("*.test", "10.0.0.0/8", "fd00::/8")
    done = curl(served, url, "-w", "%{http_code}")
    assert done.stdout.endswith("403")
    assert served.verdicts[0][2] == "refused"


def test_a_refused_address_is_named_with_the_setting_that_permits_it(serve):
    answer = serve(mode="public", permitted=()).exchange(b"CONNECT 10.0.0.1:443 HTTP/1.1\r\nHost: 10.0.0.1:443\r\n\r\n")
    line = answer.splitlines()[0].decode()
    assert line.startswith("HTTP/1.1 403 Forbidden (egress to 10.0.0.1 port 443 refused: 10.0.0.1 is a private address")
    assert "permit it with BENCHCUBE_PERMITTED_NETWORKS" in line


def test_this_machine_is_out_of_reach_unless_the_operator_permits_it(serve, origin):
    for served in (serve("good.test", permitted=()), serve(mode="public", permitted=())):
        for host in ("good.test", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"):
            done = curl(served, f"http://{host}:{origin.port}/", "-w", "%{http_code}")
            assert done.stdout.endswith("403"), done
    assert origin.connections == 0


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.1.nip", "localhost"])
def test_addresses_in_disguise_are_not_dialled(serve, origin, host):
    served = serve(mode="public", permitted=())
    answer = served.exchange(f"GET http://{host}:{origin.port}/ HTTP/1.1\r\n\r\n".encode())
    assert answer[:12] in {b"HTTP/1.1 400", b"HTTP/1.1 403", b"HTTP/1.1 502"}
    assert origin.connections == 0


def test_public_lets_every_name_and_protocol_pass(serve, origin):
    served = serve(mode="public")
    assert curl(served, f"http://any.test:{origin.port}/").stdout.startswith("hello")
    with socket.create_server(("127.0.0.1", 0)) as server, served.dial() as sock:
        port = server.getsockname()[1]
        sock.sendall(f"CONNECT ssh.test:{port} HTTP/1.1\r\n\r\n".encode())
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(b"server speaks first")
            answer = b""
            while not answer.endswith(b"first"):
                answer += sock.recv(100)
            sock.sendall(b"\x00raw")
            assert accepted.recv(10) == b"\x00raw"
            sock.shutdown(socket.SHUT_WR)
            assert accepted.recv(10) == b"", "the end of one direction is passed on"
            accepted.sendall(b"and the other goes on")
            accepted.shutdown(socket.SHUT_WR)
            assert sock.recv(100) == b"and the other goes on"


def test_a_websocket_upgrade_passes_and_no_other(serve):
    served = serve("good.test")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for upgrade, answered in (("websocket", b"101"), ("h2c", b"502")):
            with served.dial() as sock:
                head = f"GET http://good.test:{port}/ HTTP/1.1\r\nConnection: Upgrade\r\n"
                sock.sendall(f"{head}Upgrade: {upgrade}\r\n\r\n".encode())
                accepted, _ = server.accept()
                with accepted:
                    received = accepted.recv(4096)
                    assert (b"Upgrade: websocket" in received) == (upgrade == "websocket")
                    accepted.sendall(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n")
                    assert answered in sock.recv(4096)
                    if upgrade == "websocket":
                        sock.sendall(b"frame")
                        assert accepted.recv(10) == b"frame"


def test_a_proxy_with_a_secret_serves_only_those_who_show_it(serve, origin):
    served = serve("good.test", secret="s3cret")
    url = f"http://good.test:{origin.port}/"
    assert curl(served, url, "-w", "%{http_code}").stdout.endswith("407")
    assert curl(served, url, "--proxy-user", "sandbox:guess", "-w", "%{http_code}").stdout.endswith("407")
    assert curl(served, url, "--proxy-user", "sandbox:s3cret").stdout.startswith("hello")
    assert "proxy-authorization" not in origin.requests[0][2]


def test_many_sandboxes_keep_their_own_policies(serve, origin):
    for number, served in enumerate([serve(f"host{number}.test") for number in range(20)]):
        for other in (number, (number + 1) % 20):
            answer = served.exchange(f"GET http://host{other}.test:{origin.port}/ HTTP/1.1\r\n\r\n".encode())
            assert answer[9:12] == (b"200" if other == number else b"403")


def test_stopping_ends_open_connections_and_closes_the_sockets(serve, loop):
    served = serve("good.test", mode="public")
    with socket.create_server(("127.0.0.1", 0)) as server, served.dial() as sock:
        sock.sendall(f"CONNECT good.test:{server.getsockname()[1]} HTTP/1.1\r\n\r\n".encode())
        accepted, _ = server.accept()
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        loop.run(served.egress.stop())
        with accepted:
            assert accepted.recv(10) == b""
        assert sock.recv(10) == b""
        with pytest.raises(ConnectionRefusedError):
            served.dial()
    loop.run(served.egress.stop())


def test_more_connections_than_allowed_wait_for_their_turn(serve, origin):
    from benchflow.sandbox.network.egress import EgressLimits

    served = serve("good.test", limits=EgressLimits(connections=2))
    idle = [served.dial(), served.dial()]
    time.sleep(0.05)
    with served.dial() as third:
        third.sendall(f"GET http://good.test:{origin.port}/ HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        third.settimeout(0.3)
        with pytest.raises(TimeoutError):
            third.recv(10)
        for sock in idle:
            sock.close()
        third.settimeout(10)
        assert b"hello" in read_until_closed(third)


def test_silent_clients_and_tunnels_are_ended(serve):
    from benchflow.sandbox.network.egress import EgressLimits

    served = serve(mode="public", limits=EgressLimits(message_seconds=0.2, idle_seconds=0.2))
    with served.dial() as sock:
        assert sock.recv(10) == b""
    with socket.create_server(("127.0.0.1", 0)) as server, served.dial() as sock:
        sock.sendall(f"CONNECT a.test:{server.getsockname()[1]} HTTP/1.1\r\n\r\n".encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        assert sock.recv(10) == b""


def read_until_closed(sock: socket.socket) -> bytes:
    data = b""
    while block := sock.recv(4096):
        data += block
    return data
