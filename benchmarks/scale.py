"""10,000 rollouts at once on 100 nodes, simulated: what the driver of a job has to do for them.

The driver is the real one: engine, store, fleet, placement, board. The nodes are in this process, in virtual time, and
their rollouts do nothing; what they send is a folder of the given size. What the nodes themselves and the pickling cost
is measured with the same calls without a driver, and subtracted. What Ray adds is measured by `ray.py`.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import anyio

from benchflow.cluster import Link
from benchflow.evaluation import store as job_store
from benchflow.evaluation.engine import Engine
from benchflow.evaluation.job import create_job, plan_job, work_left
from benchflow.evaluation.scaled.abilities import NodeFacts, SandboxFacts
from benchflow.evaluation.scaled.admission import Vitals
from benchflow.evaluation.scaled.fleet import PULSE_SEC, Fleet
from benchflow.evaluation.scaled.folder_travel import packed
from benchflow.evaluation.scaled.orders import Answer, FolderStream, Order, OrderedTask, Pulse
from benchflow.evaluation.scaled.scaled_runner import ScaledRunner
from benchflow.record import JobRequest, LiveRollout, Result, TaskId, work_key
from benchflow.rollout import RolloutConfig, run_rollout
from benchflow.sandbox.protocol import CAPABILITIES
from benchflow.task.package import load_package
from benchflow.testing import InProcessCluster, NullBackend, VirtualTimeLoop
from lib.side_by_side import Row, compile_ours, print_table

PACKAGE = {
    "task.md": "---\ntask: {name: scale/TASK}\nenvironment: {memory_mb: MEMORY}\n---\nDo it.\n",
    "environment/Dockerfile": "FROM scratch\nLABEL number=TASK\n",
    "verifier/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "#!/bin/sh\ntrue\n",
}
LAST = "bash cd /app && python -m pytest tests -q 2>&1 | tail -40 && git diff --stat && sed -n 1,80p src/app/parser.py"
MEMORY_MB = 64_000


class SimulatedHost:
    """A node whose rollouts take their time and leave a folder that was packed before."""

    def __init__(self, result: Result, folder: FolderStream, mean_sec: float, processors: float) -> None:
        self._result, self._folder, self._mean, self._processors = result, folder, mean_sec, processors
        self._running: dict[str, LiveRollout] = {}
        self._chance = random.Random(processors)

    async def facts(self, name: str, processors: float | None) -> NodeFacts:
        del processors
        sandboxes = {"local": SandboxFacts(usable=True, capabilities=frozenset(CAPABILITIES))}
        return NodeFacts(name, self._processors, MEMORY_MB, 500_000, sandboxes, clock=time.time())

    async def pulse(self, finished: object = ()) -> Pulse:
        del finished
        return Pulse(Vitals(MEMORY_MB // 2, 400_000), time.time(), dict(self._running))

    async def take(self, *piece: object) -> None: ...

    async def run(self, order: Order) -> Answer:
        usage = {"input_tokens": 81_000.0, "output_tokens": 5_000.0, "cost_usd": 0.31}
        started = "2026-01-01T00:00:00.000Z"
        self._running[order.id] = LiveRollout(
            order.rollout, order.task.id.name, order.attempt, "a", "m", started, "agent", None, LAST, 60, usage
        )
        await anyio.sleep(self._mean * self._chance.uniform(0.5, 1.5))
        del self._running[order.id]
        return Answer(replace(self._result, key=order.key, attempt=order.attempt), self._folder)

    async def close(self) -> None: ...


def write_packages(root: Path, count: int, memory_mb: int) -> None:
    for number in range(count):
        for name, text in PACKAGE.items():
            path = root / "packages" / f"t{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("TASK", f"t{number}").replace("MEMORY", str(memory_mb)))


async def sample(root: Path, size: int) -> tuple[Result, FolderStream]:
    """The result and the packed folder of a rollout whose trajectory has so many bytes more."""
    package = load_package(root / "packages" / "t0")
    folder = root / "sample"
    result = await run_rollout(RolloutConfig(package, "nop", sandbox=NullBackend(), durable=False), folder)
    with (folder / "trajectory.jsonl").open("a") as trajectory:
        trajectory.write("x" * size)
    return result, packed(folder, root / "stream")


class Clocked:
    """Appends of results, with the time that the disk took for each."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._whole = job_store._append_whole

    def __call__(self, stream: object, data: bytes) -> None:
        began = time.perf_counter()
        self._whole(stream, data)  # type: ignore[arg-type]
        self.seconds.append(time.perf_counter() - began)


def rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


