"""What served episodes cost: over ORS beside the official SDK's server, in real sandboxes beside jobs, and over time.

A null episode is one of a package on the null sandbox of `benchflow.testing`, in which nothing is executed: what is
left is the server, the course and the verification. Both servers are asked by the same client, in turns. `--quick` uses
smaller numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from lib.ors_client import LeanClient
from lib.side_by_side import Row, compile_ours, peers, print_table

PEER = "openreward==0.1.167"
TIME_LIMIT = 1800
"""Seconds after which the script gives up, whatever it waits for."""
PEER_SERVER = """
import os, socket
from openreward.environments import Environment, JSONObject, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel
import uvicorn

class Nothing(BaseModel):
    pass

class Null(Environment):
    @classmethod
    def list_splits(cls):
        return ["test"]
    @classmethod
    def list_tasks(cls, split):
        return [{"id": "null"}]
    def get_prompt(self):
        return [TextBlock(text="Do it.")]
    @tool
    async def submit(self, params: Nothing) -> ToolOutput:
        return ToolOutput(blocks=[TextBlock(text="The end.")], reward=1.0, finished=True)

listener = socket.create_server(("127.0.0.1", 0))
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as on a port that uvicorn opens itself
print(listener.getsockname()[1], flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # it logs every request, and stops when nobody reads what it prints
config = uvicorn.Config(Server([Null]).app, log_level="error", access_log=False)
uvicorn.Server(config).run([listener])
"""
FILES = {
    "task.md": "---\ntask: {name: bench/null}\nenvironment: {network_mode: no-network}\n---\nDo it.\n",
    "verifier/test.sh": "#!/bin/sh\n[ -e /app/x ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "#!/bin/sh\ntouch /app/x\n",
}
BENCH = str(Path(sys.executable).with_name("bench"))
SUBMIT = ("submit", {})
SOLVE = ("bash", {"command": "touch /app/x"})
AT_ONCE = 64
CONCURRENCY = 6


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Megabytes that it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextlib.contextmanager
def serving(root: Path, sandbox: str) -> Iterator[Served]:
    """Our server on the small package."""
    info = root / "plugin" / "doubles-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doubles\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[benchflow.sandboxes]\nnull = benchflow.testing:NullBackend\n")
    command = [BENCH, "serve", "ors", str(root / "null"), "--sandbox", sandbox, "--no-token", "--json"]
    env = {**os.environ, "PYTHONPATH": str(root / "plugin")}
    with running(command, env=env) as (process, line):
        yield Served(process, int(json.loads(line)["url"].rpartition(":")[2]))


@contextlib.contextmanager
def serving_peer() -> Iterator[Served | None]:
    """The official SDK's server with an environment that does nothing; None if it cannot be had."""
    try:
        python = peers.peer_environment(PEER) / "python"
    except (peers.PeerUnavailable, subprocess.CalledProcessError) as error:
        print(f"The SDK's server was not measured: {error}")
        yield None
        return
    with running([str(python), "-c", PEER_SERVER]) as (process, line):
        wait_for(int(line))
        yield Served(process, int(line))


@contextlib.contextmanager
def running(command: Sequence[str], **options: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    try:
        yield process, process.stdout.readline()
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            LeanClient(port).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def episodes(server: Served, count: int) -> tuple[float, float]:
    """Median milliseconds of one null episode, and milliseconds of the server's processor time for each."""
    client, spent = LeanClient(server.port), []
    before = server.cpu()
    for _ in range(count):
        began = time.perf_counter()
        client.episode("null", SUBMIT)
        spent.append(time.perf_counter() - began)
    client.close()
    return 1000 * statistics.median(spent), 1000 * (server.cpu() - before) / count


def rate(port: int, count: int, *calls: tuple[str, dict[str, object]], clients: int) -> float:
    """Episodes per second with so many clients at once."""
    left = iter(range(count))
    guard = threading.Lock()

    def work() -> None:
        client = LeanClient(port)
        while True:
            with guard:
                if next(left, None) is None:
                    break
            client.episode("null", *calls)
        client.close()

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(work) for _ in range(clients)]:
            done.result()
    return count / (time.perf_counter() - began)


def at_once(port: int, count: int) -> float:
    """Seconds until so many sessions, all open at the same time, have been solved and scored."""
    clients = [LeanClient(port) for _ in range(count)]

    def on_all(work: Callable[[int], object]) -> list[object]:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(work, range(count)))

    began = time.perf_counter()
    sids = on_all(lambda number: clients[number].begin("null"))
    for name, arguments in (SOLVE, SUBMIT):
        body = {"name": name, "input": arguments}
        answers = on_all(lambda number, body=body: clients[number].ask("POST", "/call", body, str(sids[number])))
    if any(b'"reward":1.0' not in bytes(answer) for answer in answers):  # type: ignore[arg-type]
        raise SystemExit("Not all sessions got the reward 1")
    on_all(lambda number: clients[number].end(str(sids[number])))
    spent = time.perf_counter() - began
    for client in clients:
        client.close()
    return spent


