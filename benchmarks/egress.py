"""The throughput of the egress proxy: a download by plain HTTP and one through CONNECT, under both policies.

Server and client are separate processes; the proxy runs in this one's event loop, as it does in a driver.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from ipaddress import ip_address, ip_network
from typing import Any, Literal

from benchflow.sandbox.network.egress import Egress
from benchflow.sandbox.protocol import NetworkPolicy

SIZE = 1 << 30
BLOCK = 1 << 20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE


def serve(listening: socket.socket) -> None:
    block = bytes(BLOCK)
    while True:
        connection, _ = listening.accept()
        with connection:
            if connection.recv(1 << 16):
                connection.sendall(HEAD)
                for _ in range(SIZE // BLOCK):
                    connection.sendall(block)


def download(proxy: int, server: int, *, tunnel: bool, results: Any) -> None:
    host = b"a.test:%d" % server
    with socket.create_connection(("127.0.0.1", proxy)) as connection:
        if tunnel:
            connection.sendall(b"CONNECT %s HTTP/1.1\r\n\r\n" % host)
            connection.recv(1 << 10)
        url = b"/" if tunnel else b"http://%s/" % host
        connection.sendall(b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (url, host))
        buffer, received, start = bytearray(BLOCK), 0, time.perf_counter()
        while count := connection.recv_into(buffer):
            received += count
    results.put(received / (time.perf_counter() - start) / 1e6 if received > SIZE else 0.0)


async def resolve(_: str) -> list[Any]:
    return [ip_address("127.0.0.1")]


async def measure(mode: Literal["public", "allowlist"], server: int, context: Any) -> None:
    policy = NetworkPolicy(mode, ("a.test",) if mode == "allowlist" else ())
    egress = Egress(policy, resolver=resolve, permitted=[ip_network("127.0.0.0/8")])
    listening = socket.create_server(("127.0.0.1", 0))
    proxy = listening.getsockname()[1]
    await egress.start([("proxy", listening)])
    for tunnel in (False, True):
        results = context.Queue()
        options = {"tunnel": tunnel, "results": results}
        client = context.Process(target=download, args=(proxy, server), kwargs=options)
        used = time.process_time()
        client.start()
        rate = await asyncio.to_thread(results.get)
        client.join()
        cost = (time.process_time() - used) * 1e9 / SIZE
        way = "CONNECT" if tunnel else "HTTP"
        print(f"{mode:10} {way:8} {rate:6.0f} MB/s, {cost:.2f} CPU seconds of the proxy per GB")
    await egress.stop()


def main() -> None:
    context = multiprocessing.get_context("fork")
    listening = socket.create_server(("127.0.0.1", 0))
    server = context.Process(target=serve, args=(listening,), daemon=True)
    server.start()
    port = listening.getsockname()[1]
    asyncio.run(measure("allowlist", port, context))
    asyncio.run(measure("public", port, context))
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
