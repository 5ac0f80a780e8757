"""Reading and checking packages, beside benchflow 0.6.2 from the package index, in one run.

Creates a folder of packages that both accept and an environment for the peer in the cache folder, and prints a table
of peer, ours, ratio and target. `--count` scales the corpus; `--no-peer` measures only this project.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib.side_by_side import Row, compile_ours, peer_environment, print_table, run_json

PEER = "benchflow==0.6.2"

TASK_MD = """---
schema_version: "1.3"
task:
  name: bench/task-{index}
  description: Rotate the log folder of service {index}.
  keywords: [logs, shell]
metadata:
  difficulty: medium
  category: operations
agent:
  timeout_sec: 600
verifier:
  timeout_sec: 120
environment:
  cpus: 1
  memory_mb: 1024
  workdir: /app
---
Write /app/rotate-{index}.sh. It moves every file in /var/log/service-{index} that is older than a day
into /var/log/archive, compresses it, and leaves the newest file in place.

Run it once and write the names of the files it moved to /app/moved.txt, one per line.
"""
VERIFIER_MD = """---
document_version: "0.3"
verifier:
  name: task-{index}
  default_strategy: tests
  strategies:
    tests: {{type: script, command: ./test.sh}}
  rubric:
    dimensions:
      correctness: {{weight: 1.0, source: tests}}
    files: {{human: rubrics/verifier.md}}
  outputs:
    reward_text: /logs/verifier/reward.txt
    reward_json: /logs/verifier/reward.json
---
Compares the moved files with the expected ones.
"""
FILES = {
    "task.md": TASK_MD,
    "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n",
    "oracle/solve.sh": "#!/bin/sh\necho {index} > /app/moved.txt\n",
    "verifier/verifier.md": VERIFIER_MD,
    "verifier/test.sh": "#!/bin/sh\necho 1.0 > /logs/verifier/reward.txt\n",
    "verifier/rubrics/verifier.md": "# Correctness\n\nThe right files moved.\n",
}

PEER_RATE = """
import sys, time, json
from pathlib import Path
from benchflow._utils.task_authoring import check_task
from benchflow.task.package import TaskPackage
folders = sorted(Path(sys.argv[1]).iterdir())
def rate(work):
    assert not work(folders[0]), work(folders[0])
    start = time.perf_counter()
    for folder in folders: work(folder)
    return len(folders) / (time.perf_counter() - start)
print(json.dumps({
    "structural": rate(check_task),
    "capability": rate(lambda f: check_task(f, sandbox_type="docker", validation_level="runtime-capability")),
    "plan": rate(lambda f: TaskPackage.from_task_dir(f, sandbox="docker").to_dict() and None),
}))
"""
OUR_RATE = """
import sys, time, json
from functools import partial
from pathlib import Path
from benchflow.task.checks import check_folder
folders = sorted(Path(sys.argv[1]).iterdir())
def rate(work):
    assert work(folders[0]).valid, work(folders[0]).issues
    start = time.perf_counter()
    for folder in folders: work(folder)
    return len(folders) / (time.perf_counter() - start)
print(json.dumps({
    "structural": rate(partial(check_folder, level="structural")),
    "capability": rate(partial(check_folder, level="runtime-capability", sandbox="docker")),
}))
"""
OUR_PLAN = """
import sys, time, json
from benchflow.task import load_package
from benchflow.task.discovery import find_packages
from benchflow.task.workers import ordered_map
from pathlib import Path
def plan(found):
    package = load_package(found.path, sandbox="docker")
    return len(package.prompt_plan.turns), package.runtime_supported
start = time.perf_counter()
plans = list(ordered_map(plan, find_packages([Path(sys.argv[1])])))
seconds = time.perf_counter() - start
assert all(turns and supported for turns, supported in plans)
print(json.dumps({"seconds": seconds}))
"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=3500, help="number of packages (default 3500)")
    options.add_argument("--memory-count", type=int, default=10_000, help="number of packages for the memory figure")
    options.add_argument("--no-peer", action="store_true", help="measure only this project")
    chosen = options.parse_args()
    compile_ours()
    peer = None if chosen.no_peer else peer_environment(PEER)
    with tempfile.TemporaryDirectory(prefix="benchcube-packages-") as scratch:
        rows = measure(Path(scratch), peer, chosen.count, chosen.memory_count)
    print_table(rows)
    return 0


