"""Network policies of a sandbox: nothing, some hosts, everything, and the change from one to the other."""

from __future__ import annotations

import anyio
import pytest

from benchflow.errors import PackageError, SandboxFailure
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.protocol import NetworkPolicy, SandboxSpec

pytestmark = pytest.mark.anyio

ALLOWED = NetworkPolicy("allowlist", ("allowed.test",))


async def sh(box: LocalSandbox, command: str) -> str:
    result = await box.exec(command, timeout=60)
    return (result.stdout + result.stderr).decode().strip()


def ask(url: str) -> str:
    program = f"import urllib.request as u; print(u.urlopen('{url}', timeout=10).status)"
    return f'/usr/bin/python3 -c "{program}" 2>&1 | tail -1'


async def test_without_a_network_there_is_loopback_only(box: LocalSandbox) -> None:
    assert await sh(box, "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '") == "lo"
    talk = "/usr/bin/python3 -m http.server 8123 >/dev/null 2>&1 & sleep 0.1; "
    wait = "for i in $(seq 100); do " + ask("http://127.0.0.1:8123/") + " | grep 200 && break; sleep 0.05; done"
    assert await sh(box, talk + wait) == "200"


async def test_an_allow_list_lets_nobody_else_through(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(network=ALLOWED)) as box:
        assert "403" in await sh(box, ask("http://refused.test/"))
        assert "egress0" in await sh(box, "cat /proc/net/dev")
        direct = "env -u http_proxy -u HTTP_PROXY " + ask("http://refused.test/")
        assert "URLError" in await sh(box, direct)


async def test_a_policy_can_change_while_the_sandbox_runs(box: LocalSandbox) -> None:
    assert "HTTP_PROXY" not in await sh(box, "env")
    await box.set_network(ALLOWED)
    assert "HTTP_PROXY" in await sh(box, "env")
    assert "nameserver" in await sh(box, "cat /etc/resolv.conf")
    await box.set_network(NetworkPolicy("public"))
    assert "egress0" in await sh(box, "cat /proc/net/dev")
    await box.set_network(NetworkPolicy("none"))
    assert "egress0" not in await sh(box, "cat /proc/net/dev")
    assert "HTTP_PROXY" not in await sh(box, "env")
    assert await sh(box, "cat /etc/resolv.conf") == ""


async def test_an_invalid_host_starts_nothing(backend: LocalBackend) -> None:
    with pytest.raises(PackageError):
        backend.create(SandboxSpec(network=NetworkPolicy("allowlist", ("not a host",))))


async def test_a_port_inside_can_be_dialled_from_outside(box: LocalSandbox) -> None:
    with pytest.raises(ConnectionError, match="8124"):
        await box.dial(8124)
    await box.process("/usr/bin/python3 -m http.server 8124")
    for _ in range(200):
        try:
            connection = await box.dial(8124)
            break
        except ConnectionError:
            await anyio.sleep(0.05)
    with connection:
        connection.setblocking(True)
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.recv(15) == b"HTTP/1.0 200 OK"


async def test_the_network_of_a_stopped_sandbox_is_gone(backend: LocalBackend) -> None:
    box = backend.create(SandboxSpec(network=ALLOWED))
    await box.start()
    await box.stop()
    with pytest.raises(SandboxFailure):
        await box.dial(80)


async def test_what_opens_a_network_does_not_count_as_running(backend: LocalBackend) -> None:
    for _ in range(12):
        async with backend.create(SandboxSpec(network=ALLOWED)) as box:
            assert not await box.has_processes()
            copy = await box.fork()
            assert not await copy.has_processes()
            await copy.stop()
