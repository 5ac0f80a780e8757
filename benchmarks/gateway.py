"""The model gateway beside a bare pass-through of starlette and httpx, in the same run, and what its records take.

Four processes: an upstream that streams, the bare pass-through, the gateway, and this one, which asks both in turn. CPU
is that of each proxy's own process per call; the first byte is what a client waits for. Every stream is compared with
what the upstream sent; no two are the same.

    python benchmarks/gateway.py [--calls 400] [--long 10000]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

EVENTS = 40
PAUSE = 0.02
"""Seconds between events where each of them is a piece of its own, as models send them."""
CHUNK = {"id": "chatcmpl-00000000", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o", "choices": []}
LAST = {
    "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 9},
}
DELTA = {"choices": [{"index": 0, "delta": {"content": "some words"}, "logprobs": None, "finish_reason": None}]}
STREAM = [f"data: {json.dumps({**CHUNK, **DELTA})}\n\n".encode() for _ in range(EVENTS)]
STREAM += [f"data: {json.dumps({**CHUNK, **LAST})}\n\ndata: [DONE]\n\n".encode()]
BODY = b"".join(STREAM)
SAME = b"chatcmpl-00000000"
SYSTEM = {"role": "system", "content": "You are an agent. " * 450}
TOKEN_HEADERS = "authorization: Bearer {token}\r\ncontent-type: application/json\r\n"


def used(pid: int) -> float:
    """CPU seconds of a process so far."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def stay_on(core: int) -> None:
    """Proxies have one core, those who talk to them another one: otherwise chance decides who gets larger pieces."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


def memory(pid: int) -> float:
    """Resident megabytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def upstream(ready: Connection, pause: Any) -> None:
    stay_on(1)
    numbers = itertools.count(1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
                await reader.readexactly(int(length.split(b":")[1]))
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                number = b"chatcmpl-%08d" % next(numbers)
                for same in STREAM:
                    piece = same.replace(SAME, number)
                    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    await writer.drain()
                    await asyncio.sleep(pause.value)
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def bare(ready: Connection, port: int) -> None:
    stay_on(0)
    import httpx
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    client = httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None, max_keepalive_connections=64))

    async def pass_on(request: Request) -> StreamingResponse:
        body = await request.body()
        headers = {"authorization": "Bearer key", "content-type": "application/json", "accept-encoding": "identity"}
        asked = client.build_request(
            "POST", f"http://127.0.0.1:{port}/v1/chat/completions", content=body, headers=headers
        )
        answer = await client.send(asked, stream=True)

        async def pieces() -> Any:
            try:
                async for piece in answer.aiter_raw():
                    yield piece
            finally:
                await answer.aclose()

        return StreamingResponse(pieces(), answer.status_code, media_type=answer.headers["content-type"])

    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ready.send((listening.getsockname()[1], "none"))
    app = Starlette(routes=[Route("/{rest:path}", pass_on, methods=["POST"])])
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", http="h11")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


def gateway(ready: Connection, port: int, folder: str) -> None:
    stay_on(0)
    from benchflow.files.redaction import make_redactor
    from benchflow.models.gateway import Gateway, GrantRequest
    from benchflow.record import CallPlace, ModelCalls, RolloutFolder

    async def main() -> None:
        key = "sk-benchmark-0123456789"
        calls = ModelCalls(RolloutFolder(Path(folder)), make_redactor([key]))
        environ = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}
        async with Gateway(environ) as made:
            access = made.open(GrantRequest(calls)).admit(
                CallPlace("agent"), socket.create_server(("127.0.0.1", 0), backlog=256)
            )
            ready.send((access.port, access.token))
            await asyncio.Event().wait()

    asyncio.run(main())


