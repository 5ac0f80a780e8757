"""What it costs to prove and audit a package, and whether memory stays flat over many of them.

A small package (an answer in a file, compared by a shell script) is proven and audited in a real local sandbox, with 60
reruns, all families and all perturbations, and then once more unchanged: whole commands, wall and CPU time. Then
`--packages` such packages are proven by one command with few reruns, while its memory is sampled; with `--kill-after N`
the first command is killed when it has reported N of them, and a second one does the rest. With `--audited` the same
packages are then audited by one command with a few families, its memory sampled at the same interval. There is no peer.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib.side_by_side import Row, compile_ours, print_table

BENCH = Path(sys.executable).with_name("bench")
TASK = (
    "---\ntask: {{name: bench/{name}}}\nenvironment: {{workdir: /app}}\n---\nWrite the word {name} into answer.txt.\n"
)
TEST = '[ "$(cat /app/answer.txt)" = {name} ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n'
WARM = 20
"""Packages after which everything is loaded and cached that will be."""
FEW = ("do-nothing", "empty-output", "forged-reward-text")
REPORTED = re.compile(r'"path": "|^(sound|UNSOUND) ')


def write_package(folder: Path, name: str) -> Path:
    files = {
        "task.md": TASK,
        "verifier/test.sh": TEST,
        "oracle/solve.sh": "echo {name} > answer.txt\n",
        "evidence/cheats/empty.sh": "touch answer.txt\n",
    }
    for path, text in files.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_text(text.format(name=name))
    return folder / name


def timed(*words: str | Path) -> tuple[float, float]:
    """Seconds of a whole command that must succeed: wall, and CPU of it and of all that it waited for."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([BENCH, *words], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def reported(*words: str | Path, kill_after: int | None = None) -> list[int]:
    """The memory of a command in KB, each time it reports a package; it must succeed, unless it is killed."""
    seen: list[int] = []
    with subprocess.Popen([BENCH, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as command:
        assert command.stdout is not None
        for line in command.stdout:
            if REPORTED.search(line):
                status = Path(f"/proc/{command.pid}/status").read_text()
                seen.append(int(re.findall(r"VmRSS:\s+(\d+)", status)[0]))
                if len(seen) == kill_after:
                    command.kill()
    assert kill_after is not None or command.returncode == 0, "a package was not proven, or not sound"
    return seen


def memory_growth(folder: Path, packages: int, kill_after: int | None) -> float:
    """How much more memory the command has after all packages than after the first few, as a factor."""
    for number in range(packages):
        write_package(folder, f"task{number:05}")
    words = ("tasks", "prove", folder, "--sandbox", "local", "--reruns", "2", "--no-audit", "--json")
    known = 0
    if kill_after is not None:
        reported(*words, kill_after=kill_after)
        known = sum(1 for _ in folder.glob("*/evidence/acceptance/proof-report.json"))
        print(f"killed: {known} of {packages} packages have evidence")
    seen = reported(*words)
    assert len(seen) == packages
    return growth("proving", seen[known:])


def growth(what: str, seen: list[int]) -> float:
    print(f"{what}: {seen[WARM] / 1024:.1f} MB after {WARM} packages, {seen[-1] / 1024:.1f} MB after {len(seen)}")
    return seen[-1] / seen[WARM]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--packages", type=int, default=200, help="how many are proven for the row on memory")
    options.add_argument("--kill-after", type=int, metavar="N", help="kill the first command after N packages")
    options.add_argument("--audited", action="store_true", help="also audit them by one command")
    chosen = options.parse_args()
    compile_ours()
    with tempfile.TemporaryDirectory() as name:
        small = write_package(Path(name), "small")
        words = ("tasks", "prove", small, "--sandbox", "local")
        first, again = timed(*words), min(timed(*words) for _ in range(5))
        rows = [
            Row("prove and audit of a small package, wall", None, first[0], 60, "s"),
            Row("the same, CPU", None, first[1], 60 * 2, "s"),
            Row("again, unchanged, wall", None, again[0], 0.5, "s"),
            Row("the same, CPU", None, again[1], 0.5, "s"),
        ]
        if chosen.packages > WARM:
            many = Path(name) / "many"
            grown = memory_growth(many, chosen.packages, chosen.kill_after)
            rows.append(Row(f"memory after {chosen.packages} packages, by that after {WARM}", None, grown, 1.1, "x"))
            if chosen.audited:
                seen = reported("tasks", "audit", many, "--sandbox", "local", *(f"--family={name}" for name in FEW))
                rows.append(Row("the same of an audit", None, growth("auditing", seen), 1.1, "x"))
    print(f"load: {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
    print_table(rows)
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
