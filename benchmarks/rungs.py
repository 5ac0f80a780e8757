"""At which isolation the oracles of packages score: the table of rungs, found by proof.

Runs the oracle of every package below the given paths (default: the examples) with `--isolation auto` and counts the
rungs that were proven. Packages that score at `open` only are listed: there an honest solution loses at every
stricter rung.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchflow.record import Job, Result
from benchflow.task.config.task_config import RUNGS

EXAMPLES = Path(__file__).parents[1] / "examples" / "packages"
BENCH = (sys.executable, "-c", "import sys; from benchflow.cli import main; sys.exit(main())")


def run_oracles(arguments: argparse.Namespace, jobs: Path) -> list[Result]:
    paths = arguments.paths or [EXAMPLES]
    options = ("--agent", "oracle", "--isolation", "auto", "--base-image", arguments.base_image)
    place = ("--sandbox", arguments.sandbox, "--concurrency", str(arguments.concurrency))
    command = [*BENCH, "eval", "run", *map(str, paths), *options, *place, "--name", "rungs", "--jobs-dir", str(jobs)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    return [counted.result for counted in Job(jobs / "rungs").counted]


def table(results: list[Result]) -> list[tuple[str, int]]:
    """How many oracles were proven at each rung, and what became of the others."""
    proven: Counter[str] = Counter()
    unproven: Counter[str] = Counter()
    for result in results:
        isolation = result.verifier.isolation if result.verifier is not None else None
        if isolation is not None and isolation.proof is not None:
            proven[isolation.rung] += 1
        elif result.error is not None:
            unproven[f"unscored: {result.error.category}/{result.error.code}"] += 1
        else:
            unproven["oracle below full, or no oracle"] += 1
    return [*((rung, proven[rung]) for rung in RUNGS), *unproven.most_common()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--base-image", default="host")
    parser.add_argument("--sandbox", default="local")
    parser.add_argument("--concurrency", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as jobs:
        results = run_oracles(arguments, Path(jobs))
    print("| strictest rung of the oracle | packages |\n|---|---|")
    for name, count in table(results):
        print(f"| {name} | {count} |")
    only_open = [
        result.task.name
        for result in results
        if result.verifier is not None and result.verifier.isolation.proof and result.verifier.isolation.rung == "open"
    ]
    print(f"\nAt `open` only: {', '.join(sorted(only_open)) or 'none'}")


if __name__ == "__main__":
    main()
