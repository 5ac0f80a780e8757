"""`bench eval export`: the trajectories of a job in a format that others read."""

from __future__ import annotations

import json
from pathlib import Path

import click

from benchflow.cli.arguments import PATH, json_option
from benchflow.cli.eval.inspect import jobs_dir_option, readable
from benchflow.cli.terminal import emit, emit_json, note, printable
from benchflow.errors import UsageError
from benchflow.files import staged_folder
from benchflow.record import Job
from benchflow.rollout.atif import export_atif


@click.command("export")
@click.argument("job")
@click.argument("out", type=PATH)
@click.option(
    "--format", "form", type=click.Choice(["atif"]), default="atif", show_default=True, help="Format to write."
)
@jobs_dir_option
@json_option
def export_command(job: str, out: Path, form: str, jobs_dir: Path, as_json: bool) -> int:
    """Export the trajectory of every result that counts, with its rewards, to OUT, a new or empty folder.

    A rollout whose files are missing or damaged is reported and left out; the command then exits with 1.
    """
    found = Job.find(jobs_dir, job)
    rollouts = [rollout for rollout, _ in readable(found).results]
    missing: list[str] = []
    try:
        with staged_folder(out) as folder:
            for rollout in rollouts:
                try:
                    document = export_atif(found.places.rollout(rollout).path)
                except UsageError as error:
                    note(printable(f"{rollout} is left out: {error}"))
                    missing.append(rollout)
                    continue
                text = json.dumps(document, indent=2, ensure_ascii=False)
                (folder / f"{rollout}.{form}.json").write_text(text + "\n", encoding="utf-8")
    except FileExistsError as error:
        raise click.UsageError(f"{error}; choose a new or empty folder.") from error
    exported = len(rollouts) - len(missing)
    if as_json:
        counts = {"exported": exported, "missing": missing}
        emit_json({"job": found.folder.name, "format": form, "out": str(out), **counts})
    else:
        emit(f"Exported {exported} {'trajectory' if exported == 1 else 'trajectories'} to {out}")
    return 1 if missing else 0
