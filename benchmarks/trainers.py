"""Gymnasium environments of packages in 8 worker processes: steps per second on the null sandbox, and in real ones.

In the null sandbox nothing is executed, so what is measured is the environment, the episode and Gymnasium's own
exchange between processes. In real sandboxes every step runs `true` in its own shell. CPU time is that of all
processes, and depends less on what else the machine does: two idle cores give twice its inverse in steps per second.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

import benchflow.trainers
from benchflow.gym.shared import BACKENDS
from benchflow.testing import NullBackend
from lib.side_by_side import Row, compile_ours, print_table

WORKERS = 8
FILES = {
    "task.md": "---\ntask: {name: bench/small}\nenvironment: {network_mode: no-network}\n---\nDo it.\n",
    "verifier/test.sh": "#!/bin/sh\n[ -e /app/x ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n",
}


def make(folder: str, sandbox: str) -> gymnasium.Env[Any, Any]:
    """An environment in a worker."""
    if sandbox == NullBackend.name:
        BACKENDS.use(NullBackend())
    return gymnasium.make(
        benchflow.trainers.ENVIRONMENT_ID, package=folder, sandbox=sandbox, disable_env_checker=True, strict=True
    )


def measured(folder: str, sandbox: str, steps: int, *, action: str = "true") -> tuple[float, float]:
    """Steps per second of all workers together, and milliseconds of CPU per step."""
    makers: list[Callable[[], gymnasium.Env[Any, Any]]] = [partial(make, folder, sandbox)] * WORKERS
    vector = AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
    try:
        vector.reset(seed=1)
        for _ in range(10):
            vector.step([action] * WORKERS)
        started, spent = time.perf_counter(), cpu_of(vector)
        for _ in range(steps // WORKERS):
            vector.step([action] * WORKERS)
        wall, cpu = time.perf_counter() - started, cpu_of(vector) - spent
    finally:
        vector.close()
    done = steps // WORKERS * WORKERS
    return done / wall, cpu / done * 1e3


def cpu_of(vector: AsyncVectorEnv) -> float:
    """Seconds of CPU of this process and the workers with what they started."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    seconds = own.ru_utime + own.ru_stime
    for worker in vector.processes:
        seconds += sum(map(_cpu, _tree(worker.pid)))
    return seconds


def _tree(pid: int | None) -> list[int]:
    found, children = [], [pid or 0]
    while children:
        one = children.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            children += map(int, task.read_text().split())
    return found


def _cpu(pid: int) -> float:
    """Of a process and its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / 100


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer steps")
    quick = options.parse_args().quick
    if not quick:
        compile_ours()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            (Path(folder) / name).parent.mkdir(exist_ok=True)
            (Path(folder) / name).write_text(text)
        null, null_cpu = max(measured(folder, "null", 800 if quick else 8000) for _ in range(1 if quick else 3))
        real, real_cpu = max(measured(folder, "local", 400 if quick else 4000) for _ in range(1 if quick else 3))
    print_table(
        [
            Row(f"Gymnasium steps, null sandbox, {WORKERS} workers", None, null, 1000, "/s", higher_is_better=True),
            Row("the same, CPU per step", None, null_cpu, 2, "ms"),
            Row(f"Gymnasium steps with `true`, {WORKERS} workers", None, real, 250, "/s", higher_is_better=True),
            Row("the same, CPU per step", None, real_cpu, 8, "ms"),
        ]
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