def measure(scratch: Path, peer: Path | None, count: int, memory_count: int) -> list[Row]:
    ours = Path(sys.executable).parent / "bench"
    some, all_of_them, many = (scratch / name for name in ("some", "all", "many"))
    for folder, size in ((some, min(count, 500)), (all_of_them, count), (many, memory_count)):
        write_corpus(folder, size)
    os.sync()  # what is measured is reading packages, not the kernel writing them
    one = some / "task-00000"
    theirs = run_json(peer / "python", PEER_RATE, some) if peer else {}
    own = run_json(Path(sys.executable), OUR_RATE, all_of_them)
    folder_seconds, _ = wall(ours, "tasks", "check", str(all_of_them), "--json", repeat=3)
    _, peak = wall(ours, "tasks", "check", str(many), "--json", repeat=1)

    def peer_wall(*arguments: str) -> float | None:
        return wall(peer / "bench", *arguments, repeat=3)[0] if peer else None

    check = ("tasks", "check", str(one))
    plan = theirs.get("plan")
    return [
        Row("bench --help", peer_wall("--help"), wall(ours, "--help", repeat=15)[0], 0.15, "s", False),
        Row(
            "bench tasks check, one package",
            peer_wall(*check),
            wall(ours, *check, repeat=15)[0],
            0.2,
            "s",
            False,
        ),
        Row("structural, one process", theirs.get("structural"), own["structural"], 1500, "/s", True),
        Row(
            "structural, a folder, whole command",
            theirs.get("structural"),
            count / folder_seconds,
            2500,
            "/s",
            True,
        ),
        Row("runtime-capability, one process", theirs.get("capability"), own["capability"], 1000, "/s", True),
        Row(
            f"{count:,} packages planned",
            count / plan if plan else None,
            run_json(Path(sys.executable), OUR_PLAN, all_of_them)["seconds"],
            2 * count / 3500,
            "s",
            False,
        ),
        Row(f"{count:,} packages bundled and opened", None, bundling(ours, all_of_them), 3 * count / 3500, "s", False),
        Row(f"memory, {memory_count:,} packages", None, peak, 150, "MB", False),
    ]


def bundling(ours: Path, packages: Path) -> float:
    """Seconds of two whole commands: writing a bundle, and opening it with every digest compared."""
    place = packages.with_suffix(".zip")
    written, _ = wall(ours, "tasks", "bundle", str(packages), "-o", str(place), "--overwrite", repeat=3)
    opened, _ = wall(ours, "tasks", "digest", str(place), repeat=3)
    return written + opened


def write_corpus(root: Path, count: int) -> None:
    for index in range(count):
        folder = root / f"task-{index:05}"
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.format(index=index))


def wall(*command: str | Path, repeat: int) -> tuple[float, float]:
    """Median seconds of a command after one warm-up, and the peak memory in MB of all its processes."""
    seconds = []
    peak = 0.0
    for _ in range(repeat + (repeat > 1)):
        start = time.perf_counter()
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
        if repeat == 1:
            peak = watch_memory(process)
        if process.wait() != 0:
            raise SystemExit(f"{' '.join(map(str, command))} exited with code {process.returncode}")
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[repeat > 1 :]), peak


def watch_memory(process: subprocess.Popen[bytes]) -> float:
    """Peak of the summed proportional memory of a process and its children, sampled until it ends."""
    peak = 0.0
    while process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            pids = [str(process.pid), *children.read_text().split()]
        except OSError:
            break
        peak = max(peak, sum(proportional_memory(pid) for pid in pids))
        time.sleep(0.05)
    return peak


def proportional_memory(pid: str) -> float:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    raise SystemExit(main())