class Client:
    """Asks one proxy, over as many connections as there are calls at once."""

    def __init__(self, port: int, token: str, path: str) -> None:
        self._port, self._path = port, path
        self._headers = TOKEN_HEADERS.format(token=token)
        self.lost = 0
        self.sent = 0
        """Bytes of requests and answers."""

    async def calls(self, count: int, number: int, after: float) -> list[float]:
        """Seconds to the first byte of each of `count` calls on one connection."""
        await asyncio.sleep(after)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        waited = []
        for index in range(count):
            user = {"role": "user", "content": f"call {number}/{index}"}
            body = json.dumps({"model": "gpt-4o", "stream": True, "messages": [SYSTEM, user]}).encode()
            length = len(body)
            head = f"POST {self._path} HTTP/1.1\r\nhost: x\r\n{self._headers}content-length: {len(body)}\r\n\r\n"
            began = time.perf_counter()
            writer.write(head.encode() + body)
            await reader.readuntil(b"\r\n\r\n")
            first, pieces = True, []
            while size := int(await reader.readuntil(b"\r\n"), 16):
                if first:
                    waited.append(time.perf_counter() - began)
                    first = False
                pieces.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readexactly(2)
            body = b"".join(pieces)
            self.lost += body.replace(body[14:31], SAME) != BODY
            self.sent += length + len(BODY)
        writer.close()
        return waited

    async def at_once(self, streams: int, count: int, pause: float = 0.0) -> list[float]:
        """The same for many streams, of which no two begin together if the upstream pauses between events."""
        apart = pause * EVENTS / streams
        found = await asyncio.gather(*(self.calls(count, number, number * apart) for number in range(streams)))
        return [seconds for one in found for seconds in one]


def start(context: Any, target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *arguments), daemon=True)
    process.start()
    return process, here.recv()


async def compare(clients: dict[str, Client], pids: dict[str, int], streams: int, calls: int, pause: float) -> None:
    cpu: dict[str, list[float]] = {name: [] for name in clients}
    first: dict[str, list[float]] = {name: [] for name in clients}
    each = max(calls // (streams * 5), 1)
    for turn in range(6):
        for name, client in clients.items():
            before = used(pids[name])
            waited = await client.at_once(streams, each, pause)
            if turn:  # the first turn warms up
                cpu[name].append((used(pids[name]) - before) / (streams * each))
                first[name] += waited
    per_call = {name: statistics.median(found) * 1000 for name, found in cpu.items()}
    byte = {name: statistics.median(found) * 1000 for name, found in first.items()}
    print(f"{streams:3} at once, {5 * each * streams} calls, {pause * 1000:.0f} ms between events")
    for name in clients:
        print(f"  {name:8} CPU {per_call[name]:6.2f} ms per call   first byte {byte[name]:8.2f} ms (median)")
    ratios = [per_call["gateway"] / per_call["bare"], byte["gateway"] / byte["bare"]]
    added = byte["gateway"] - byte["bare"]
    print(f"  gateway / bare: CPU {ratios[0]:.2f}, first byte {ratios[1]:.2f}, added {added:.2f} ms")


async def long_run(client: Client, pid: int, calls: int) -> None:
    await client.at_once(8, max(calls // 80, 1))
    early = memory(pid)
    await client.at_once(8, calls // 8)
    print(f"memory after {calls // 10} calls {early:.1f} MB, after {calls} more {memory(pid):.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=1280)
    parser.add_argument("--long", type=int, default=10_000)
    asked = parser.parse_args()
    stay_on(1)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pause = context.Value("d", 0.0)
        started = [start(context, upstream, pause)]
        port = started[0][1]
        started += [start(context, bare, port), start(context, gateway, port, folder)]
        places = dict(zip(("bare", "gateway"), (found for _, found in started[1:]), strict=True))
        pids = dict(zip(places, (process.pid for process, _ in started[1:]), strict=True))
        clients = {name: Client(*place, "/openai/v1/chat/completions") for name, place in places.items()}
        try:
            for streams, pause.value in ((1, 0.0), (64, 0.0), (64, PAUSE)):
                asyncio.run(compare(clients, pids, streams, asked.calls, pause.value))
            pause.value = 0.0
            asyncio.run(long_run(clients["gateway"], pids["gateway"], asked.long))
            written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            print(f"streams that differ from what was sent: {sum(client.lost for client in clients.values())}")
            print(f"records / text of the calls: {written / clients['gateway'].sent:.2f}")
        finally:
            for process, _ in started:
                process.terminate()


if __name__ == "__main__":
    main()
