"""Services of one box used from a fork beside it: same addresses, one direction, bounded, nothing left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchflow.sandbox.inside.offers import MOST, Offer, read_offers
from benchflow.sandbox.local.local_sandbox import LocalSandbox

pytestmark = pytest.mark.anyio

SERVER = """
import os, socket, sys, threading
kind, place = sys.argv[1], sys.argv[2].replace("@", chr(0))
unix = {"stream": socket.SOCK_STREAM, "packet": socket.SOCK_SEQPACKET, "datagram": socket.SOCK_DGRAM}
if kind in unix:
    server = socket.socket(socket.AF_UNIX, unix[kind])
    server.bind(place)
else:
    host, _, port = place.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    if len(sys.argv) > 4:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind((host, int(port)))
datagram = kind in ("udp", "datagram")
if not datagram:
    server.listen()
open(sys.argv[3], "w").close()

def serve(client):
    with client:
        text = b""
        while data := client.recv(65536):
            text += data
            if kind == "packet":
                client.send(b"echo " + data)
        if kind != "packet":
            client.sendall(b"echo " + text)

while True:
    if datagram:
        data, sender = server.recvfrom(65536)
        with open("/app/received", "ab") as log:
            log.write(data)
        if sender:
            server.sendto(b"echo " + data, sender)
    else:
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""

ASK = """
import socket, sys
kind, place = sys.argv[1], sys.argv[2].replace("@", chr(0))
unix = {"stream": socket.SOCK_STREAM, "packet": socket.SOCK_SEQPACKET, "datagram": socket.SOCK_DGRAM}
if kind in unix:
    client, address = socket.socket(socket.AF_UNIX, unix[kind]), place
else:
    host, _, port = place.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    client = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    address = (host, int(port))
client.settimeout(20)
client.connect(address)
client.send(b"hello")
if kind in ("tcp", "stream"):
    client.shutdown(socket.SHUT_WR)
    data = b""
    while part := client.recv(65536):
        data += part
    print(data.decode())
elif not (kind == "datagram"):
    print(client.recv(65536).decode())
"""

NEVER_CLOSES = """
import socket
server = socket.create_server(("127.0.0.1", 8001), backlog=512)
open("/tmp/up", "w").close()
kept = []
while True:
    kept.append(server.accept())
"""
MANY_CLIENTS = """
import socket, time
kept = [socket.create_connection(("127.0.0.1", 8001), 20) for _ in range(240)]
print(len(kept), flush=True)
time.sleep(60)
"""
MANY_PORTS = f"""
import socket, time
kept = [socket.create_server(("127.0.0.1", 9000 + number)) for number in range({MOST + 12})]
open("/tmp/up", "w").close()
time.sleep(600)
"""


async def serve(box: LocalSandbox, kind: str, place: str, *more: str, user: str | None = None) -> None:
    """Start an echo service as an agent would: in the background, in a session of its own."""
    ready = f"/tmp/ready-{abs(hash((kind, place)))}"
    await box.write_file("/tmp/server.py", SERVER.encode(), mode=0o644)
    words = " ".join([kind, f"'{place}'", ready, *more])
    command = f"setsid nohup python3 /tmp/server.py {words} >/tmp/log-$$ 2>&1 </dev/null &"
    assert (await box.exec(command, user=user, timeout=60)).ok
    await true(box, f"test -f {ready}")


async def true(box: LocalSandbox, command: str) -> None:
    """Wait until a command in the box succeeds."""
    with anyio.fail_after(30):
        while not (await box.exec(command)).ok:  # noqa: ASYNC110 - the box sets no event here
            await anyio.sleep(0.02)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def ask(box: LocalSandbox, kind: str, place: str, user: str = "root") -> str:
    await box.write_file("/tmp/ask.py", ASK.encode())
    result = await box.exec(["python3", "/tmp/ask.py", kind, place], user=user, timeout=60)
    return result.stdout.decode().strip() if result.ok else result.stderr.decode().strip().splitlines()[-1]


@asynccontextmanager
async def beside(box: LocalSandbox, **options: Any) -> AsyncIterator[LocalSandbox]:
    fork = await box.fork_beside(**options)
    try:
        yield fork
    finally:
        await fork.stop()


@pytest.mark.parametrize("user", ["root", None])
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("tcp", "127.0.0.1:8001"),
        ("tcp", "127.0.0.9:8002"),
        ("tcp", "0.0.0.0:8003"),
        ("tcp", "::1:8004"),
        ("udp", "127.0.0.1:8005"),
        ("udp", "0.0.0.0:8006"),
        ("stream", "/app/service.sock"),
        ("packet", "/app/packets.sock"),
        ("stream", "relative.sock"),
        ("stream", "@a-name"),
    ],
)
async def test_a_service_is_reached_at_its_address(box: LocalSandbox, kind: str, place: str, user: str | None) -> None:
    await serve(box, kind, place, user=user)
    async with beside(box) as fork:
        assert fork.not_forwarded == ()
        assert await ask(fork, kind, place.replace("0.0.0.0", "127.0.0.1")) == "echo hello"