def job_rate(root: Path, count: int) -> float:
    """Oracle rollouts per second of `bench eval run`, from the start of the first to the end of the last."""
    jobs = root / "jobs"
    settings = ["--agent", "oracle", "--sandbox", "local", "--attempts", str(count), "--concurrency", str(CONCURRENCY)]
    command = [BENCH, "eval", "run", str(root / "null"), "--jobs-dir", str(jobs), "--name", "oracle", *settings]
    subprocess.run(command, check=True, capture_output=True)
    lines = [json.loads(line) for line in (jobs / "oracle" / "results.jsonl").read_text().splitlines()]
    results = [line.get("result", line) for line in lines]
    times = [[datetime.fromisoformat(each[key]) for each in results] for key in ("started_at", "finished_at")]
    return count / (max(times[1]) - min(times[0])).total_seconds()


def growth(server: Served, count: int) -> tuple[float, float]:
    """Megabytes that the server grew after the first tenth of so many episodes, and processor time, last over first."""
    tenth = count // 10
    episodes(server, tenth)
    held, first = server.memory(), episodes(server, tenth)[1]
    episodes(server, count - 3 * tenth)
    last = episodes(server, tenth)[1]
    return server.memory() - held, last / first


def measure(root: Path, *, quick: bool, peer: bool) -> list[Row]:
    for name, text in FILES.items():
        path = root / "null" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    count, rounds, whole = (20, 3, 200) if quick else (200, 5, 10_000)
    ours, theirs = [], []
    with serving(root, "null") as server, serving_peer() if peer else contextlib.nullcontext() as other:
        for each in (server, other):
            if each is not None:
                episodes(each, count)
        for _ in range(rounds):
            ours.append(episodes(server, count))
            theirs.append(episodes(other, count) if other is not None else (None, None))
        served = rate(server.port, 5 * count, SUBMIT, clients=4)
        their_rate = rate(other.port, 5 * count, SUBMIT, clients=4) if other is not None else None
        grown, flat = growth(server, whole)
    with serving(root, "local") as server:
        rate(server.port, 8, SOLVE, SUBMIT, clients=CONCURRENCY)
        seconds = at_once(server.port, AT_ONCE)
        real, job = rate(server.port, count, SOLVE, SUBMIT, clients=CONCURRENCY), job_rate(root, count)
    wall, cpu = (statistics.median(each[part] for each in ours) for part in (0, 1))
    their = [statistics.median(each[part] for each in theirs) if other is not None else None for part in (0, 1)]
    return [
        Row("null episode over ORS, one client", their[0], wall, 5, "ms"),
        Row("the server's processor time for it", their[1], cpu, 5, "ms"),
        Row("null episodes served, 4 clients", their_rate, served, 200, "/s", higher_is_better=True),
        Row(f"memory after {whole:,} episodes, grown by", None, grown, 5, "MB"),
        Row("processor time of the last tenth over the first", None, flat, 1.2, "x"),
        Row(f"{AT_ONCE} sessions at once in local sandboxes, all scored", None, seconds, 60, "s"),
        Row("episodes with `bash` and verification, beside `bench eval run`", job, real, 0.8 * job, "/s", True),
    ]


def _give_up(*_: object) -> None:
    raise SystemExit(f"A server did not answer: given up after {TIME_LIMIT} s.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller numbers")
    parser.add_argument("--no-peer", action="store_true", help="measure only this project")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(TIME_LIMIT)
    compile_ours()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), quick=options.quick, peer=not options.no_peer)
    print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
