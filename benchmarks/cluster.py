"""Jobs on a Ray cluster of two nodes on this machine: what the driver costs, how fast it is, what a killed node leaves.

Every job is the whole command `bench eval run`, whose CPU and memory the kernel counts; what it costs to start cancels
out, because two sizes are compared. "Null" rollouts run on a sandbox in which nothing happens. `--quick` uses smaller
numbers; `--only` measures one part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from lib.side_by_side import Row, compile_ours, print_table

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from ray_nodes import RayNode, RayNodes, RayUnavailable

FILES = {
    "task.md": "---\ntask: {name: bench/small}\nenvironment: {network_mode: no-network}\n---\nDo it.\n",
    "verifier/test.sh": "#!/bin/sh\nsleep 0.5\necho 1 > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "#!/bin/sh\nsleep 0.5\n",
}
BUSY = {
    "task.md": "---\ntask: {name: bench/busy}\nenvironment: {network_mode: no-network}\n---\nDo it.\n",
    "verifier/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "#!/bin/sh\npython3 -c 'import time\nwhile time.process_time() < 0.8: pass'\n",
}
PLUGIN = {
    "null_sandbox_plugin-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: null-sandbox-plugin\nVersion: 1\n",
    "null_sandbox_plugin-1.dist-info/entry_points.txt": "[benchflow.sandboxes]\nnull = benchflow.testing:NullBackend\n",
}
PARTS = ("null", "throughput", "kill")
LEFT_SEC = 60.0
"""How long after a job something of a killed node may still be seen."""


class Job(NamedTuple):
    """A finished command: what it took, and what it wrote."""

    cpu: float
    memory_mb: float
    folder: Path

    @property
    def lines(self) -> list[dict[str, Any]]:
        return lines_of(self.folder)

    @property
    def rate(self) -> float:
        """Scored rollouts per second, from the start of the first to the end of the last."""
        times = [(line["started_at"], line["finished_at"]) for line in self.lines if line["status"] == "scored"]
        began, ended = min(began for began, _ in times), max(ended for _, ended in times)
        return len(times) / (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


def lines_of(folder: Path) -> list[dict[str, Any]]:
    try:
        whole = (folder / "results.jsonl").read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].splitlines()]


class Bench:
    """A cluster, and jobs on it or beside it."""

    def __init__(self, root: Path, cluster: RayNodes, environ: dict[str, str]) -> None:
        self.root, self.cluster, self.of_nodes = root, cluster, environ
        self._environ = {**cluster.environ, **environ}
        self._count = 0

    def run(self, *arguments: str | Path, meanwhile: Callable[[Path], bool] | None = None) -> Job:
        """Run a job; `meanwhile` is called with its folder until it returns True."""
        self._count += 1
        name = f"job-{self._count}"
        command = [Path(sys.executable).with_name("bench"), "eval", "run", *arguments, "--name", name]
        with (self.root / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*map(str, command), "--jobs-dir", str(self.root / "jobs")],
                env=self._environ,
                cwd=self.root,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            folder = self.root / "jobs" / name
            while meanwhile is not None and _runs(process.pid) and not meanwhile(folder):
                time.sleep(0.05)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(
                (self.root / f"{name}.log").read_text()[-2000:] + f"\n{name} exited with {process.returncode}."
            )
        return Job(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, folder)

    def on_ray(self, *arguments: str | Path, meanwhile: Callable[[Path], bool] | None = None) -> Job:
        return self.run(*arguments, "--engine", "ray", meanwhile=meanwhile)


def _runs(process: int) -> bool:
    """Whether a child still runs; what it took stays to be counted."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def null(bench: Bench, package: Path, few: int, many: int) -> list[Row]:
    """What one more null rollout costs the driver, and the memory it leaves."""
    options = ("--agent", "nop", "--sandbox", "null", "--concurrency", "16")
    small, large = (bench.on_ray(package, *options, "--attempts", str(count)) for count in (few, many))
    for count, job in ((few, small), (many, large)):
        print(f"null: {count:,} rollouts: {job.cpu:.1f} s of CPU, {job.memory_mb:.0f} MB")
    more, grown = many - few, large.memory_mb - small.memory_mb
    print(f"null: {1024 * grown / more:.1f} KB of memory for each further rollout")
    return [
        Row("driver, CPU per null rollout", None, 1000 * (large.cpu - small.cpu) / more, 5, "ms"),
        Row(f"driver, memory of {many:,} over {few:,} rollouts", None, large.memory_mb / small.memory_mb, 1.2, "x"),
    ]