async def test_a_plain_fork_reaches_nothing(box: LocalSandbox) -> None:
    await serve(box, "tcp", "127.0.0.1:8001")
    fork = await box.fork()
    assert "refused" in await ask(fork, "tcp", "127.0.0.1:8001")
    await fork.stop()


async def test_an_address_for_both_families_serves_both(box: LocalSandbox) -> None:
    await serve(box, "tcp", ":::8001")
    await serve(box, "tcp", ":::8002", "only6")
    async with beside(box) as fork:
        assert await ask(fork, "tcp", "::1:8001") == "echo hello"
        assert await ask(fork, "tcp", "127.0.0.1:8001") == "echo hello"
        assert await ask(fork, "tcp", "127.0.0.77:8001") == "echo hello"
        assert await ask(fork, "tcp", "::1:8002") == "echo hello"
        assert "refused" in await ask(fork, "tcp", "127.0.0.1:8002")


async def test_datagrams_of_a_named_socket_arrive(box: LocalSandbox) -> None:
    await serve(box, "datagram", "/tmp/log.sock")
    async with beside(box) as fork:
        await ask(fork, "datagram", "/tmp/log.sock")
        await true(box, "grep -q hello /app/received")


async def test_a_named_socket_keeps_its_permissions(box: LocalSandbox) -> None:
    await serve(box, "stream", "/app/private.sock", user="root")
    await box.exec("chmod 600 /app/private.sock", user="root")
    if "users" not in box.capabilities:
        pytest.skip("all users have one id here")
    async with beside(box) as fork:
        assert await ask(fork, "stream", "/app/private.sock") == "echo hello"
        assert "Permission" in await ask(fork, "stream", "/app/private.sock", user="agent")


async def test_a_socket_in_a_folder_that_was_not_carried_over_is_there(box: LocalSandbox) -> None:
    assert (await box.exec("mkdir -p /run/app && chmod 777 /run/app", user="root")).ok
    await serve(box, "stream", "/run/app/x.sock")
    async with beside(box, revert=lambda _: ["/run/app"]) as fork:
        assert await ask(fork, "stream", "/run/app/x.sock") == "echo hello"


async def test_no_socket_appears_among_the_files_of_the_verifier(box: LocalSandbox) -> None:
    assert (await box.exec("mkdir /verifier; mkdir -p /run/way; ln -s /verifier /run/way/in", user="root")).ok
    await serve(box, "stream", "/verifier/x.sock", user="root")
    await serve(box, "stream", "/run/way/in/y.sock", user="root")
    async with beside(box, revert=lambda _: ["/verifier"], closed=["/verifier"]) as fork:
        assert len(fork.not_forwarded) == 2
        assert (await fork.exec("ls -A /verifier 2>/dev/null", user="root")).stdout == b""


async def test_what_takes_the_place_of_a_socket_is_not_overwritten(box: LocalSandbox) -> None:
    await serve(box, "stream", "/app/x.sock")
    async with beside(box, revert=lambda _: []) as fork:
        assert fork.not_forwarded == ()
    assert (await box.exec("rm x.sock; echo data > x.sock")).ok
    async with beside(box) as fork:
        assert await fork.read_file("/app/x.sock") == b"data\n"


async def test_the_box_of_a_service_cannot_reach_the_fork(box: LocalSandbox) -> None:
    await serve(box, "tcp", "127.0.0.1:8001")
    async with beside(box) as fork:
        await serve(fork, "tcp", "0.0.0.0:9000")
        await serve(fork, "stream", "@of-the-verifier")
        assert "refused" in await ask(box, "tcp", "127.0.0.1:9000")
        assert "refused" in await ask(box, "stream", "@of-the-verifier")
        pids = await box.exec("ls /proc | grep -c '^[0-9]'", user="root")
        assert int(pids.stdout) < 10


async def test_a_service_that_ends_resets_connections(box: LocalSandbox) -> None:
    await serve(box, "tcp", "127.0.0.1:8001")
    async with beside(box) as fork:
        await box.kill_processes()
        assert "reset" in (await ask(fork, "tcp", "127.0.0.1:8001")).lower()


async def test_a_fork_outlives_the_box_it_was_made_beside(box: LocalSandbox) -> None:
    await serve(box, "tcp", "127.0.0.1:8001")
    async with beside(box) as fork:
        await box.stop()
        assert "reset" in (await ask(fork, "tcp", "127.0.0.1:8001")).lower()


async def test_nothing_is_left_open_when_a_fork_stops(box: LocalSandbox) -> None:
    await serve(box, "tcp", "127.0.0.1:8001")
    await serve(box, "udp", "127.0.0.1:8002")
    async with beside(box):
        pass
    before = open_files()
    for _ in range(3):
        async with beside(box) as fork:
            assert await ask(fork, "tcp", "127.0.0.1:8001") == "echo hello"
            assert await ask(fork, "udp", "127.0.0.1:8002") == "echo hello"
    assert open_files() <= before


