"""`bench eval`: many rollouts as a job, and what came of them."""

from __future__ import annotations

import click

from benchflow.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "list": Lazy("benchflow.cli.eval.inspect:list_command", "Show the jobs of a folder."),
    "show": Lazy("benchflow.cli.eval.inspect:show_command", "Show what a job says."),
    "compare": Lazy("benchflow.cli.eval.inspect:compare_command", "Compare two jobs task by task."),
}


@click.group("eval", cls=LazyGroup, table=COMMANDS)
def eval_group() -> None:
    """Run agents on many tasks, and see what came of it."""
