"""One rollout or one job as a self-contained HTML file: the same pages, with the style inside and nothing to fetch.

The policy inside the file names the one style it has by its hash: no script runs, whatever the texts say.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from markupsafe import Markup

from benchflow.errors import UsageError
from benchflow.files.atomic import write_atomic
from benchflow.view.known_jobs import KnownJobs, Missing
from benchflow.view.page_addresses import Fields
from benchflow.view.page_rendering import STATIC
from benchflow.view.pages.job_page import job_page
from benchflow.view.pages.rollout_page import rollout_page
from benchflow.view.viewer import Exported, Viewer


def export_html(jobs: Path, target: Path, *, job: str | None = None, rollout: str | None = None) -> None:
    """Write the page of a job, or of `JOB/ROLLOUT`; raises `UsageError` for what does not exist."""
    if target.exists():
        raise UsageError(f"{target} already exists.", code="output-exists")
    viewer = Viewer(KnownJobs(jobs), str(jobs), exported=_exported())
    try:
        if rollout is not None:
            job_name, _, name = rollout.rpartition("/")
            text = rollout_page(viewer, job_name, name, Fields({}))
        else:
            text = job_page(viewer, job or "", Fields({}))
    except Missing as error:
        raise UsageError(f"{error} {error.hint}".strip(), code="not-found") from error
    try:
        write_atomic(target, text.encode(errors="replace"))
    except OSError as error:
        raise UsageError(f"Cannot write {target}: {error.strerror or error}.", code="output") from error


def _exported() -> Exported:
    style = (STATIC / "viewer.css").read_text()
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Exported(Markup(style), policy, now)  # noqa: S704 - the viewer's own file
