"""The demo: a debug agent plays the counter cube, step by step."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

import counter_cube.debug as debug
from cube.core import Action, EnvironmentOutput
from cube.testing import run_debug_episode


def main() -> None:
    console = Console()
    config = debug.get_debug_benchmark()
    metadata = config.benchmark_metadata
    console.print(f"[bold]{metadata.name}[/] {metadata.version}: {metadata.description}")
    console.print("Its debug agent plays every task.\n")
    steps = Table(
        "task", "step", "action", "observation", "reward", "done", box=None, header_style="bold", pad_edge=False
    )
    with config.make() as benchmark:
        for task_config in config.get_task_configs():

            def show(
                number: int, action: Action | list[Action], output: EnvironmentOutput, name: str = task_config.task_id
            ) -> None:
                assert isinstance(action, Action)
                call = f"{action.name}({', '.join(f'{k}={v}' for k, v in action.arguments.items())})"
                seen = output.obs.to_markdown()
                steps.add_row(
                    name if number == 1 else "", str(number), call, seen, f"{output.reward:g}", _mark(output.done)
                )

            report = run_debug_episode(
                benchmark.spawn(task_config), debug.make_debug_agent(task_config.task_id), on_step=show
            )
            if report["error"]:
                raise SystemExit(f"{task_config.task_id}: {report['error']}")
    console.print(steps)
    console.print("\nNext: [bold].venv/bin/cube test counter-cube[/], [bold].venv/bin/cube init my-benchmark[/]")


def _mark(done: Any) -> str:
    return "yes" if done else ""


if __name__ == "__main__":
    main()
