"""What verification costs over running the same test bare, and a reward kit beside Harbor's.

Script, kit and forks run in real local sandboxes, `--runs` times after a warm-up. Verification and forks are measured
in CPU time, the driver's and that of everything it started; the kit in wall time, as its peer. `--no-peer` measures
only this project.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread

from benchflow.environment import Environment
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.verifier import Verifier
from benchflow.verifier.scope import scope_of
from benchflow.verifier.shared_box import fork_for_verification
from lib.cpu_time import cpu_seconds
from lib.side_by_side import Row, compile_ours, peer_environment, print_table

PEER = "harbor-rewardkit==0.2.3"
TASK = "---\ntask: {name: bench/verifier}\nenvironment: {network_mode: no-network}\n---\nDo it.\n"
SCRIPT = "#!/bin/sh\n[ -e /app/x ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
KIT = "---\nverifier:\n  strategies:\n    kit: {type: reward-kit, root: checks}\n---\n"
CHECKS = "import rewardkit as rk\n\nrk.file_exists('x')\nrk.file_contains('x', 'y')\n"

SIZES = (10_000, 60_000, 150_000)
MANY = """
import os
for folder in range(100):
    os.makedirs(f"/app/folder-{folder}", exist_ok=True)
for number in range(%d):
    name = "module.pyc" if number %% 2 else "data.txt"
    open(f"/app/folder-{number %% 100}/{number}-{name}", "w").close()
"""
"""As many files, of which half survive and half are withheld."""

Step = Callable[[], Awaitable[object]]


def write_package(folder: Path, files: dict[str, str]) -> Path:
    for name, text in {"task.md": TASK, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


async def median(step: Step, runs: int) -> float:
    """Milliseconds of one step."""
    await step()
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        await step()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


async def cpu_of(step: Step, runs: int) -> float:
    """Milliseconds of CPU time of one step, on average."""
    await step()
    began = cpu_seconds()
    for _ in range(runs):
        await step()
    return 1000 * (cpu_seconds() - began) / runs


async def measure_script(backend: LocalBackend, folder: Path, runs: int) -> tuple[float, float]:
    """The bare test in its sandbox, and the whole verification, each after a command of the agent."""
    package = write_package(folder / "script", {"verifier/test.sh": SCRIPT})
    (package / "verifier" / "test.sh").chmod(0o755)
    async with await Environment.from_task(package, sandbox=backend) as environment:
        sandbox, verifier = environment.sandbox, Verifier(environment)
        outputs = (folder / f"script-{number}" for number in itertools.count())

        async def verify() -> None:
            await sandbox.exec("date > x")
            await verifier.verify(next(outputs))

        async def run() -> None:
            await sandbox.exec("date > x")
            await sandbox.exec(["/verifier/test.sh"], user="root")

        verified = await cpu_of(verify, runs)
        await sandbox.upload(package / "verifier", "/verifier")
        await sandbox.exec("mkdir -p /logs/verifier", user="root")
        bare = await cpu_of(run, runs)
    return bare, verified


async def measure_kit(backend: LocalBackend, folder: Path, runs: int) -> float:
    package = write_package(folder / "kit", {"verifier/verifier.md": KIT, "verifier/checks/checks.py": CHECKS})
    async with await Environment.from_task(package, sandbox=backend) as environment:
        verifier, outputs = Verifier(environment), (folder / f"kit-{number}" for number in itertools.count())
        return await median(lambda: verifier.verify(next(outputs)), runs)


async def measure_fork(backend: LocalBackend, folder: Path, runs: int, megabytes: int) -> float:
    package = write_package(folder / f"fork-{megabytes}", {"verifier/test.sh": SCRIPT})
    async with await Environment.from_task(package, sandbox=backend) as environment:
        sandbox = environment.sandbox
        await sandbox.exec(f"head -c {megabytes}M /dev/zero > /app/data; touch /app/conftest.py", timeout=600)
        scope = scope_of(environment.preparation.view)

        async def fork() -> None:
            await sandbox.exec("date > x")
            forked, _ = await fork_for_verification(environment, sandbox, scope, machine={})
            await forked.stop()

        return await cpu_of(fork, runs) - await cpu_of(lambda: sandbox.exec("date > x"), runs)


async def measure_many(backend: LocalBackend, folder: Path, files: int) -> float:
    """Milliseconds of CPU time per 1,000 files to verify a working folder of so many."""
    package = write_package(folder / f"many-{files}", {"verifier/test.sh": SCRIPT})
    (package / "verifier" / "test.sh").chmod(0o755)
    async with await Environment.from_task(package, sandbox=backend) as environment:
        made = await environment.sandbox.exec(["python3", "-c", MANY % files], timeout=600)
        if not made.ok:
            raise RuntimeError(made.stderr.decode(errors="replace"))
        began = cpu_seconds()
        found = await Verifier(environment).verify(folder / f"many-{files}-out")
        if found.verdict.reward != 0:
            raise RuntimeError(str(found.verdict))
        return 1_000_000 * (cpu_seconds() - began) / files


def measure_peer(folder: Path, runs: int) -> float:
    """The same two checks by the peer's command, on this machine's files."""
    command = peer_environment(PEER) / "rewardkit"
    checks, workspace = folder / "kit" / "verifier" / "checks", folder / "workspace"
    workspace.mkdir()
    words = [str(command), str(checks), "--workspace", str(workspace), "--output", str(folder / "peer.json")]
    times = []
    for _ in range(max(2, runs // 10)):
        began = time.perf_counter()
        subprocess.run(words, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def measure(folder: Path, runs: int, *, peer: bool) -> list[Row]:
    backend = LocalBackend(folder / "store")
    try:
        bare, verified = await measure_script(backend, folder, runs)
        kit = await measure_kit(backend, folder, runs)
        forks = [await measure_fork(backend, folder, runs, size) for size in (0, 1024)]
        many = {size: await measure_many(backend, folder, size) for size in SIZES}
    finally:
        await backend.close()
    other = await anyio.to_thread.run_sync(measure_peer, folder, runs) if peer else None
    return [
        Row("verification over the bare test, CPU", None, verified - bare, 25, "ms"),
        Row("two-check reward kit", other, kit / 1000, 0.3, "s"),
        Row("fork and its removal, nothing changed, CPU", None, forks[0], 20, "ms"),
        Row("fork and its removal, 1 GB changed, CPU", None, forks[1], 20, "ms"),
        *(Row(f"{size:,} files verified, CPU per 1,000", None, spent, 100, "ms") for size, spent in many.items()),
        Row("the same, 150,000 over 10,000", None, many[SIZES[-1]] / many[SIZES[0]], 1.5, "x"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    compile_ours()
    with tempfile.TemporaryDirectory(prefix="benchcube-verifier-", ignore_cleanup_errors=True) as folder:
        rows = anyio.run(lambda: measure(Path(folder), options.runs, peer=not options.no_peer))
    print_table(rows)
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