async def with_driver(options: argparse.Namespace, root: Path, host: tuple[object, ...]) -> SimpleNamespace:
    """A whole job on simulated nodes: what it took."""
    attempts = -(-options.rollouts // options.packages)
    request = JobRequest((str(root / "packages"),), "nop", attempts=attempts, sandbox="local")
    sources, tasks = plan_job(request)
    store = create_job(root / "jobs", "job", request, tasks)
    items = work_left(store, request, tasks)[: options.rollouts]
    gc.collect()
    seen = SimpleNamespace(memory=[rss_mb()], open_files=0)
    async with InProcessCluster(SimulatedHost, host, nodes=options.nodes) as cluster:
        fleet = Fleet(cluster, print)
        await fleet.open()
        fleet.crowd(options.rollouts)

        async def watch() -> None:
            while True:
                await anyio.sleep(PULSE_SEC)
                seen.memory.append(rss_mb())
                seen.most = max(getattr(seen, "most", 0), sum(len(each.orders) for each in fleet.hosts.values()))

        cpu, wall, began = time.process_time(), time.perf_counter(), anyio.current_time()
        runner = ScaledRunner(fleet, request, sources, store.places)
        async with runner, anyio.create_task_group() as group:
            group.start_soon(watch)
            await Engine(store, runner, concurrency=options.rollouts).run(iter(items))
            group.cancel_scope.cancel()
        seen.cpu, seen.wall = time.process_time() - cpu, time.perf_counter() - wall
        seen.seconds, seen.calls, seen.received = anyio.current_time() - began, cluster.calls, cluster.received
        await fleet.close()
    seen.keys = Counter(result.key for _, result in store.results)
    seen.results = store.places.results.stat().st_size
    store.close()
    return seen


async def without_driver(seen: SimpleNamespace, options: argparse.Namespace, host: tuple[object, ...]) -> float:
    """CPU seconds of the same calls with nothing around them: what nodes and pickling cost in this process."""
    async with InProcessCluster(SimulatedHost, host, nodes=options.nodes) as cluster:
        links = [await cluster.start(node) for node in cluster.nodes]
        digest = f"sha256:{0:064}"
        task = OrderedTask(TaskId("scale/t0", digest), str(options), digest, digest, (), digest)
        order = Order("", 0, "t0__1__0123456789ab", task, 1, work_key(task.id, digest, 1), None)
        each = -(-options.rollouts // options.nodes)
        cpu = time.process_time()

        async def node(link: Link, pulsed: int) -> None:
            async with anyio.create_task_group() as group:
                for number in range(each):
                    group.start_soon(link.call, "run", replace(order, id=f"{number:016}"))
                for _ in range(pulsed):
                    await link.call("pulse", frozenset())
                    await anyio.sleep(PULSE_SEC)

        async with anyio.create_task_group() as group:
            for link in links:
                group.start_soon(node, link, seen.calls[link.node.id, "pulse"])
        return time.process_time() - cpu


def measure(options: argparse.Namespace, root: Path) -> list[Row]:
    write_packages(root, options.packages, options.memory)
    result, folder = anyio.run(sample, root, options.bytes)
    host = (result, folder, options.mean, options.processors)
    clocked = job_store._append_whole = Clocked()
    virtual = {"loop_factory": VirtualTimeLoop}
    seen = anyio.run(with_driver, options, root, host, backend_options=virtual)
    nodes = anyio.run(without_driver, seen, options, host, backend_options=virtual)
    count, pulses = options.rollouts, sum(calls for (_, method), calls in seen.calls.items() if method == "pulse")
    disk = [1000 * seconds for seconds in clocked.seconds]
    for line in (
        f"{count:,} rollouts on {options.nodes} nodes, at most {seen.most:,} at once",
        f"{seen.seconds:,.0f} s of virtual time with {pulses:,} pulses; {seen.wall:.0f} s elapsed",
        f"{seen.cpu:.1f} s of CPU, of which {nodes:.1f} s for nodes and pickling",
        f"{seen.received / count / 1024:,.0f} KB received per rollout, with its share of pulses",
        f"{seen.results / count:,.0f} B of results.jsonl per rollout",
        f"a result on disk (fdatasync): {statistics.median(disk):.2f} ms (median), {max(disk):.0f} ms at most",
    ):
        print(line)
    if len(seen.keys) != count or set(seen.keys.values()) != {1}:
        raise SystemExit(f"{len(seen.keys)} of {count} rollouts have results.")
    room = min(count, options.nodes * (MEMORY_MB // options.memory))
    grown = max(seen.memory) - seen.memory[0]
    middle, last = seen.memory[len(seen.memory) // 2], seen.memory[-1]
    return [
        Row("driver, CPU per rollout with its share of pulses", None, 1000 * (seen.cpu - nodes) / count, 5, "ms"),
        Row("driver, cores busy at full load", None, (seen.cpu - nodes) / seen.seconds, 1, ""),
        Row(
            "driver, memory at full load, per rollout",
            None,
            1024 * grown / count,
            100,
            "KB",
        ),
        Row("driver, memory at the end over that in the middle", None, last / middle, 1.2, "x"),
        Row("rollouts at once", None, float(seen.most), 0.95 * room, "", higher_is_better=True),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="1,000 rollouts on 10 nodes")
    parser.add_argument("--rollouts", type=int, help="default: 10,000")
    parser.add_argument("--nodes", type=int, help="default: 100")
    parser.add_argument("--packages", type=int, default=100, help="each has its own environment; default: 100")
    parser.add_argument("--memory", type=int, default=256, help="MB that each declares; a node has 64,000")
    parser.add_argument("--mean", type=float, default=60.0, help="seconds of a rollout; default: 60")
    parser.add_argument("--bytes", type=int, default=50_000, help="of a trajectory; default: 50,000")
    parser.add_argument("--processors", type=float, default=16.0, help="of each node; default: 16")
    options = parser.parse_args()
    options.rollouts = options.rollouts or (1_000 if options.quick else 10_000)
    options.nodes = options.nodes or (10 if options.quick else 100)
    compile_ours()
    with tempfile.TemporaryDirectory(prefix="benchcube-scale-", ignore_cleanup_errors=True) as folder:
        rows = measure(options, Path(folder))
    print_table(rows)
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