async def test_connections_that_a_service_never_closes_do_not_exhaust_the_driver(box: LocalSandbox) -> None:
    """A service holds what it gets; more clients than there is room for wait, and the driver's descriptors stay few."""
    await box.write_file("/tmp/hold.py", NEVER_CLOSES.encode())
    await box.exec("setsid python3 /tmp/hold.py >/dev/null 2>&1 </dev/null &")
    await true(box, "test -f /tmp/up")
    await serve(box, "tcp", "127.0.0.1:8002")
    async with beside(box) as fork:
        before = open_files()
        held = await fork.process(["python3", "-c", MANY_CLIENTS])
        async for _ in held.stdout():
            break
        assert open_files() - before < 300
        await held.kill()
        assert await ask(fork, "tcp", "127.0.0.1:8002") == "echo hello"


async def test_more_offers_than_can_be_forwarded_are_named(box: LocalSandbox) -> None:
    await box.write_file("/tmp/many.py", MANY_PORTS.encode())
    await box.exec("setsid python3 /tmp/many.py >/dev/null 2>&1 </dev/null &")
    await true(box, "test -f /tmp/up")
    async with beside(box) as fork:
        assert len(fork.not_forwarded) == 12


def test_the_tables_of_the_kernel_are_read(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue\n"
    (tmp_path / "tcp").write_text(
        head + "   0: 0100007F:1F90 00000000:0000 0A 0:0\n   1: 0100007F:1F91 0100007F:1F90 01 0:0\n"
    )
    (tmp_path / "tcp6").write_text(head + "   0: 00000000000000000000000001000000:0050 0:0 0A 0:0\n")
    (tmp_path / "unix").write_text(
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0000: 00000002 00000000 00010000 0001 01 1 @a b@@\n"
        "0000: 00000002 00000000 00010000 0001 01 2 relative\n"
        "0000: 00000003 00000000 00000000 0001 03 3 @connected\n"
        "0000: 00000002 00000000 00010000 0001 01 4\n"
        "0000: 00000002 00000000 00000000 0002 01 5 @0ab12\n"
        "nonsense\n"
    )
    found, unusable = read_offers(str(tmp_path), str(tmp_path))
    assert found == [
        Offer("tcp", "127.0.0.1", 8080),
        Offer("tcp", "::1", 80, alone=True),
        Offer("stream", "\0a b\0\0"),
    ]
    assert unusable == ["socket relative (its path is relative)"]


async def bound(fork: LocalSandbox, kind: str, then: str = "", address: str = "127.0.0.1") -> None:
    """Bind port 8001 in a box, as programs do that only try whether it is free."""
    family = "AF_INET6" if ":" in address else "AF_INET"
    reuse = "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
    dual = "s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)\n" if ":" in address else ""
    opened = f"import socket, time\ns = socket.socket(socket.{family}, socket.{kind})\n"
    lines = f"{opened}{reuse}{dual}s.bind(({address!r}, 8001))\n{then}"
    result = await fork.exec(["python3", "-c", lines], user="root", timeout=60)
    assert result.ok, result.stderr.decode()


async def test_an_address_that_is_only_tried_is_forwarded_again_and_named(box: LocalSandbox) -> None:
    await serve(box, "tcp", "127.0.0.1:8001")
    async with beside(box) as fork:
        await bound(fork, "SOCK_STREAM")
        with anyio.fail_after(30):
            while await ask(fork, "tcp", "127.0.0.1:8001") != "echo hello":  # noqa: ASYNC110 - nothing tells
                await anyio.sleep(0.02)
        own = "s.listen()\nsocket.create_connection(('127.0.0.1', 8001))\ns.settimeout(20)\ns.accept()\n"
        await bound(fork, "SOCK_STREAM", own)
        assert fork.not_forwarded == ("tcp 127.0.0.1:8001 (while a process here had bound it)",)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
async def test_an_address_stays_with_the_process_that_bound_it_however_late_it_listens(
    box: LocalSandbox, address: str
) -> None:
    await serve(box, "tcp", "127.0.0.1:8001")
    async with beside(box) as fork:
        own = (
            "time.sleep(2.5)\ns.listen()\nsocket.create_connection(('127.0.0.1', 8001))\ns.settimeout(20)\ns.accept()\n"
        )
        await bound(fork, "SOCK_STREAM", own, address)


async def test_a_port_for_datagrams_leaves_the_connections_of_its_number_alone(box: LocalSandbox) -> None:
    await serve(box, "tcp", "127.0.0.1:8001")
    async with beside(box) as fork:
        await bound(fork, "SOCK_DGRAM")
        assert fork.not_forwarded == ()
        assert await ask(fork, "tcp", "127.0.0.1:8001") == "echo hello"
