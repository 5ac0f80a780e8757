"""Ports and addresses are asked about from inside a sandbox."""

import pytest

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.ready_probes import HttpProbe, TcpProbe, http_probe, listening_ports, tcp_probe

SERVER = """
import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health?x=1" else 503)
        self.end_headers()
socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer(("127.0.0.1", 8123), Handler).serve_forever()
"""


def test_listening_ports_are_read_from_the_kernels_list():
    table = (
        "  sl  local_address rem_address   st tx_queue\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n"
        "   1: 0100007F:1F91 0100007F:0050 01 00000000:00000000 00:00000000\n"
        "   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000\n"
    )
    assert listening_ports(table) == {8080, 80}


@pytest.mark.parametrize(("target", "port"), [(80, 80), ("80", 80), ("localhost:81", 81), (":82", 82)])
def test_tcp_targets(target, port):
    assert tcp_probe(target) == TcpProbe(port)


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("http://127.0.0.1:1/x", "http://127.0.0.1:1/x"),
        ("/health", "http://127.0.0.1:80/health"),
        (":81/x", "http://127.0.0.1:81/x"),
        ("82", "http://127.0.0.1:82"),
    ],
)
def test_http_targets(target, url):
    assert http_probe(target, port=80) == HttpProbe(url)


@pytest.mark.parametrize(
    "make", [lambda: tcp_probe("x"), lambda: tcp_probe(0), lambda: http_probe("x"), lambda: http_probe("/x")]
)
def test_a_target_that_means_nothing_is_refused(make):
    with pytest.raises(EnvironmentFailure) as caught:
        make()
    assert caught.value.code == "readiness-invalid"


@pytest.mark.anyio
@pytest.mark.parametrize("tools", ["all", "python3", "bash"])
async def test_a_service_is_seen_once_it_listens_and_answers(sandbox, tools):
    if tools != "all":
        # Only what is named, and what the shell itself needs, is found.
        await sandbox.exec(f"mkdir /opt/only && ln -s /usr/bin/{tools} /usr/bin/cat /opt/only/", user="root")
    probe = HttpProbe("http://127.0.0.1:8123/health?x=1")
    if tools != "all":
        sandbox = OnlyPath(sandbox)
    assert not await TcpProbe(8123).ready(sandbox)
    assert not await probe.ready(sandbox)
    process = await sandbox.process(["/usr/bin/python3", "-c", SERVER])
    while not await TcpProbe(8123).ready(sandbox):
        pass
    assert await probe.ready(sandbox)
    assert not await HttpProbe("http://127.0.0.1:8123/other").ready(sandbox)
    await process.kill()
    await process.wait()


@pytest.mark.anyio
async def test_an_environment_without_tools_is_said(sandbox):
    await sandbox.exec("mkdir /opt/only", user="root")
    with pytest.raises(EnvironmentFailure, match="curl, wget, python3 and bash"):
        await HttpProbe("http://127.0.0.1:1/").ready(OnlyPath(sandbox))


class OnlyPath:
    """A sandbox whose commands find programs in `/opt/only` alone."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.process = sandbox.process

    async def exec(self, command, **options):
        return await self.sandbox.exec(command, env={"PATH": "/opt/only"}, **options)
