"""`bench view`: jobs in a browser, or one of them as a file."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from benchflow.cli.arguments import PATH, json_option
from benchflow.cli.failures import GOOD
from benchflow.cli.terminal import emit, emit_json, note, printable
from benchflow.errors import UsageError
from benchflow.evaluation.store import DEFAULT_JOBS_DIR

_NEEDED: Final = ("jinja2", "markdown_it", "starlette", "uvicorn")


@click.command()
@click.argument("jobs_dir", metavar="[JOBS_DIR]", type=PATH, default=DEFAULT_JOBS_DIR)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    default=8282,
    show_default=True,
    help="Port; 0 for a free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to listen on.")
@click.option("--export", "target", type=PATH, metavar="FILE.html", help="Write one self-contained file instead.")
@click.option("--job", metavar="JOB", help="The job to export.")
@click.option("--rollout", metavar="JOB/ROLLOUT", help="The rollout to export.")
@json_option
def view(
    jobs_dir: Path, port: int, host: str, target: Path | None, job: str | None, rollout: str | None, as_json: bool
) -> int:
    """Show the jobs in a folder in a browser, without changing them.

    JOBS_DIR is a folder with jobs, one job, a Harbor job folder, or an ATIF trajectory. The viewer has no log-in:
    everybody who can reach it sees everything. It listens on this machine only, unless --host sets another address.
    """
    _require_extra()
    if target is None and (job or rollout):
        raise UsageError("--job and --rollout belong to --export FILE.html.")
    if not jobs_dir.exists():
        raise UsageError(
            f"{jobs_dir} does not exist. To start a job, run: bench eval run PATH --agent oracle", code="no-jobs"
        )
    if target is not None:
        return _export(jobs_dir, target, job, rollout, as_json=as_json)
    from benchflow.view.view_app import open_viewer, viewer_app
    from benchflow.view.view_server import host_names, listen, serve, url_of

    viewer = open_viewer(jobs_dir)
    with listen(host, port) as listener:
        url = url_of(listener)
        if as_json:
            emit_json({"protocol": "http", "url": url})
        else:
            emit(printable(f"Viewing {jobs_dir} at {url} (Ctrl+C to stop)"))
        if host not in ("127.0.0.1", "::1", "localhost"):
            note(f"warning: everybody who can reach {host} can read these jobs")
        if sys.stdout is not None:
            sys.stdout.flush()
        serve(viewer_app(viewer, hosts=host_names(host)), listener)
    return GOOD


def _export(jobs_dir: Path, target: Path, job: str | None, rollout: str | None, *, as_json: bool) -> int:
    from benchflow.view.html_export import export_html

    if (job is None) == (rollout is None):
        raise UsageError("--export needs either --job JOB or --rollout JOB/ROLLOUT.")
    export_html(jobs_dir, target, job=job, rollout=rollout)
    if as_json:
        emit_json({"file": str(target), "bytes": target.stat().st_size})
    else:
        emit(printable(f"{target}  {target.stat().st_size / 1000:,.0f} KB"))
    return GOOD


def _require_extra() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        from cube.extras import extra_command

        raise UsageError(f"The viewer needs the extra 'view': {extra_command('view')}", code="extra-missing")
