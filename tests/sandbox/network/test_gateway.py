"""A real network namespace whose only way out is an egress, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from benchflow.sandbox.network.egress import Egress
from benchflow.sandbox.network.egress_plan import FAKE_NETWORK, PUBLIC_PORTS, plan_egress
from benchflow.sandbox.protocol import NetworkPolicy

pytestmark = [pytest.mark.sandbox, pytest.mark.xdist_group("gateway")]

OUTSIDE = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255 | 1}"
"""Where the allowed names live: a loopback address of this test process, with servers on ports 80 and 443."""


async def resolve(host: str) -> list[Any]:
    if host.endswith(".test"):
        return [ip_address(OUTSIDE)]
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


class Inside:
    """The other end of `inside.py`."""

    def __init__(self, privilege: str, mode: str, hosts: tuple[str, ...]) -> None:
        ours, theirs = socket.socketpair()
        self._control = ours
        script = Path(__file__).with_name("inside.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(theirs.fileno()), privilege, mode, *hosts],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._lines = ours.makefile("r")
        self.descriptors = self._receive()
        self.egress: Egress | None = None

    def _receive(self) -> list[int]:
        data, descriptors, _, _ = socket.recv_fds(self._control, 3, 16)
        assert data == b"{}\n"
        return descriptors

    def change(self, mode: str, *hosts: str) -> list[int]:
        """Open another gateway, for another policy."""
        self._control.sendall(json.dumps({"policy": [mode, hosts]}).encode() + b"\n")
        return self._receive()

    def run(self, *argv: str, proxy: bool = False) -> tuple[int, str, str]:
        self._control.sendall(json.dumps({"argv": argv, "proxy": proxy}).encode() + b"\n")
        code, out, err = json.loads(self._lines.readline())
        return code, out, err

    def curl(self, *argv: str, proxy: bool = False) -> tuple[int, str, str]:
        return self.run("curl", "-sS", "--max-time", "10", *argv, proxy=proxy)

    def python(self, code: str) -> str:
        status, out, err = self.run("/usr/bin/python3", "-c", code)
        assert status == 0, err
        return out.strip()

    def close(self) -> None:
        self._lines.close()
        self._control.close()
        assert self.process.wait(10) == 0


async def serving(descriptors: list[int], mode: Any, hosts: tuple[str, ...], permitted: Iterable[str]) -> Egress:
    policy = NetworkPolicy(mode, hosts)
    roles = [listener.role for listener in plan_egress(policy).listeners]
    sockets = [socket.socket(fileno=fd) for fd in descriptors]
    egress = Egress(policy, resolver=resolve, permitted=[ip_network(text) for text in permitted])
    await egress.start(zip(roles, sockets, strict=True))
    return egress


@pytest.fixture
def enter(loop, privilege: str) -> Iterator[Callable[..., Inside]]:
    with ExitStack() as stack:

        def start(*hosts: str, mode: str = "allowlist", permitted: tuple[str, ...] = (OUTSIDE,)) -> Inside:
            inside = Inside(privilege, mode, hosts)
            stack.callback(inside.close)
            inside.egress = loop.run(serving(inside.descriptors, mode, hosts, permitted))
            stack.callback(lambda: loop.run(inside.egress.stop()))
            return inside

        yield start


@pytest.fixture(params=["root", "user"])
def privilege(request: pytest.FixtureRequest) -> str:
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    return str(request.param)


@pytest.fixture
def web(origins):
    """The outside: HTTP on port 80, HTTPS on port 443 of an address that only permitted egresses may dial."""
    return origins(OUTSIDE, 80), origins(OUTSIDE, 443, tls=True)


def test_programs_without_a_proxy_reach_allowed_hosts(enter, web, certificate):
    inside = enter("good.test", "*.wild.test")
    assert inside.curl("http://good.test/")[1] == "hello from good.test"
    ca = ("--cacert", str(certificate))
    assert inside.curl("https://good.test/", *ca)[1] == "hello from good.test"
    assert inside.curl("https://a.wild.test/", *ca)[1] == "hello from a.wild.test"
    seen = {(attempt.channel, attempt.host, attempt.verdict) for attempt in inside.egress.attempts}
    assert {("http", "good.test", "allowed"), ("tls", "a.wild.test", "allowed")} <= seen
    assert ("dns", "good.test", "allowed") in seen


def test_programs_with_proxy_variables_reach_allowed_hosts(enter, web, certificate):
    inside = enter("good.test")
    assert inside.curl("http://good.test/", proxy=True)[1] == "hello from good.test"
    assert inside.curl("https://good.test/", "--cacert", str(certificate), proxy=True)[1] == "hello from good.test"
    channels = [attempt.channel for attempt in inside.egress.attempts]
    assert channels == ["proxy", "connect"], "names are resolved outside"


def test_other_names_do_not_exist_and_are_refused_by_the_proxy(enter, web):
    inside = enter("good.test")
    code, _, error = inside.curl("http://evil.test/")
    assert code != 0
    assert "Could not resolve" in error
    assert "not on the allowlist" in inside.curl("http://evil.test/", proxy=True)[1]
    assert web[0].connections == 0


def test_the_resolver_of_the_system_sees_fake_addresses_only(enter):
    inside = enter("good.test", "*.wild.test")
    ask = "import socket; print(*{entry[4][0] for entry in socket.getaddrinfo('%s', 80)})"
    address = inside.python(ask % "GOOD.test.")
    assert IPv4Address(address) in FAKE_NETWORK
    assert inside.python(ask % "good.test") == address
    assert inside.python(ask % "a.wild.test") != address
    over_tcp = inside.run("env", "RES_OPTIONS=use-vc", "getent", "ahostsv4", "good.test")[1]
    assert over_tcp.startswith(address)
    for name in ("evil.test", "wild.test", "good.test.evil.test", "localhost.wild", "1.1.1.1.in-addr.arpa"):
        assert inside.run("getent", "ahosts", name)[0] != 0


def test_direct_connections_fail(enter, web):
    inside = enter("good.test")
    attempt = "import socket, sys; print(socket.socket().connect_ex((sys.argv[1], int(sys.argv[2]))))"
    for address, port in (
        ("192.0.2.1", 443),  # the internet
        ("10.0.0.1", 80),  # a neighbour
        ("169.254.169.254", 80),  # a cloud's metadata
        (OUTSIDE, 80),  # this machine
        ("198.19.255.253", 22),  # the gateway on any other port
        ("198.18.0.1", 22),
    ):
        status, out, err = inside.run("/usr/bin/python3", "-c", attempt, address, str(port))
        assert status == 0, err
        assert os.strerror(int(out)) in {"Network is unreachable", "Connection refused"}, (address, port)
    datagram = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"
    assert "unreachable" in inside.run("/usr/bin/python3", "-c", datagram)[2]
    assert web[0].connections == 0


def test_a_connection_to_an_allowed_host_cannot_ask_for_another(enter, web, certificate):
    inside = enter("good.test", "*.wild.test")
    address = inside.run("getent", "ahostsv4", "good.test")[1].split()[0]
    for other in ("a.wild.test", "evil.test"):
        code, _, error = inside.curl("-k", "--resolve", f"{other}:443:{address}", f"https://{other}/")
        assert code != 0
        assert "unrecognized name" in error
        assert "403" in inside.curl("-H", f"Host: {other}", "-w", "%{http_code}", "http://good.test/")[1]
    assert [server.requests for server in web] == [[], []]
    reasons = {attempt.reason for attempt in inside.egress.attempts if attempt.channel != "dns"}
    assert reasons == {"the connection was made to good.test"}


def test_an_address_of_an_earlier_phase_is_judged_by_what_the_connection_says(enter, web, certificate):
    inside = enter("good.test")
    ca = ("--cacert", str(certificate))
    stale = "198.18.77.77"
    assert inside.curl(*ca, "--resolve", f"good.test:443:{stale}", "https://good.test/")[1] == "hello from good.test"
    assert inside.curl("--resolve", f"good.test:80:{stale}", "http://good.test/")[1] == "hello from good.test"
    assert inside.curl("-k", "--resolve", f"evil.test:443:{stale}", "https://evil.test/")[0] != 0
    assert "not on the allowlist" in inside.curl("--resolve", f"evil.test:80:{stale}", "http://evil.test/")[1]


def test_a_sandbox_keeps_all_ports_for_its_own_servers(enter):
    inside = enter(mode="public")
    ports = (53, 3128, *PUBLIC_PORTS)
    serve = f"import socket; s = [socket.create_server(('0.0.0.0', p)) for p in {ports}]"
    reach = f"[socket.create_connection(('127.0.0.1', p)) for p in {ports}]; print('served')"
    assert inside.python(f"{serve}; {reach}") == "served"


def test_public_reaches_every_name_and_no_private_address(enter, web, certificate):
    inside = enter(mode="public")
    assert inside.curl("http://any.test/")[1] == "hello from any.test"
    assert inside.curl("https://good.test/", "--cacert", str(certificate))[1] == "hello from good.test"
    assert inside.curl("http://any.test/", proxy=True)[1] == "hello from any.test"
    for url in ("http://10.0.0.1/", "http://169.254.169.254/", "http://nowhere.example/"):
        assert inside.curl(url)[0] != 0
        assert inside.curl("-f", url, proxy=True)[0] != 0
    verdicts = {(attempt.host, attempt.verdict) for attempt in inside.egress.attempts if attempt.channel == "raw"}
    assert {
        ("10.0.0.1", "refused"),
        ("169.254.169.254", "refused"),
        ("nowhere.example", "failed"),
    } <= verdicts


def test_public_does_not_lead_back_to_this_machine(enter, web):
    inside = enter(mode="public", permitted=())
    assert inside.curl("http://any.test/")[0] != 0
    assert inside.curl("-f", f"http://{OUTSIDE}/", proxy=True)[0] != 0
    assert web[0].connections == 0


def test_listed_addresses_are_led_to_the_proxy_and_judged_there(enter):
    inside = enter("192.0.2.7")
    assert "403" in inside.curl("-w", "%{http_code}", "http://192.0.2.7/")[1]
    assert "not a public address" in inside.curl("http://192.0.2.7/")[1]
    assert inside.curl("http://192.0.2.8/")[0] != 0
    seen = {(attempt.host, attempt.channel, attempt.verdict) for attempt in inside.egress.attempts}
    assert seen == {("192.0.2.7", "http", "refused")}


def test_stopping_takes_the_interface_away(enter, loop, web):
    inside = enter("good.test")
    assert "egress0" in inside.run("cat", "/proc/net/dev")[1]
    loop.run(inside.egress.stop())
    for _ in range(50):
        if "egress0" not in inside.run("cat", "/proc/net/dev")[1]:
            break
    assert "egress0" not in inside.run("cat", "/proc/net/dev")[1]
    assert inside.curl("http://good.test/")[0] != 0


def test_each_phase_has_its_own_policy(enter, loop, web):
    inside = enter("good.test")
    for hosts, good, other in ((("other.test",), False, True), ((), False, False), (("*.test",), True, True)) * 2:
        loop.run(inside.egress.stop())
        mode = "allowlist" if hosts else "none"
        inside.egress = loop.run(serving(inside.change(mode, *hosts), mode, hosts, [OUTSIDE]))
        for name, reached in (("good.test", good), ("other.test", other)):
            assert (inside.curl(f"http://{name}/")[1] == f"hello from {name}") == reached
            assert (inside.curl("-f", f"http://{name}/", proxy=True)[0] == 0) == reached


def test_no_network_means_loopback_only(enter):
    inside = enter(mode="none")
    assert inside.descriptors == []
    assert [line.split(":")[0].strip() for line in inside.run("cat", "/proc/net/dev")[1].splitlines()[2:]] == ["lo"]
