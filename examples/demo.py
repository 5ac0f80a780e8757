"""Evaluates example packages with the oracle and with `nop`, locally, then steps through one as a gym task."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchflow.gym import PackageBenchmarkConfig
from benchflow.record import Job
from cube.core import Action

EXAMPLES = Path(__file__).with_name("packages")
NAMES = [
    "rotate-logs",
    "fix-parser",
    "count-words",
    "pack-boxes",
    "release-notes-team",
    "book-a-table",
    "two-step-release",
]
JOBS = Path("jobs")
BENCH = Path(sys.executable).with_name("bench")


def main() -> None:
    console = Console(highlight=False)
    console.print("[bold]Evaluating example packages[/] with their oracles and with an agent that does nothing.\n")
    stamp = Path(tempfile.mkdtemp(prefix="demo-", dir=_jobs_folder())).name
    (JOBS / stamp).rmdir()
    rewards = {agent: _evaluate(console, agent, f"{stamp}-{agent}") for agent in ("oracle", "nop")}
    table = Table("package", "oracle", "nop", box=None, header_style="bold", pad_edge=False)
    for name in sorted(rewards["oracle"]):
        table.add_row(name, *(_shown(rewards[agent].get(name)) for agent in ("oracle", "nop")))
    console.print()
    console.print(table)
    _step_a_package(console)
    console.print(
        f"\nResults are in [bold]jobs/{stamp}-oracle[/] and [bold]jobs/{stamp}-nop[/]. Next:\n"
        f"  .venv/bin/bench eval compare {stamp}-nop {stamp}-oracle\n"
        f"  .venv/bin/bench tasks init my-task\n"
        f"  .venv/bin/cube test counter-cube"
    )
    if set(rewards["oracle"].values()) != {1.0} or set(rewards["nop"].values()) != {0.0}:
        raise SystemExit("The demo did not get the expected scores.")


def _jobs_folder() -> Path:
    JOBS.mkdir(exist_ok=True)
    return JOBS


def _evaluate(console: Console, agent: str, name: str) -> dict[str, float | None]:
    """Run a job with the command and read its results."""
    paths = [str(EXAMPLES / package) for package in NAMES]
    command = ["eval", "run", *paths, "--agent", agent, "--sandbox", "local", "--base-image", "host", "--name", name]
    console.print(f"[dim]$ bench eval run examples/packages/… --agent {agent} --sandbox local --base-image host[/]")
    subprocess.run([str(BENCH), *command], stdout=subprocess.DEVNULL, check=False)
    return {result.task.name: result.reward for _, result in Job.find(JOBS, name).results}


def _shown(reward: float | None) -> str:
    return "unscored" if reward is None else f"{reward:g}"


def _step_a_package(console: Console) -> None:
    console.print("\n[bold]The same package as a gym task[/], rewarded after every step:\n")
    benchmark = PackageBenchmarkConfig(
        paths=[str(EXAMPLES / "rotate-logs")], sandbox="local", base_image="host", validate_per_step=True
    )
    task = next(iter(benchmark.get_task_configs())).make()
    commands = [
        "ls logs",
        "mkdir archive; gzip logs/*.[12]*; mv logs/*.gz archive/",
        "LC_ALL=C ls archive > archived.txt",
    ]
    table = Table("action", "reward", box=None, header_style="bold", pad_edge=False)
    try:
        task.reset()
        for command in commands:
            output = task.step(Action(name="bash", arguments={"command": command}))
            table.add_row(command, f"{output.reward:g}")
    finally:
        task.close()
    console.print(table)


if __name__ == "__main__":
    main()
