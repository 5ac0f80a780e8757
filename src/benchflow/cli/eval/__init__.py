"""`bench eval`: many rollouts as a job, and their results."""

from __future__ import annotations

import click

from benchflow.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "run": Lazy("benchflow.cli.eval.run:run_command", "Run an agent on many tasks."),
    "resume": Lazy("benchflow.cli.eval.run:resume_command", "Resume a job that was interrupted."),
    "merge": Lazy("benchflow.cli.eval.job_merge:merge_command", "Merge jobs of one plan, such as its shards."),
    "rescore": Lazy("benchflow.cli.eval.rescore:rescore_command", "Rescore a job with the current verifiers."),
    "list": Lazy("benchflow.cli.eval.inspect:list_command", "List the jobs in a folder."),
    "show": Lazy("benchflow.cli.eval.showing:show_command", "Show the results of a job, or single rollouts."),
    "watch": Lazy("benchflow.cli.eval.job_watch:watch_command", "Follow a running job."),
    "export": Lazy("benchflow.cli.eval.export:export_command", "Export the trajectories of a job as ATIF."),
    "compare": Lazy(
        "benchflow.cli.eval.inspect:compare_command", "Compare jobs task by task, or as a table of models and agents."
    ),
}


@click.group("eval", cls=LazyGroup, table=COMMANDS)
def eval_group() -> None:
    """Run agents on many tasks and inspect the results."""
