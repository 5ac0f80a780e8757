"""What rollouts cost: the engine alone, whole rollouts in the local sandbox, resuming, records, gym tasks, memory.

"Null" rollouts run on a sandbox in which nothing happens, so only the engine is measured: plan, phases, trajectory,
verification, records. `--quick` uses smaller numbers. The oracle row is measured beside Harbor on Docker;
`--no-peer` skips it.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio

from benchflow.evaluation.engine import Engine, remaining
from benchflow.evaluation.job import plan_job
from benchflow.evaluation.store import JobStore
from benchflow.evaluation.work import TaskRef, WorkItem, plan_items
from benchflow.gym import PackageBenchmarkConfig
from benchflow.record import (
    AgentPart,
    Isolation,
    JobRecord,
    JobRequest,
    NotCarriedOver,
    Result,
    RolloutFolder,
    SandboxPart,
    Score,
    Settings,
    TaskId,
    VerifierPart,
    write_document,
)
from benchflow.record.job import result_line
from benchflow.rollout import RolloutConfig, run_rollout
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.task.package import TaskPackage, load_package
from benchflow.testing import NullBackend
from cube.core import Action
from lib.harbor_trials import IMAGE, PeerUnavailable, harbor_rate
from lib.side_by_side import Row, compile_ours, print_table

TASK = "---\ntask: {name: bench/small}\nenvironment: {network_mode: no-network}\n---\nDo it.\n"
FILES = {
    "task.md": TASK,
    "verifier/test.sh": "#!/bin/sh\n[ -e /app/x ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "#!/bin/sh\ntouch /app/x\n",
}
PEER_TASK = f"---\ntask: {{name: bench/small}}\nenvironment: {{docker_image: {IMAGE}}}\n---\nDo it.\n"
"""Harbor needs an image, and for a task without network more images, which only a registry has."""
SETTINGS = Settings("nop")


def finished(item: WorkItem) -> Result:
    """What a small rollout leaves."""
    verifier = VerifierPart("script", "script", Isolation("shared", "default", None), 0, (), (), NotCarriedOver(0, ()))
    return Result(
        task=item.task.record(),
        agent=AgentPart("oracle", None, exit_code=0, timed_out=False),
        sandbox=SandboxPart("local", "host", "exact"),
        attempt=item.attempt,
        outcome=Score(1.0, {"reward": 1.0}),
        verifier=verifier,
        timing={"plan": 0.001, "environment": 0.01, "agent": 0.01, "verify": 0.03, "total": 0.06},
        usage={},
        key=item.key,
        started_at="2026-01-01T00:00:00.000Z",
        finished_at="2026-01-01T00:00:01.000Z",
    )


def new_job(folder: Path, name: str, planned: int, request: JobRequest | None = None) -> JobStore:
    return JobStore.create(
        folder, JobRecord(name, request or JobRequest((), "nop"), planned, "2026-01-01T00:00:00+00:00")
    )


def fill(store: JobStore, items: Iterator[WorkItem]) -> None:
    """Write results as a job does, without waiting for the disk each time."""
    with store.places.results.open("wb") as lines:
        for item in items:
            lines.write(result_line(item.folder_name(), finished(item)))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class Runner:
    """Rollouts of one package on one backend, as a job runs them."""

    def __init__(self, package: TaskPackage, backend: SandboxBackend, agent: str) -> None:
        identity = TaskId(package.name, package.content_digest)
        self.task = TaskRef(identity, str(package.path), package.digest, payload=package)
        self._package, self._backend, self._agent = package, backend, agent
        self._machine = dict(os.environ)

    async def prepare(self, task: TaskRef) -> None: ...

    async def run(self, item: WorkItem, folder: Path) -> Result:
        config = RolloutConfig(
            self._package,
            self._agent,
            sandbox=self._backend,
            attempt=item.attempt,
            key=item.key,
            machine=self._machine,
            durable=False,
        )
        return await run_rollout(config, folder)


class Recorder(Runner):
    """Rollouts of nothing: only what the engine does and writes for each."""

    async def run(self, item: WorkItem, folder: Path) -> Result:
        result = finished(item)
        write_document(RolloutFolder(folder).result, result.to_dict())
        return result


class Bench:
    """Everything is made below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names = (f"job-{number}" for number in itertools.count())
        for name, text in FILES.items():
            write(root / "small" / name, text)
            (root / "small" / name).chmod(0o755)
        self.package = load_package(root / "small")

    async def run(self, runner: Runner, count: int, concurrency: int = 4) -> tuple[float, float]:
        """CPU and wall seconds of so many rollouts."""
        store = new_job(self.root / "jobs", next(self._names), count)
        items = plan_items([runner.task], count, SETTINGS)
        cpu, wall = time.process_time(), time.perf_counter()
        await Engine(store, runner, concurrency=concurrency).run(items)
        spent = time.process_time() - cpu, time.perf_counter() - wall
        rewards = [result.reward for _, result in store.results]
        store.close()
        if rewards != [1.0] * count:
            raise SystemExit(f"Not all rollouts were scored: {rewards[:5]}")
        return spent

    async def null(self, kind: type[Runner], count: int) -> float:
        """Milliseconds of CPU per rollout, in the middle one of a few jobs of this size."""
        runner = kind(self.package, NullBackend(), "nop")
        await self.run(runner, 20)
        gc.collect()
        jobs = max(1, 1000 // count)
        return 1000 * statistics.median([(await self.run(runner, count))[0] for _ in range(jobs)]) / count

    async def oracle(self, count: int) -> float:
        """Rollouts per second."""
        backend = LocalBackend(self.root / "store")
        try:
            runner = Runner(self.package, backend, "oracle")
            await self.run(runner, 8)
            return count / (await self.run(runner, count, concurrency=6))[1]
        finally:
            await backend.close()

    def resume(self, count: int) -> tuple[float, float]:
        """CPU and wall seconds until a finished job of so many rollouts is known to have nothing left to do."""
        name = next(self._names)
        store = new_job(self.root / "jobs", name, count)
        digests = (f"sha256:{number:064}" for number in range(count // 4))
        tasks = [TaskRef(TaskId(f"bench/t{n}", digest), f"p/{n}", digest) for n, digest in enumerate(digests)]
        fill(store, plan_items(tasks, 4, SETTINGS))
        store.close()
        cpu, wall = time.process_time(), time.perf_counter()
        opened = JobStore.open(self.root / "jobs", name)
        left = list(remaining(plan_items(tasks, 4, SETTINGS), opened.results))
        spent = time.process_time() - cpu, time.perf_counter() - wall
        opened.close()
        if left:
            raise SystemExit(f"{len(left)} rollouts would run again")
        return spent

    def record(self) -> float:
        """Bytes of the record of a trivial rollout, as its folder and its job have it."""
        return float(max(path.stat().st_size for path in (self.root / "jobs").glob("*/rollouts/*/result.json")))

    async def memory(self, concurrent: int) -> float:
        """Megabytes of this process, at most, while so many rollouts run at once."""
        runner = Runner(self.package, NullBackend(), "nop")
        await self.run(runner, 3 * concurrent, concurrency=concurrent)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def gym(folder: Path, runs: int) -> tuple[float, float, float]:
    """Milliseconds of reset, of a step that runs `true`, and of a fork."""
    [config] = PackageBenchmarkConfig(paths=[str(folder)], sandbox="local").get_task_configs()
    task = config.make()
    forks = []
    try:
        reset = median(task.reset, runs)
        step = median(lambda: task.step(Action(name="bash", arguments={"command": "true"})), runs)
        fork = median(lambda: forks.append(task.fork()), runs)
    finally:
        for copy in (*forks, task):
            copy.close()
    return reset, step, fork


def command(root: Path, runs: int) -> float:
    """Seconds of the whole command `bench run` on the small package, from the shell's view; its environment is made."""
    line = [str(Path(sys.executable).with_name("bench")), "run", str(root / "small"), "--out", str(root / "runs")]
    environment = {**os.environ, "BENCHCUBE_STORE": str(root / "store")}
    times = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run(line, check=True, capture_output=True, env=environment)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def resume_command(root: Path, runs: int, count: int = 3000) -> float:
    """Seconds of the whole command `bench eval resume` on a finished job of so many rollouts, 4 per package."""
    for number in range(count // 4):
        for name, text in FILES.items():
            write(root / "many" / f"t{number}" / name, text.replace("bench/small", f"bench/t{number}"))
    request = JobRequest((str(root / "many"),), "nop", attempts=4, sandbox="local")
    _, tasks = plan_job(request)
    store = new_job(root / "resumed", "job", count, request)
    fill(store, plan_items(tasks, 4, request.settings()))
    store.close()
    line = [str(Path(sys.executable).with_name("bench")), "eval", "resume", "job", "--jobs-dir", str(root / "resumed")]
    times = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run(line, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def modules(root: Path) -> float:
    """How many of our modules one oracle rollout runs code of."""
    script = Path(__file__).parent / "lib" / "modules_run.py"
    line = [sys.executable, str(script), str(root / "small"), str(root / "counted")]
    environment = {**os.environ, "BENCHCUBE_STORE": str(root / "store")}
    return float(subprocess.run(line, check=True, capture_output=True, text=True, env=environment).stdout)


def resumes(bench: Bench, runs: int) -> tuple[float, float]:
    """Wall seconds for 3,200 rollouts, and their CPU relative to 800, measured alternately."""
    pairs = [(bench.resume(800), bench.resume(3200)) for _ in range(runs)]
    few, many = ([cpu for cpu, _ in times] for times in zip(*pairs, strict=True))
    return statistics.median(wall for _, (_, wall) in pairs), statistics.median(many) / statistics.median(few)


def median(work: Callable[[], object], runs: int) -> float:
    work()
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def peer_rate(root: Path, trials: int) -> float | None:
    """Harbor's oracle trials per second of the same small package, as many at once as ours.

    If it cannot run, the reason is printed."""
    for name, text in {**FILES, "task.md": PEER_TASK}.items():
        write(root / "peer" / name, text)
        (root / "peer" / name).chmod(0o755)
    try:
        return harbor_rate(root / "peer", root, trials=trials, concurrency=6)
    except PeerUnavailable as error:
        print(f"Harbor was not measured: {error}")
        return None


def measure(root: Path, *, quick: bool, peer: bool) -> list[Row]:
    bench = Bench(root)
    counts = (100, 300, 1000) if quick else (100, 1000, 10_000)
    before, middle, large, after = (anyio.run(bench.null, Recorder, count) for count in (*counts, counts[0]))
    engine = ((before + after) / 2, middle, large)  # the cost of a file depends on recent disk activity
    whole = anyio.run(bench.null, Runner, counts[0] if quick else 300)
    speed = anyio.run(bench.oracle, 40 if quick else 100)
    size = bench.record()
    resumed, growth = resumes(bench, 3 if quick else 7)
    whole_resume = resume_command(root, 3 if quick else 7)
    seconds, run = command(root, 5 if quick else 15), modules(root)
    reset, step, fork = gym(root / "small", 10 if quick else 30)
    memory = anyio.run(bench.memory, 200)
    theirs = peer_rate(root, 6 if quick else 12) if peer else None
    return [
        *(
            Row(f"engine and record, {count:,} null rollouts", None, cpu, 2, "ms")
            for count, cpu in zip(counts, engine, strict=True)
        ),
        Row(f"engine, {counts[2]:,} over {counts[0]}: flat", None, engine[2] / engine[0], 1.2, "x"),
        Row("whole rollout on a null sandbox, CPU", None, whole, 2, "ms"),
        Row("oracle and verification, small package", theirs, speed, 20, "/s", higher_is_better=True),
        Row("resume of 3,200 finished rollouts", None, resumed, 1, "s"),
        Row("`bench eval resume` of 3,000 finished rollouts, whole command", None, whole_resume, 1, "s"),
        Row("resume, 3,200 over 800: linear", None, growth, 4.8, "x"),
        Row("record of a trivial rollout", None, size / 1024, 4, "KB"),
        Row("`bench run` of a trivial package, whole command", None, seconds, 0.5, "s"),
        Row("modules that an oracle rollout runs code of", None, run, 80, ""),
        Row("gym reset of a package", None, reset, 30, "ms"),
        Row("gym step with `true`", None, step, 6, "ms"),
        Row("gym fork of a package", None, fork, 20, "ms"),
        Row("driver with 200 concurrent rollouts", None, memory, 200, "MB"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller numbers")
    parser.add_argument("--no-peer", action="store_true", help="measure only this project")
    options = parser.parse_args()
    compile_ours()
    with tempfile.TemporaryDirectory(prefix="benchcube-rollouts-", ignore_cleanup_errors=True) as folder:
        rows = measure(Path(folder), quick=options.quick, peer=not options.no_peer)
    print_table(rows)
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