def throughput(bench: Bench, package: Path, count: int, concurrency: int, rounds: int) -> list[Row]:
    """The same oracle rollouts by the local engine and on two nodes, in turns, on the same cores."""
    on_host = ("--sandbox", "local", "--base-image", "host")  # no image has to be pulled
    options = (package, "--agent", "oracle", *on_host, "--concurrency", str(concurrency))
    bench.run(*options, "--attempts", str(concurrency))  # what environments need is made once
    bench.on_ray(*options, "--attempts", str(concurrency))
    here, there = [], []
    for _ in range(rounds):
        here.append(bench.run(*options, "--attempts", str(count)))
        there.append(bench.on_ray(*options, "--attempts", str(count)))
    local, ray = (statistics.median(job.rate for job in jobs) for jobs in (here, there))
    print(f"throughput: {package.name}, {count} oracle rollouts, {concurrency} at once, ", end="")
    print(f"{concurrency / local:.2f} s each: local {local:.2f} /s, two nodes {ray:.2f} /s")
    return [Row("two nodes over the local engine, same cores", None, ray / local, 0.9, "x", higher_is_better=True)]


def kill(bench: Bench, package: Path, count: int, concurrency: int) -> list[Row]:
    """A node is killed when a third of the results are there."""
    [node] = bench.cluster.join(["victim"], processors=2, environ=bench.of_nodes)

    def at_a_third(folder: Path) -> bool:
        if len(lines_of(folder)) < count // 3:
            return False
        node.kill()
        return True

    options = ("--agent", "oracle", "--sandbox", "local", "--concurrency", str(concurrency), "--attempts", str(count))
    job = bench.on_ray(package, *options, meanwhile=at_a_third)
    scored = Counter(line["key"] for line in job.lines if line["status"] == "scored")
    lost = [line["error"]["code"] for line in job.lines if line["status"] != "scored"]
    left = left_after(node)
    print(f"kill: {count} rollouts, {len(lost)} lost attempts: {dict(Counter(lost))}; left: {left}")
    return [
        Row("rollouts with a result after a kill", None, float(len(scored)), count, "", higher_is_better=True),
        Row("rollouts with more than one", None, float(sum(number > 1 for number in scored.values())), 0, ""),
        Row("lost attempts on record", None, float(lost.count("node-lost")), 1, "", higher_is_better=True),
        Row("processes, mounts and files left on the killed node", None, float(len(left)), 0, ""),
    ]


def left_after(node: RayNode) -> list[str]:
    """What is still there of a killed node, once it had time to end."""
    until = time.monotonic() + LEFT_SEC
    while (left := list(_left(node))) and time.monotonic() < until:
        time.sleep(0.5)
    return left


def _left(node: RayNode) -> Iterator[str]:
    yield from (f"process {number}" for number in node.processes())
    yield from (line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(node.folder) in line)
    yield from (str(path) for path in node.folder.glob("benchcube-*/*"))


@contextmanager
def started(root: Path, processors: int) -> Iterator[Bench]:
    """Two nodes that know the null sandbox, and whose caches are below a folder."""
    environ = {"PYTHONPATH": str(root / "plugin"), "BENCHCUBE_STORE": str(root / "store")}
    try:
        cluster = RayNodes()
    except RayUnavailable as error:
        raise SystemExit(str(error)) from error
    try:
        cluster.join(["one", "two"], processors=processors, environ=environ)
        yield Bench(root, cluster, environ)
    except RayUnavailable as error:
        raise SystemExit(str(error)) from error
    finally:
        cluster.stop()


def write_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return root


def measure(root: Path, options: argparse.Namespace) -> list[Row]:
    small = write_files(root / "small", FILES)
    write_files(root / "plugin", PLUGIN)
    quick, cores = options.quick, len(os.sched_getaffinity(0))
    concurrency = options.concurrency or 2 * cores
    rows: list[Row] = []
    with started(root, max(1, cores // 2)) as bench:
        if "null" in options.only:
            rows += null(bench, small, *((50, 250) if quick else (1_000, 10_000)))
        if "throughput" in options.only:
            package = options.package or write_files(root / "busy", BUSY)
            rows += throughput(bench, package, 12 if quick else 60, concurrency, 1 if quick else 3)
        if "kill" in options.only:
            rows += kill(bench, small, 30 if quick else 200, max(6, concurrency))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller numbers")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part; repeatable")
    parser.add_argument("--package", type=Path, help="for the throughput of oracles; default: 0.8 s of work")
    parser.add_argument("--concurrency", type=int, help="rollouts at once; default: two for each core")
    options = parser.parse_args()
    options.only = options.only or list(PARTS)
    options.package = options.package and options.package.resolve()
    compile_ours()
    with tempfile.TemporaryDirectory(prefix="benchcube-cluster-", ignore_cleanup_errors=True) as folder:
        rows = measure(Path(folder), options)
    print_table(rows)
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
